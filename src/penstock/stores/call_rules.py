# SPDX-License-Identifier: Apache-2.0
"""Rules for calls that cost money, the same for every store: what each step changes.

`CallBook.intend` checks budgets before a call is sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from operator import add
from typing import NamedTuple

from penstock.model.job import JobId
from penstock.model.journal import (
    BODY_BYTES_MAX,
    Answer,
    CallKey,
    CallRecord,
    CallRef,
    CallState,
    Intent,
    IntentVerdict,
)
from penstock.model.spending import Account, Amount, Balance, Budget, Period, accounts_of, utc_day

UNENDED = frozenset((CallState.OPEN, CallState.HELD))  # their reserve is kept
ZERO = Amount()


class Change(NamedTuple):
    """What an account holds, or what is added to it; the order of its columns."""

    spent_micros: int = 0
    spent_tokens: int = 0
    reserved_micros: int = 0
    reserved_tokens: int = 0
    bought: int = 0
    reused: int = 0
    resent: int = 0
    estimated: int = 0

    def plus(self, other: Change) -> Change:
        return Change(*map(add, self, other))

    @property
    def reserved(self) -> Amount:
        return Amount(self.reserved_micros, self.reserved_tokens)

    @property
    def claimed(self) -> Amount:
        """What is spent or reserved."""
        return Amount(
            self.spent_micros + self.reserved_micros, self.spent_tokens + self.reserved_tokens
        )

    def as_balance(self, account: Account) -> Balance:
        spent = Amount(self.spent_micros, self.spent_tokens)
        return Balance(
            account,
            spent,
            self.reserved,
            self.bought,
            self.reused,
            self.resent,
            self.estimated,
        )


NOTHING = Change()


class Place(NamedTuple):
    """Where a call counts: eight accounts follow from it."""

    run_id: str
    day: str
    task: str
    provider: str
    model: str

    @property
    def accounts(self) -> tuple[Account, ...]:
        return accounts_of(*self)

    def span(self, period: Period) -> str:
        return self.run_id if period is Period.RUN else self.day


@dataclass(slots=True)
class CallRow:
    """One call, whole but for its answer."""

    no: int  # grows; 0 before it is written
    key: CallKey
    state: CallState
    token: int
    place: Place
    begun_at: int
    ended_at: int | None = None
    reserved: Amount = ZERO
    used: Amount = ZERO
    bought: int = 0
    reused: int = 0
    resent: int = 0
    estimated: int = 0

    @property
    def is_unended(self) -> bool:
        return self.state in UNENDED

    def as_record(self) -> CallRecord:
        return CallRecord(
            key=self.key,
            state=self.state,
            token=self.token,
            provider=self.place.provider,
            model=self.place.model,
            begun_at=self.begun_at,
            ended_at=self.ended_at,
            reserved=self.reserved,
            used=self.used,
            bought=self.bought,
            reused=self.reused,
            resent=self.resent,
            estimated=self.estimated,
        )


class Sums:
    """Owns what one transaction adds to accounts and to the figures of all calls."""

    def __init__(self) -> None:
        self._places: dict[Place, Change] = {}
        self._reuses: Counter[Account] = Counter()
        self.figures: Counter[str] = Counter()

    def copy(self) -> Sums:
        copied = Sums()
        copied._places = dict(self._places)
        copied._reuses = Counter(self._reuses)
        copied.figures = Counter(self.figures)
        return copied

    def _add(self, place: Place, change: Change) -> None:
        known = self._places.get(place)
        self._places[place] = change if known is None else known.plus(change)

    def reserve(self, row: CallRow, resent: int = 0) -> None:
        """A call came to be open, perhaps once more: its reserve is kept."""
        micros, tokens = row.reserved
        self._add(row.place, Change(0, 0, micros, tokens, resent=resent))
        self.figures["unended"] += 1
        self.figures["resent"] += resent

    def give_back(self, row: CallRow) -> None:
        """It is open no more: its reserve is given back."""
        micros, tokens = row.reserved
        self._add(row.place, Change(0, 0, -micros, -tokens))
        self.figures["unended"] -= 1

    def pay(self, row: CallRow, used: Amount, estimated: int) -> None:
        """An answer was bought; 1: not all that it cost was told."""
        self._add(row.place, Change(used.micros, used.tokens, bought=1, estimated=estimated))
        self.figures["estimated"] += estimated
        self.figures["bought"] += 1
        self.figures["micros"] += used.micros
        self.figures["tokens"] += used.tokens

    def reuse(self, accounts: Iterable[Account]) -> None:
        """Answers came from the journal, once for each time an account is named."""
        self._reuses.update(accounts)

    def forget(self, bought: int, reused: int, used: Amount, resent: int, estimated: int) -> None:
        """Calls that have ended are no longer kept: what was spent is spent."""
        self.figures["resent"] -= resent
        self.figures["estimated"] -= estimated
        self.figures["bought"] -= bought
        self.figures["reused"] -= reused
        self.figures["micros"] -= used.micros
        self.figures["tokens"] -= used.tokens

    def of(self, account: Account) -> Change:
        """What has been added to one account so far."""
        change = Change(reused=self._reuses[account]) if account in self._reuses else NOTHING
        for place, added in self._places.items():
            if account in place.accounts:
                change = change.plus(added)
        return change

    def by_account(self) -> dict[Account, Change]:
        """What has been added, by account."""
        added = {account: Change(reused=count) for account, count in self._reuses.items()}
        for place, change in self._places.items():
            if change != NOTHING:
                for account in place.accounts:
                    added[account] = added.get(account, NOTHING).plus(change)
        return added

    def take_accounts(self) -> list[tuple[str | int, ...]]:
        """What has been added to each account, in their order; from now on it counts no more."""
        added = sorted(self.by_account().items())
        self._places.clear()
        self._reuses.clear()
        return [(*account, *change) for account, change in added if change != NOTHING]


BOUGHT = frozenset((CallState.ANSWERED, CallState.SPOILED))


class CallBook:
    """Owns the rows of one step, by key, and which of them it has changed. Knows no database."""

    def __init__(self, rows: dict[CallKey, CallRow], sums: Sums, now: int) -> None:
        self._rows = rows
        self._sums = sums
        self._now = now
        self._day = utc_day(now)
        self.changed: dict[CallKey, CallRow] = {}
        self.unkept: list[CallRow] = []  # calls that have lost the answer they had

    def intend(
        self,
        intents: Sequence[Intent],
        budgets: Sequence[Budget],
        balance: Callable[[Account], Change],
        jobs: Mapping[JobId, int],
    ) -> list[IntentVerdict]:
        """Write intents down that no budget forbids.

        `balance` is of before this transaction; `jobs` has the token of those that exist.
        """
        return [self._intend(intent, budgets, balance, jobs) for intent in intents]

    def _intend(
        self,
        intent: Intent,
        budgets: Sequence[Budget],
        balance: Callable[[Account], Change],
        jobs: Mapping[JobId, int],
    ) -> IntentVerdict:
        row = self._rows.get(intent.key)
        present = jobs.get(intent.key.job)
        if present is None or max(present, row.token if row else 0) > intent.token:
            return IntentVerdict(written=False, is_stale=True)
        place = Place(intent.run_id, self._day, intent.task, intent.provider, intent.model)
        replaced = row if row is not None and row.is_unended else None
        for budget in budgets:
            account = Account(budget.scope, budget.period, place.span(budget.period))
            if account not in place.accounts:
                continue
            left = self._left(account, budget, balance, replaced)
            if not _fits(intent.reserved, budget, left):
                return IntentVerdict(written=False, over=budget, left=left)
        if replaced is not None:
            self._sums.give_back(replaced)
        fresh = CallRow(
            0 if row is None else row.no,
            intent.key,
            CallState.OPEN,
            intent.token,
            place,
            self._now,
            reserved=intent.reserved,
            resent=intent.resent,
        )
        resent = intent.resent
        if row is not None:
            fresh.used, fresh.bought, fresh.reused = row.used, row.bought, row.reused
            fresh.estimated = row.estimated
            fresh.resent = max(row.resent, intent.resent)
            resent = fresh.resent - row.resent
            if row.state is CallState.ANSWERED:
                self.unkept.append(row)
        self._sums.reserve(fresh, resent)
        self._rows[intent.key] = self.changed[intent.key] = fresh
        return IntentVerdict(written=True)

    def _left(
        self,
        account: Account,
        budget: Budget,
        balance: Callable[[Account], Change],
        replaced: CallRow | None,
    ) -> Amount:
        """What is left of a budget, but for what is about to be replaced."""
        micros, tokens = balance(account).plus(self._sums.of(account)).claimed
        if replaced is not None and account in replaced.place.accounts:
            micros, tokens = micros - replaced.reserved.micros, tokens - replaced.reserved.tokens
        return Amount(
            0 if budget.micros is None else budget.micros - micros,
            0 if budget.tokens is None else budget.tokens - tokens,
        )

    def answered(self, answers: Sequence[Answer]) -> list[Answer]:
        """Settle what answers cost; those that are to be kept."""
        return [answer for answer in answers if self._answered(answer)]

    def _answered(self, answer: Answer) -> bool:
        row = self._rows.get(answer.key)
        if row is None or (answer.token == row.token and row.state in BOUGHT):
            return False  # nobody knows the call, or it was told before
        self._sums.pay(row, answer.used, int(answer.is_estimated))
        row.bought += 1
        row.estimated += answer.is_estimated
        row.used = Amount(
            row.used.micros + answer.used.micros, row.used.tokens + answer.used.tokens
        )
        self.changed[row.key] = row
        is_late = 0 < answer.token < row.token  # a later lease has sent it as well
        if row.state is CallState.ANSWERED or is_late:
            return False
        is_kept = answer.body is not None and len(answer.body) <= BODY_BYTES_MAX
        self._end(row, CallState.ANSWERED if is_kept else CallState.SPOILED)
        return is_kept

    def closed(self, calls: Sequence[CallRef]) -> None:
        for key, token in calls:
            row = self._rows.get(key)
            if row is not None and row.is_unended and row.token <= token:
                self._end(row, CallState.CLOSED)

    def held(self, calls: Sequence[CallRef]) -> None:
        for key, token in calls:
            row = self._rows.get(key)
            if row is not None and row.state is CallState.OPEN and row.token <= token:
                row.state = CallState.HELD
                self.changed[key] = row

    def reused(self, keys: Sequence[CallKey], accounts: Sequence[Account]) -> None:
        self._sums.reuse(accounts)
        for key in keys:
            row = self._rows.get(key)
            if row is not None:
                row.reused += 1
                self._sums.figures["reused"] += 1
                self.changed[key] = row

    def spoil(self, keys: Sequence[CallKey]) -> None:
        """Answers led to faults of the task itself."""
        for key in keys:
            row = self._rows.get(key)
            if row is not None and row.state is CallState.ANSWERED:
                row.state = CallState.SPOILED
                self.changed[key] = row
                self.unkept.append(row)

    def _end(self, row: CallRow, state: CallState) -> None:
        if row.is_unended:
            self._sums.give_back(row)
        row.state, row.ended_at, row.reserved = state, self._now, ZERO
        self.changed[row.key] = row


def budgeted(intents: Sequence[Intent], budgets: Sequence[Budget], now: int) -> list[Account]:
    """The accounts that decide about these intents, in the order in which they are locked."""
    runs = {intent.run_id for intent in intents}
    spans: Mapping[Period, Set[str]] = {Period.RUN: runs, Period.DAY: {utc_day(now)}}
    return sorted(
        {Account(one.scope, one.period, span) for one in budgets for span in spans[one.period]}
    )


def _fits(asked: Amount, budget: Budget, left: Amount) -> bool:
    return (budget.micros is None or asked.micros <= left.micros) and (
        budget.tokens is None or asked.tokens <= left.tokens
    )
