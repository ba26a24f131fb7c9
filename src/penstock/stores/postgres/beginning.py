# SPDX-License-Identifier: Apache-2.0
"""What is sent to open a transaction, and what comes back?

The same goes alone, or behind the commit of the transaction before, in one round trip with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.stores.postgres.pipeline import Question
from penstock.stores.sql.statements import Row

FRESH_SECONDS = 0.1  # what was opened longer ago is given up: its time has passed

#: What a transaction will ask first, in this life of the server, at a time (None: its own).
Ahead = Callable[[str, int | None], Sequence[Question]]


class Begun(NamedTuple):
    """The first columns of `set_up`."""

    now: int
    pid: int
    number: str  # of the transaction
    schema: int
    life: str | None
    place: int  # the number of the schema


class Opening(NamedTuple):
    """A transaction that is to be opened."""

    ahead: Ahead | None
    life: str  # of the server, as far as we know
    owned_now: int | None  # the time, where tests own it
    since: float  # monotonic
    ids: int = 0  # to be reserved for new jobs

    @property
    def questions(self) -> list[Question]:
        questions: list[Question] = [("begin_write", ()), ("set_up", ())]
        if self.ids:
            questions.append(("reserve_ids", (self.ids,)))
        if self.ahead is not None:
            questions += self.ahead(self.life, self.owned_now)
        return questions

    def opened(self, answers: Sequence[list[Row]]) -> Opened:
        _, (row,), *rest = answers
        begun = Begun(*row[: len(Begun._fields)])
        ids = [job_id for (job_id,) in rest.pop(0)] if self.ids else []
        return Opened(self, begun, ids, rest)


class Opened(NamedTuple):
    """A transaction that is open, and that nobody has used so far."""

    opening: Opening
    begun: Begun
    ids: list[int]
    answers: Sequence[list[Row]]  # to what was asked ahead

    @property
    def now(self) -> int:
        owned = self.opening.owned_now
        return self.begun.now if owned is None else owned

    def is_fresh(self, monotonic: float, owned_now: int | None) -> bool:
        """Is its time still the time?"""
        is_young = monotonic - self.opening.since <= FRESH_SECONDS
        return is_young and self.opening.owned_now == owned_now
