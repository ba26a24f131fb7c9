# SPDX-License-Identifier: Apache-2.0
"""The paid calls of one attempt: their ordinals, and what earlier attempts journaled.

Equal calls of an attempt are told apart by their order. One that came to nothing (refused, broken
off, cancelled) leaves its place to the next equal one: a client that tries again by itself makes
the same call, not another one.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from penstock.errors import BudgetUsedUp, CallInDoubt
from penstock.model.job import SCHEDULE, JobId, LeasedJob
from penstock.model.journal import CallKey, CallRecord, CallState
from penstock.model.spending import BudgetRefusal


class Found(msgspec.Struct, frozen=True, gc=False):
    """How far a call came before."""

    state: CallState
    bought: int = 0
    provider: str = ""
    model: str = ""
    resent: int = 0

    @property
    def is_in_doubt(self) -> bool:
        """It began, and nobody knows its end."""
        return self.state in (CallState.OPEN, CallState.HELD)


class AttemptCalls:
    """Owns the places of one attempt's calls. Belongs to the loop."""

    __slots__ = (
        "_back",
        "_found",
        "_next",
        "_occasion",
        "_on_the_way",
        "in_doubt",
        "job",
        "last",
        "looking",
        "over_budget",
        "refusal",
    )

    def __init__(self, job: LeasedJob) -> None:
        self.job = job
        # A unit of a schedule is one job for ever: what it bought for another tick is not for this.
        self._occasion = f"@{job.due_at}" if job.task.startswith(SCHEDULE) else ""
        self.last: CallKey | None = None  # whose answer was handed out last
        self.over_budget: BudgetUsedUp | None = None  # a budget has refused one
        self.refusal: BudgetRefusal | None = None  # the same in numbers
        self.in_doubt: CallInDoubt | None = None  # one waits for a person
        self.looking: asyncio.Future[None] | None = None  # what earlier attempts left is read
        self._found: dict[CallKey, Found] = {}
        self._next: Counter[str] = Counter()
        self._back: dict[str, list[int]] = {}  # heaps of places that are free again
        self._on_the_way: dict[CallKey, asyncio.Future[Any]] = {}

    def __repr__(self) -> str:
        return f"<AttemptCalls of {self.job.key!r}: {self._next.total()} places>"

    @property
    def is_first(self) -> bool:
        """No earlier attempt can have left anything."""
        return self.job.token <= 1

    @property
    def has_any(self) -> bool:
        """It has asked for something that costs money, or found what was bought before."""
        return bool(self._next or self._found)

    @property
    def job_id(self) -> JobId:
        return self.job.id

    def take(self, fingerprint: str) -> CallKey:
        """The place of a call that begins."""
        fingerprint += self._occasion
        free = self._back.get(fingerprint)
        if free:
            return CallKey(self.job.id, fingerprint, heapq.heappop(free))
        ordinal = self._next[fingerprint]
        self._next[fingerprint] = ordinal + 1
        return CallKey(self.job.id, fingerprint, ordinal)

    def give_back(self, key: CallKey) -> None:
        """A call came to nothing: the next equal one has its place."""
        heapq.heappush(self._back.setdefault(key.fingerprint, []), key.ordinal)

    def handed_out(self, key: CallKey) -> None:
        """The task has its answer."""
        self.last = key

    # ── What is known ─────────────────────────────────────────────────────────────────────────

    def remember(self, records: Iterable[CallRecord]) -> None:
        """What earlier attempts have left."""
        for record in records:
            self._found[record.key] = Found(
                record.state, record.bought, record.provider, record.model, record.resent
            )

    def note(self, key: CallKey, state: CallState, provider: str, model: str, resent: int) -> None:
        """How far a call of this attempt came that leaves its place."""
        bought = 0 if key not in self._found else self._found[key].bought
        bought += state in (CallState.ANSWERED, CallState.SPOILED)
        self._found[key] = Found(state, bought, provider, model, resent)

    def found(self, key: CallKey) -> Found | None:
        return self._found.get(key)

    def resent(self, key: CallKey) -> int:
        """How often a call is sent again for doubt, if it is sent now."""
        found = self._found.get(key)
        return 0 if found is None else found.resent + found.is_in_doubt

    def doubts(self, provider: str) -> list[CallKey]:
        """Every call of a provider that began and of which nobody knows the end."""
        return [
            key
            for key, found in self._found.items()
            if found.state is CallState.OPEN and found.provider == provider
        ]

    # ── What is being written ─────────────────────────────────────────────────────────────────

    def writes(self, key: CallKey, written: asyncio.Future[Any]) -> None:
        """Whoever takes this place next waits until that is durable, so that order is kept."""
        self._on_the_way[key] = written

        def ended(done: asyncio.Future[Any]) -> None:
            if self._on_the_way.get(key) is done:
                del self._on_the_way[key]

        written.add_done_callback(ended)

    async def settled(self, key: CallKey) -> None:
        """Nothing is being written about a call any more."""
        while (written := self._on_the_way.get(key)) is not None:
            await asyncio.wait([written])
