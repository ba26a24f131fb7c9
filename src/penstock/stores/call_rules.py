# SPDX-License-Identifier: Apache-2.0
"""Rules for calls that cost money, the same for every store: what each step changes.

`CallBook.intend` checks the budgets before a call is sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import add, sub
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
from penstock.model.spending import Account, Amount, Balance, Budget, accounts_of, utc_day

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
    doubt_micros: int = 0
    doubt_tokens: int = 0

    def plus(self, other: Change) -> Change:
        return Change(*map(add, self, other))

    @property
    def reserved(self) -> Amount:
        return Amount(self.reserved_micros, self.reserved_tokens)

    @property
    def doubt(self) -> Amount:
        return Amount(self.doubt_micros, self.doubt_tokens)

    @property
    def claimed(self) -> Amount:
        """What is spent, reserved or in doubt."""
        return Amount(
            self.spent_micros + self.reserved_micros + self.doubt_micros,
            self.spent_tokens + self.reserved_tokens + self.doubt_tokens,
        )

    def as_balance(self, account: Account, in_hand: Amount) -> Balance:
        """For people: what is reserved, and is of no call in hand, is in doubt."""
        flying = Amount(*map(min, self.reserved, in_hand))  # read apart, while others go on
        left = map(sub, self.reserved, flying)
        return Balance(
            account,
            Amount(self.spent_micros, self.spent_tokens),
            flying,
            self.bought,
            self.reused,
            self.resent,
            self.estimated,
            in_doubt=Amount(*map(add, self.doubt, left)),
        )


NOTHING = Change()


class Place(NamedTuple):
    """Where a call counts: twelve accounts follow from it."""

    run_id: str
    day: str
    task: str
    provider: str
    model: str
    app: str = ""

    @property
    def accounts(self) -> tuple[Account, ...]:
        return accounts_of(*self)

    def account(self, budget: Budget) -> Account:
        """The account that a budget is about, if it covers this place."""
        return Account(budget.scope, budget.period, budget.span(self.run_id, self.day), self.app)


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
    doubts: int = 0  # earlier sends whose fate is unknown
    doubt: Amount = ZERO  # what they were estimated at

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
            doubts=self.doubts,
            doubt=self.doubt,
        )


#: The figures of ended calls, in the order of `sum_calls`.
ENDED_FIGURES = (
    "bought",
    "reused",
    "micros",
    "tokens",
    "resent",
    "estimated",
    "doubts",
    "doubt_micros",
    "doubt_tokens",
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
        self.claim(row.place, row.reserved, resent)
        self._count_open(row, 1)
        self.figures["resent"] += resent

    def claim(self, place: Place, reserved: Amount, resent: int = 0) -> None:
        """Calls at a place have reserved something."""
        self._add(place, Change(0, 0, *reserved, resent=resent))

    def give_back(self, row: CallRow) -> None:
        """It is open no more: its reserve is given back."""
        micros, tokens = row.reserved
        self._add(row.place, Change(0, 0, -micros, -tokens))
        self._count_open(row, -1)

    def abandon(self, row: CallRow) -> None:
        """It is forgotten, and its fate stays unknown: its estimate stays counted."""
        self.give_back(row)
        micros, tokens = row.reserved
        self._add(row.place, Change(doubt_micros=micros, doubt_tokens=tokens))

    def doubt(self, row: CallRow) -> None:
        """The same of a call that is sent again: its row remembers the earlier send."""
        self.abandon(row)
        self.figures["doubts"] += 1
        self.figures["doubt_micros"] += row.reserved.micros
        self.figures["doubt_tokens"] += row.reserved.tokens

    def leave_open(self, row: CallRow) -> None:
        """The same of a call that nobody has sent again so far."""
        self.doubt(row)
        self.figures["doubts"] -= 1
        self.figures["unended"] += 1

    def _count_open(self, row: CallRow, sign: int) -> None:
        self.figures["unended"] += sign
        self.figures["open_micros"] += sign * row.reserved.micros
        self.figures["open_tokens"] += sign * row.reserved.tokens

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

    def forget(self, sums: Sequence[int]) -> None:
        """Calls are no longer kept: what was spent is spent, and what is in doubt stays so."""
        self.figures.subtract(dict(zip(ENDED_FIGURES, sums, strict=True)))

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
        place = Place(
            intent.run_id, self._day, intent.task, intent.provider, intent.model, intent.app
        )
        replaced = row if row is not None and row.is_unended else None
        is_told_twice = replaced is not None and (
            replaced.token == intent.token and intent.resent <= replaced.resent
        )
        for budget in budgets:
            account = place.account(budget)
            if account not in place.accounts:
                continue
            left = self._left(account, budget, balance, replaced if is_told_twice else None)
            if not _fits(intent.reserved, budget, left):
                return IntentVerdict(written=False, over=budget, left=left)
        if replaced is not None and is_told_twice:
            self._sums.give_back(replaced)
        elif replaced is not None:
            self._sums.doubt(replaced)
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
            fresh.estimated, fresh.doubts, fresh.doubt = row.estimated, row.doubts, row.doubt
            fresh.resent = max(row.resent, intent.resent)
            resent = fresh.resent - row.resent
            if row.state is CallState.ANSWERED:
                self.unkept.append(row)
        if replaced is not None and not is_told_twice:
            fresh.doubts += 1
            fresh.doubt = Amount(*map(add, fresh.doubt, replaced.reserved))
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

    def doubt(self) -> None:
        """Nobody has these in hand: their reserves become doubts."""
        for row in self._rows.values():
            self._sums.leave_open(row)
            row.doubt, row.reserved = Amount(*map(add, row.doubt, row.reserved)), ZERO
            self.changed[row.key] = row

    def _end(self, row: CallRow, state: CallState) -> None:
        if row.is_unended:
            self._sums.give_back(row)
        row.state, row.ended_at, row.reserved = state, self._now, ZERO
        self.changed[row.key] = row


def budgeted(intents: Sequence[Intent], budgets: Sequence[Budget], now: int) -> list[Account]:
    """The accounts that decide about these intents, in the order in which they are locked."""
    whose = {(intent.run_id, intent.app) for intent in intents}
    day = utc_day(now)
    return sorted(
        {
            Account(one.scope, one.period, one.span(run_id, day), app)
            for one in budgets
            for run_id, app in whose
        }
    )


def _fits(asked: Amount, budget: Budget, left: Amount) -> bool:
    return (budget.micros is None or asked.micros <= left.micros) and (
        budget.tokens is None or asked.tokens <= left.tokens
    )
