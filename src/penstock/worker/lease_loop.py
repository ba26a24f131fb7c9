# SPDX-License-Identifier: Apache-2.0
"""Which jobs does a worker ask the store for, and what does it know to be left there?

One call is on its way at a time. What the store had nothing of is not asked for again until
somebody says that there may be something new.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence

from penstock import failpoints
from penstock.clock import MICROSECONDS, Clock
from penstock.errors import TRANSIENT, LeaseLost, PenstockError, StoreError, StoreUnknown
from penstock.model.job import LeasedJob, WorkerId
from penstock.model.lease import BlockedKey, Caps, JobRef, LeaseBatch, LeaseRequest
from penstock.stores.protocol import JobStore, Store
from penstock.stores.retry import StoreRetry
from penstock.stores.store_future import Reply
from penstock.timers import Timer
from penstock.worker.completer import Completer
from penstock.worker.drain import Drain
from penstock.worker.executor import JobExecutor
from penstock.worker.parts import Background, WorkerConfig
from penstock.worker.prefetch import PrefetchWindow
from penstock.worker.registration import Registration

IDLE_SECONDS = 1.0  # how long an idle worker waits for work before it looks around
HELD_BACK_SECONDS = 0.1  # the same while it passes over some jobs, and is told of all of them
BUDGET_SECONDS = 0.5  # the same if that may last for hours
WAITS = "Leasing has to wait"


class IdleWait:
    """Owns the wait for work. Belongs to one loop."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        retry: StoreRetry,
        woken: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._retry = retry
        self._delay = retry.delay()
        self._woken = woken
        self._failed = failed
        self._task: asyncio.Task[None] | None = None
        self._until = 0.0  # when the present wait ends, at the latest; by the wall clock
        self._alarm = Timer(self.cancel, clock.monotonic)

    @property
    def waits(self) -> bool:
        return self._task is not None

    def wait(
        self, next_due_at: int | None, *, held_back: bool = False, by_budget: bool = False
    ) -> None:
        """Sleep until the store says that there may be something, or something is due.

        A worker that holds some jobs back only sleeps: the store would tell it of those.
        """
        if self._task is not None:
            return
        seconds = BUDGET_SECONDS if by_budget else HELD_BACK_SECONDS
        waiting = self._sleep(seconds) if held_back else self._wait(next_due_at)
        self._task = asyncio.get_running_loop().create_task(waiting)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def due(self, at: int) -> None:
        """Something will be due that the store has not told of; wait no longer than until then."""
        if self._task is None or at / MICROSECONDS >= self._until:
            return
        self._until = at / MICROSECONDS
        left = max(self._until - self._clock.now(), 0.0)
        self._alarm.set(self._clock.monotonic() + left)

    def _ended(self) -> None:
        self._task = None
        self._alarm.cancel()
        self._woken()

    async def _wait(self, next_due_at: int | None) -> None:
        seconds = IDLE_SECONDS
        if next_due_at is not None:
            left = next_due_at / MICROSECONDS - self._clock.now()
            seconds = min(IDLE_SECONDS, max(left, 0.001))
        self._until = self._clock.now() + seconds
        try:
            await self._store.wait_for_work(seconds)
        except TRANSIENT as error:
            await self.back_off(error)
        except Exception as error:
            self._failed(error)
        finally:
            self._ended()

    async def _sleep(self, seconds: float) -> None:
        try:
            await self._clock.sleep(seconds)
        finally:
            self._ended()

    async def back_off(self, error: StoreError) -> None:
        """The store cannot say now whether there is something."""
        await self._retry.pause(WAITS, error, self._delay)

    def answered(self) -> None:
        self._delay.reset()
        self._retry.answered(WAITS)


LOOKS_SECONDS = (0.0, 5.0, 60.0)  # after a lease whose fate is unknown

log = logging.getLogger("penstock.worker")


class UnknownLeases:
    """Owns the looks that are due. Belongs to one loop."""

    def __init__(
        self,
        store: JobStore,
        clock: Clock,
        known: Callable[[], Collection[tuple[int, int]]],
        release: Callable[[JobRef], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._known = known
        self._release = release
        self._looks: list[float] = []

    @property
    def due(self) -> bool:
        return bool(self._looks) and self._clock.monotonic() >= self._looks[0]

    def doubt(self) -> None:
        """The fate of a lease call is unknown."""
        now = self._clock.monotonic()
        self._looks = [now + seconds for seconds in LOOKS_SECONDS]

    def forget(self) -> None:
        """There is a new name, and it holds nothing."""
        self._looks = []

    async def look(self, worker: WorkerId) -> int:
        """Give back what this worker holds and does not know; how many jobs that were.

        No lease call may be on its way meanwhile.
        """
        held = await self._store.leases(worker)
        known = self._known()
        unknown = [ref for ref in held if ref not in known]
        for ref in unknown:
            self._release(ref)
        self._looks = self._looks[1:]
        if unknown:
            log.warning("%d job(s) that were leased in vain are given back.", len(unknown))
        return len(unknown)


#: Jobs have come for the worker of this name; what must happen before some of them may start.
Taken = Callable[[WorkerId, Sequence[LeasedJob]], Awaitable[None] | None]


class LeaseLoop:
    """Owns the lease calls of one worker. Belongs to one loop."""

    def __init__(
        self,
        config: WorkerConfig,
        tasks: tuple[str, ...],
        store: Store,
        caps: Caps,
        clock: Clock,
        retry: StoreRetry,
        name: Registration,
        window: PrefetchWindow,
        slots: JobExecutor,
        acks: Completer,
        drain: Drain,
        background: Background,
        *,
        taken: Taken,
        lose: Callable[[], None],
        fail: Callable[[BaseException], None],
        wake: Callable[[], None],
    ) -> None:
        self._config = config
        self._tasks = tasks
        self._store = store
        self._caps = caps
        self._name = name
        self._window = window
        self._slots = slots
        self._acks = acks
        self._drain = drain
        self._background = background
        self._taken = taken
        self._lose = lose
        self._fail = fail
        self._wake = wake
        self._idling = IdleWait(store, clock, retry, self.look_again, fail)
        self._reclaiming = UnknownLeases(store, clock, self._known, acks.add)
        self._exhausted: frozenset[str] = frozenset()  # tasks of which there is nothing more
        self._suspects = 0
        self.busy = False  # a call is on its way
        #: What the last call said.
        self.knows_more = True
        self.blocked: tuple[BlockedKey, ...] = ()
        self.paused = False

    @property
    def is_idle(self) -> bool:
        """The store had nothing more, and nothing is asked of it."""
        return not self.busy and self._idling.waits

    @property
    def found_nothing(self) -> bool:
        """Is nothing left, as far as the last calls told?"""
        return bool(self._exhausted)

    def look_again(self) -> None:
        """There may be something new."""
        self._exhausted = frozenset()
        self._wake()

    def due(self, at: int) -> None:
        """A tick was armed: it will be due then."""
        self._drain.due(at)
        self._idling.due(at)

    def forget(self) -> None:
        """There is a new name, and it holds nothing."""
        self._reclaiming.forget()

    def cancel(self) -> None:
        self._idling.cancel()

    def ask(self) -> None:
        """Lease what there is room for, or wait until there may be something."""
        if self._reclaiming.due:
            self.busy = True  # no lease call beside it
            self._background.spawn(self._reclaim())
            return
        solo = self._config.solo or self._solo_turn()
        if solo:
            if self._is_occupied() or self._exhausted:
                self._wait()
                return
            names, limit = self._window.may_be_leased(self._tasks), 1
            if not names:
                self._exhausted = frozenset(self._tasks)
                self._wait(held_back=True)
                return
        else:
            if self._config.runs_suspects and self._suspects:
                return  # let what runs come to its end; the suspect's turn is next
            names, limit = self._window.wanted(self._exhausted)
            held_back = bool(self._window.held_back)
            if limit <= 0:
                if held_back or not self._tasks:  # what is left may be nothing at all
                    self._wait(held_back=True)
                return
            if self._exhausted.issuperset(names):
                self._wait(held_back=held_back)
                return
        self.busy = True
        request = LeaseRequest(
            worker=self._name.worker_id,
            tasks=names,
            limit=limit,
            caps=self._caps,
            solo=solo,
            weights=self._window.weights,
        )
        self._background.spawn(self._lease(request, self._store.lease(request)))

    def _wait(self, *, held_back: bool = False) -> None:
        by_budget = self._window.is_held_back_by_budget_only
        self._idling.wait(self._drain.next_due_at, held_back=held_back, by_budget=by_budget)

    def _is_occupied(self) -> bool:
        return bool(self._slots.running or len(self._window) or self._acks.pending)

    def _solo_turn(self) -> bool:
        """Without a supervisor a suspect runs here, when nothing else does."""
        return bool(self._config.runs_suspects and self._suspects and not self._is_occupied())

    def _known(self) -> set[tuple[int, int]]:
        """Every lease that this worker knows it holds."""
        return self._window.refs().union(self._slots.running, self._acks.refs())

    async def _lease(self, request: LeaseRequest, reply: Reply[LeaseBatch]) -> None:
        worker = request.worker
        try:
            batch = await reply
        except TRANSIENT as error:
            if isinstance(error, StoreUnknown) and worker == self._name.worker_id:
                self._reclaiming.doubt()
            await self._idling.back_off(error)
        except LeaseLost:
            if worker == self._name.worker_id:
                self._lose()
        except PenstockError as error:
            self._fail(error)
        else:
            self._idling.answered()
            preparing = self._leased(batch, request)
            if preparing is not None:
                await preparing
        finally:
            self.busy = False
            self._wake()

    async def _reclaim(self) -> None:
        try:
            await self._reclaiming.look(self._name.worker_id)
        except TRANSIENT as error:
            await self._idling.back_off(error)
        finally:
            self.busy = False
            self._wake()

    def _leased(self, batch: LeaseBatch, request: LeaseRequest) -> Awaitable[None] | None:
        failpoints.hit("lease.committed")
        self._suspects = batch.suspects
        self.knows_more, self.blocked, self.paused = batch.more, batch.blocked, batch.paused
        if request.solo:  # while one runs, it is the only one, also if it was the last
            self._suspects = max(batch.suspects, 1) if batch.jobs else 0
        # A suspect's turn says nothing about the others.
        if batch.more:
            self._exhausted = frozenset()
        elif self._config.solo or not request.solo:
            self._exhausted = self._exhausted.union(request.tasks)
        self._drain.note(batch)
        return self._taken(request.worker, batch.jobs)
