# SPDX-License-Identifier: Apache-2.0
"""What does a store keep of a call, and which sums is it part of?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from operator import add
from typing import NamedTuple

from penstock.model.journal import CallKey, CallRecord, CallState
from penstock.model.spending import Account, Amount, Balance, Period, accounts_of

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
