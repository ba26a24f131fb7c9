# SPDX-License-Identifier: Apache-2.0
"""What does a store keep of a call, and which sums is it part of?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from penstock.model.journal import CallKey, CallRecord, CallState
from penstock.model.spending import Account, Amount, accounts_of

UNENDED = frozenset((CallState.OPEN, CallState.HELD))  # their reserve is kept


class Change(NamedTuple):
    """What an account holds, or what is added to it; the order of its columns."""

    spent_micros: int = 0
    spent_tokens: int = 0
    reserved_micros: int = 0
    reserved_tokens: int = 0
    bought: int = 0
    reused: int = 0

    def plus(self, other: Change) -> Change:
        return Change(*map(sum, zip(self, other, strict=True)))

    @property
    def claimed(self) -> Amount:
        """What is spent or reserved."""
        return Amount(
            self.spent_micros + self.reserved_micros, self.spent_tokens + self.reserved_tokens
        )


NOTHING = Change()
ZERO = Amount()


@dataclass(slots=True)
class CallRow:
    """One call, whole but for its answer; the order of columns where it is read."""

    no: int  # grows; 0 before it is written
    key: CallKey
    state: CallState
    token: int
    run_id: str
    day: str
    task: str
    provider: str
    model: str
    begun_at: int
    ended_at: int | None = None
    reserved: Amount = ZERO
    used: Amount = ZERO
    bought: int = 0
    reused: int = 0

    @property
    def is_unended(self) -> bool:
        return self.state in UNENDED

    @property
    def accounts(self) -> tuple[Account, ...]:
        return accounts_of(self.run_id, self.day, self.task, self.provider, self.model)

    def as_record(self) -> CallRecord:
        return CallRecord(
            key=self.key,
            state=self.state,
            token=self.token,
            provider=self.provider,
            model=self.model,
            begun_at=self.begun_at,
            ended_at=self.ended_at,
            reserved=self.reserved,
            used=self.used,
            bought=self.bought,
            reused=self.reused,
        )


class Sums:
    """Owns what one transaction adds to accounts and to the figures of all calls."""

    def __init__(
        self,
        accounts: dict[Account, Change] | None = None,
        figures: dict[str, int] | None = None,
    ) -> None:
        self.accounts = accounts if accounts is not None else {}
        self.figures = figures if figures is not None else {}

    def copy(self) -> Sums:
        return Sums(dict(self.accounts), dict(self.figures))

    def add(self, accounts: Iterable[Account], change: Change) -> None:
        for account in accounts:
            self.accounts[account] = self.accounts.get(account, NOTHING).plus(change)

    def figure(self, name: str, step: int) -> None:
        self.figures[name] = self.figures.get(name, 0) + step

    def reserve(self, row: CallRow, sign: int) -> None:
        """A call came to be open, or ended: its reserve is kept, or given back."""
        micros, tokens = row.reserved
        reserved = Change(reserved_micros=sign * micros, reserved_tokens=sign * tokens)
        self.add(row.accounts, reserved)
        self.figure("unended", sign)

    def pay(self, row: CallRow, used: Amount) -> None:
        """An answer was bought."""
        self.add(row.accounts, Change(used.micros, used.tokens, bought=1))
        self.figure("bought", 1)
        self.figure("micros", used.micros)
        self.figure("tokens", used.tokens)

    def reuse(self, accounts: Iterable[Account]) -> None:
        """Answers came from the journal, once for each time an account is named."""
        self.add(accounts, Change(reused=1))

    def forget(self, row: CallRow) -> None:
        """A call is no longer kept: its reserve is given back, what was spent is spent."""
        if row.is_unended:
            self.reserve(row, -1)
        for name, count in (
            ("bought", row.bought),
            ("reused", row.reused),
            ("micros", row.used.micros),
            ("tokens", row.used.tokens),
        ):
            self.figure(name, -count)
