# SPDX-License-Identifier: Apache-2.0
"""The completer: acknowledges ended attempts in batches, and retries until the store takes them.

Ends are collected while one flush is on its way and leave together in the next: the group commit
of the loop's side. A store that is busy, full or unreachable is asked again until it answers.
Nothing is dropped in silence.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

from penstock.errors import PenstockError, StoreError, StoreUnknown
from penstock.model.job import WorkerId
from penstock.model.lease import (
    CommitLevel,
    ForgetCalls,
    JobEnd,
    JobFailure,
    JobRef,
    Rearm,
    SetCursor,
    StageManifest,
    Verdict,
)
from penstock.model.schedule import tried_at
from penstock.stores.protocol import JobStore
from penstock.stores.retry import StoreRetry
from penstock.stores.store_future import Reply
from penstock.worker.parts import Totals, WorkerLoop
from penstock.worker.prefetch import WINDOW_MAX

FLUSH_MAX = 1_024  # ends of one call
FLUSH_CHARACTERS = 8 * 1024 * 1024  # of results of one call, and one more end

log = logging.getLogger("penstock.worker")

T = TypeVar("T")
WAITS = "Acknowledgements have to wait, nothing is begun"

#: Effects that a store takes, or calls stale with the end that brings them.
_TAKEN = (Rearm, SetCursor, ForgetCalls, StageManifest, CommitLevel)


class EndListener(Protocol):
    """Hears of ends that the store did not take as they were."""

    def not_taken(self, end: JobEnd | JobFailure, verdict: Verdict) -> None:
        """An acknowledgement was refused: a fencing token is too old, or it came twice."""
        ...

    def effects_refused(self, end: JobEnd, error: PenstockError) -> JobEnd | JobFailure:
        """What becomes of an end whose effects cannot be applied."""
        ...


class Completer:
    """Owns what has ended and is not yet durable. Belongs to one loop."""

    def __init__(
        self,
        store: JobStore,
        retry: StoreRetry,
        loop: WorkerLoop,
        totals: Totals,
        listener: EndListener,
    ) -> None:
        self._store = store
        self._retry = retry
        self._loop = loop
        self._totals = totals
        self._listener = listener
        self.armed_at: int | None = None  # when the first job is due that an end armed again
        self._ends: list[JobEnd] = []
        self._failures: list[JobFailure] = []
        self._releases: list[JobRef] = []
        self._on_the_way: list[JobEnd | JobFailure | JobRef] = []
        self._task: asyncio.Task[None] | None = None
        self._worker = WorkerId("")
        self._stuck = False  # the store cannot take ends now
        self._apart = False  # a batch was refused: ends with effects go one by one next
        self.flushes = 0  # that the store has taken
        self.failed: Exception | None = None

    @property
    def pending(self) -> int:
        """Ends that are not durable yet."""
        return self._waiting() + len(self._on_the_way)

    def refs(self) -> set[tuple[int, int]]:
        """The leases that these ends belong to."""
        ends = (*self._ends, *self._failures, *self._releases, *self._on_the_way)
        return {_ref(end) for end in ends}

    @property
    def takes_more(self) -> bool:
        """False: work that is begun now could not be acknowledged soon.

        One window may wait while another is on its way: the store and the bodies work side by side.
        """
        return self._waiting() < WINDOW_MAX and not self._stuck

    def add(self, end: JobEnd | JobFailure | JobRef) -> None:
        if type(end) is JobEnd:
            self._ends.append(end)
        elif type(end) is JobFailure:
            self._failures.append(end)
        else:
            self._releases.append(end)  # type: ignore[arg-type]  # the third of three

    def kick(self, worker: WorkerId) -> None:
        """Start a flush if something waits and none is on its way."""
        self._worker = worker
        if self._task is None and self.failed is None and self._waiting():
            self._task = asyncio.get_running_loop().create_task(self._flush())

    def drop(self) -> int:
        """The lease is lost: what is not on its way is of no use to anybody."""
        count = self._waiting()
        self._ends, self._failures, self._releases = [], [], []
        return count

    def _waiting(self) -> int:
        return len(self._ends) + len(self._failures) + len(self._releases)

    async def _flush(self) -> None:
        try:
            while self._waiting():
                await self._flush_once(self._worker)  # a new name, if the lease was lost meanwhile
        except Exception as error:
            self.failed = error
        finally:
            self._task = None
            self._on_the_way = []
            self._loop.wake()

    async def _flush_once(self, worker: WorkerId) -> None:
        count = _flushable(self._ends)
        ends, self._ends = self._ends[:count], self._ends[count:]
        failures, self._failures = self._failures[:FLUSH_MAX], self._failures[FLUSH_MAX:]
        releases, self._releases = self._releases[:FLUSH_MAX], self._releases[FLUSH_MAX:]
        self._on_the_way = [*ends, *failures, *releases]
        store = self._store
        alone = _has_effects if self._apart else _is_refusable
        self._apart = False
        plain = [end for end in ends if not alone(end)]
        calls: list[tuple[list[JobEnd] | list[JobFailure], Callable[[], Reply[list[Verdict]]]]] = []
        if plain:
            calls.append((plain, lambda: store.ack(worker, plain)))
        # An end whose effects are refused must not take its neighbours with it.
        for end in ends:
            if alone(end):
                calls.append(([end], partial(store.ack, worker, [end])))
        if failures:
            calls.append((failures, lambda: store.fail_and_retry(worker, failures)))
        first = [(group, call, call()) for group, call in calls]  # together in one transaction
        if releases:
            await self._persist(lambda: store.release(worker, releases))
        for group, call, reply in first:
            await self._settle(group, call, reply)
        self.flushes += 1
        self._on_the_way = []
        self._loop.wake()

    async def _settle(
        self,
        group: list[JobEnd] | list[JobFailure],
        call: Callable[[], Reply[list[Verdict]]],
        reply: Reply[list[Verdict]],
    ) -> None:
        try:
            verdicts, unknown = await self._persist(call, reply)
        except StoreError:
            raise
        except PenstockError as error:
            with_effects = [end for end in group if isinstance(end, JobEnd) and end.effects]
            if not with_effects:
                raise  # a plain end cannot be refused: our bug, and it would be refused again
            if len(group) > 1:
                self._apart = True
                self._ends.extend(end for end in group if isinstance(end, JobEnd))
            else:
                self.add(self._listener.effects_refused(with_effects[0], error))
            return
        if unknown:  # it was taken the first time, and nobody could tell us
            taken = {Verdict.DUPLICATE: Verdict.ACCEPTED}
            verdicts = [taken.get(verdict, verdict) for verdict in verdicts]
        accepted = verdicts.count(Verdict.ACCEPTED)
        if accepted:
            self._totals.ended += accepted
            self._note_armed(group)
        if accepted != len(group):
            refused: list[JobEnd | JobFailure] = [*group]
            for end, verdict in zip(refused, verdicts, strict=True):
                if verdict is not Verdict.ACCEPTED:
                    self._listener.not_taken(end, verdict)

    def _note_armed(self, group: list[JobEnd] | list[JobFailure]) -> None:
        for end in group:
            for effect in end.effects if isinstance(end, JobEnd) else ():
                if isinstance(effect, Rearm):
                    at = tried_at(effect.at, effect.period, end.ended_at)
                    self.armed_at = at if self.armed_at is None else min(self.armed_at, at)

    async def _persist(
        self, call: Callable[[], Reply[T]], reply: Reply[T] | None = None
    ) -> tuple[T, bool]:
        """Ask until the store takes it; True if it may have taken it before already."""
        unknown = False

        def refused(error: StoreError) -> None:
            nonlocal unknown
            self._stuck = True
            unknown = unknown or isinstance(error, StoreUnknown)

        answer = await self._retry.until_answered(WAITS, call, first=reply, refused=refused)
        self._stuck = False
        return answer, unknown


def _has_effects(end: JobEnd) -> bool:
    return bool(end.effects)


def _is_refusable(end: JobEnd) -> bool:
    """Its effects may be refused in the usual course; the next tick, a cursor, slices are not."""
    effects = end.effects
    return bool(effects) and not all(isinstance(one, _TAKEN) for one in effects)


def _ref(end: JobEnd | JobFailure | JobRef) -> tuple[int, int]:
    if isinstance(end, JobEnd):
        return end.job.id, end.job.token
    return end.ref if isinstance(end, JobFailure) else end


def _flushable(ends: list[JobEnd]) -> int:
    """How many of these leave together: bounded in number and in size."""
    size = 0
    for count, end in enumerate(ends[:FLUSH_MAX], start=1):
        if end.result is not None:
            size += len(end.result)
            if size > FLUSH_CHARACTERS:
                return count
    return min(len(ends), FLUSH_MAX)
