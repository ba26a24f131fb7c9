# SPDX-License-Identifier: Apache-2.0
"""The paid calls of one attempt: their ordinals, and what earlier attempts journaled.

Equal calls of an attempt are told apart by their ordinal. One that failed (refused, interrupted,
cancelled) frees its key for the next equal one: a client that retries by itself makes the same
call, not another one.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from penstock.errors import BudgetUsedUp, CallInDoubt
from penstock.model.job import JobKind, LeasedJob
from penstock.model.journal import Answer, CallKey, CallRecord, CallState
from penstock.model.spending import BudgetRefusal


class EarlierCall(msgspec.Struct, frozen=True, gc=False):
    """The state of an equal call that was made before."""

    state: CallState
    bought: int = 0
    provider: str = ""
    model: str = ""
    resent: int = 0

    @property
    def is_in_doubt(self) -> bool:
        """It was sent, and its outcome is unknown."""
        return self.state in (CallState.OPEN, CallState.HELD)


class DeliveredAnswer(NamedTuple):
    """What an answer that an attempt was given has cost, now or before."""

    answer: Answer  # without its body
    is_reused: bool
    is_priced: bool  # else its money is not known


class JournaledCalls:
    """What is known of the calls of one attempt, shared by its parts."""

    __slots__ = ("earlier", "reading", "writing")

    def __init__(self) -> None:
        self.earlier: dict[CallKey, EarlierCall] = {}
        self.reading: asyncio.Future[None] | None = None  # of what earlier attempts have journaled
        self.writing: dict[CallKey, asyncio.Future[Any]] = {}


class AttemptCalls:
    """Owns the keys of one attempt's calls. Belongs to the loop."""

    def __init__(
        self, job: LeasedJob, occasion: str = "", journaled: JournaledCalls | None = None
    ) -> None:
        """No call yet.

        Args:
            job: whose attempt it is.
            occasion: what tells its calls from equal ones of the same job.
            journaled: what the attempt that this is a part of knows of its calls.
        """
        self.job = job
        # A unit of a schedule is one job for ever: what it bought for another tick is not for this.
        self._occasion = f"@{job.due_at}{occasion}" if job.kind is JobKind.TICK else occasion
        self.last: CallKey | None = None  # whose answer was delivered last
        self.delivered: list[DeliveredAnswer] | None = None  # None: nobody wants to know
        self.over_budget: BudgetUsedUp | None = None  # a budget has refused one
        self.refusal: BudgetRefusal | None = None  # the same in numbers
        self.in_doubt: CallInDoubt | None = None  # one waits for a person
        self.journaled = journaled or JournaledCalls()
        self._next: Counter[str] = Counter()
        self._freed: dict[str, list[int]] = {}  # heaps of ordinals that are free again

    def __repr__(self) -> str:
        return f"<AttemptCalls of {self.job.key!r}: {self._next.total()} ordinals>"

    @property
    def is_first(self) -> bool:
        """No earlier attempt can have journaled anything."""
        return self.job.token <= 1

    @property
    def has_any(self) -> bool:
        """It has asked for something that costs money, or found what was bought before."""
        return bool(self._next or self.journaled.earlier)

    def part(self, occasion: str) -> AttemptCalls:
        """Return the calls of a part of the attempt, such as a cell of a table.

        Equal calls of two parts are two calls, each with its answer. A part that is made again
        under the same name finds what it has bought.
        """
        calls = AttemptCalls(self.job, f"#{occasion}", self.journaled)
        calls.delivered = []
        return calls

    def take_over(self, part: AttemptCalls) -> None:
        """Learn from a part of the attempt what ends all of it."""
        self.over_budget = part.over_budget or self.over_budget
        self.refusal = part.refusal or self.refusal
        self.in_doubt = part.in_doubt or self.in_doubt

    def deliver(self, answer: Answer, *, is_reused: bool, is_priced: bool) -> None:
        """Note that the attempt has an answer."""
        self.last = answer.key
        if self.delivered is not None:
            costs = msgspec.structs.replace(answer, body=None)
            self.delivered.append(DeliveredAnswer(costs, is_reused, is_priced))

    def take_key(self, fingerprint: str) -> CallKey:
        """Return the key of a call that begins: its fingerprint and the lowest free ordinal."""
        fingerprint += self._occasion
        free = self._freed.get(fingerprint)
        if free:
            return CallKey(self.job.id, fingerprint, heapq.heappop(free))
        ordinal = self._next[fingerprint]
        self._next[fingerprint] = ordinal + 1
        return CallKey(self.job.id, fingerprint, ordinal)

    def free_key(self, key: CallKey) -> None:
        """Let the next equal call have the key of one that failed."""
        heapq.heappush(self._freed.setdefault(key.fingerprint, []), key.ordinal)

    # ── What is known ─────────────────────────────────────────────────────────────────────────

    def remember(self, records: Iterable[CallRecord]) -> None:
        """Add what earlier attempts have journaled."""
        for record in records:
            self.journaled.earlier[record.key] = EarlierCall(
                record.state, record.bought, record.provider, record.model, record.resent
            )

    def record_state(
        self, key: CallKey, state: CallState, provider: str, model: str, resent: int
    ) -> None:
        """Note the state of a call of this attempt that frees its key."""
        bought = 0 if key not in self.journaled.earlier else self.journaled.earlier[key].bought
        bought += state in (CallState.ANSWERED, CallState.SPOILED)
        self.journaled.earlier[key] = EarlierCall(state, bought, provider, model, resent)

    def earlier(self, key: CallKey) -> EarlierCall | None:
        return self.journaled.earlier.get(key)

    def resent(self, key: CallKey) -> int:
        """Return how often a call in doubt has been resent, if it is sent now."""
        found = self.journaled.earlier.get(key)
        return 0 if found is None else found.resent + found.is_in_doubt

    def in_doubt_with(self, provider: str) -> list[CallKey]:
        """Return every call of a provider that was sent and whose outcome is unknown."""
        return [
            key
            for key, found in self.journaled.earlier.items()
            if found.state is CallState.OPEN and found.provider == provider
        ]

    # ── What is being written ─────────────────────────────────────────────────────────────────

    def track_write(self, key: CallKey, written: asyncio.Future[Any]) -> None:
        """Let the next call with this key wait until that is durable, so that order is kept."""
        self.journaled.writing[key] = written

        def ended(done: asyncio.Future[Any]) -> None:
            if self.journaled.writing.get(key) is done:
                del self.journaled.writing[key]

        written.add_done_callback(ended)

    async def wait_written(self, key: CallKey) -> None:
        """Wait until nothing is being written about a call any more."""
        while (written := self.journaled.writing.get(key)) is not None:
            await asyncio.wait([written])
