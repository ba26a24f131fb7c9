# SPDX-License-Identifier: Apache-2.0
"""The lease loop: which jobs a worker asks the store for, and how it waits while there are none.

One call is on its way at a time. What the store had nothing of is not asked for again until
somebody says that there may be something new.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from penstock import failpoints
from penstock.clock import MICROSECONDS, Clock
from penstock.errors import TRANSIENT, LeaseLost, PenstockError, StoreError, StoreUnknown
from penstock.model.lease import BlockedKey, LeaseBatch, LeaseRequest
from penstock.model.worker import FULL_SHOWN
from penstock.sentences import command
from penstock.stores.store_future import Reply
from penstock.timers import Timer
from penstock.worker.completer import Completer
from penstock.worker.executor import JobExecutor
from penstock.worker.parts import WorkerConfig, WorkerParts
from penstock.worker.prefetch import PrefetchWindow
from penstock.worker.registration import Registration

IDLE_SECONDS = 1.0  # how long an idle worker waits for work before it looks around
HELD_BACK_SECONDS = 0.1  # the same while it passes over some jobs, and is told of all of them
LONG_HELD_SECONDS = 0.5  # the same if that may last for hours
WAITS = "Leasing has to wait"
LOOKS_SECONDS = (0.0, 5.0, 60.0)  # after a lease whose fate is unknown
SAY_AFTER_SECONDS = 10.0  # of nothing but waiting for full limits
SAY_AGAIN_SECONDS = 3600.0  # the same reason, while it lasts or when it comes again
KEYS_NAMED_MAX = 3
HOLDERS_NAMED_MAX = 3

log = logging.getLogger("penstock.worker")


class IdleWait:
    """Owns the wait for work. Belongs to one loop."""

    def __init__(self, parts: WorkerParts, woken: Callable[[], None]) -> None:
        self._store = parts.store
        self._clock = parts.clock
        self._retry = parts.retry
        self._delay = parts.retry.delay()
        self._loop = parts.loop
        self._woken = woken  # the wait is over
        self._task: asyncio.Task[None] | None = None
        self._until = 0.0  # when the present wait ends, at the latest; by the wall clock
        self._alarm = Timer(self.cancel, parts.clock.monotonic)
        self._has_alarm = False

    @property
    def waits(self) -> bool:
        return self._task is not None

    def wait(
        self, next_due_at: int | None, *, held_back: bool = False, for_long: bool = False
    ) -> None:
        """Sleep until the store says that there may be something, or something is due.

        A worker that holds some jobs back only sleeps: the store would tell it of those. What its
        own ends make room for ends that sleep (`LeaseLoop.ask`).
        """
        if self._task is not None:
            return
        seconds = LONG_HELD_SECONDS if for_long else HELD_BACK_SECONDS
        waiting = self._sleep(seconds, next_due_at) if held_back else self._wait(next_due_at)
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
        self._has_alarm = True
        self._alarm.set(self._clock.monotonic() + left)

    def _ended(self) -> None:
        self._task = None
        if self._has_alarm:
            self._has_alarm = False
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
            self._loop.fail(error)
        finally:
            self._ended()

    async def _sleep(self, seconds: float, next_due_at: int | None) -> None:
        if next_due_at is not None:
            left = next_due_at / MICROSECONDS - self._clock.now()
            seconds = min(seconds, left) if left > 0 else seconds  # else it is held back itself
        self._until = self._clock.now() + seconds
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


class UnknownLeases:
    """Owns when to look for jobs that a lease call may have taken without our hearing of it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
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

    def looked(self) -> None:
        """One look is done."""
        self._looks = self._looks[1:]


class FullLimits:
    """Keeps what the last lease call said, and tells once why nothing can be leased.

    A limit of 0 is told at once: it ends by an operator's doing only.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._blocked: tuple[BlockedKey, ...] = ()
        self._empty_since: float | None = None
        self._told: set[str] = set()  # keys, until they have room again

    def note(self, batch: LeaseBatch) -> None:
        """Take in the answer to a lease call."""
        now = self._clock.monotonic()
        self._blocked = batch.blocked
        self._told.intersection_update(blocked.limit_key for blocked in batch.blocked)
        if batch.jobs or not batch.blocked:
            self._empty_since = None
        elif self._empty_since is None:
            self._empty_since = now
        late = self._empty_since is not None and now - self._empty_since >= SAY_AFTER_SECONDS
        self._tell([blocked for blocked in batch.blocked if late or blocked.cap <= 0])

    def _tell(self, found: Sequence[BlockedKey]) -> None:
        news = [blocked for blocked in found if blocked.limit_key not in self._told]
        if news:
            self._told.update(blocked.limit_key for blocked in news)
            log.info("Jobs wait for %s.", _named(news))

    def shown(self) -> dict[str, int]:
        """Some of the limits that held jobs back, and what they allow."""
        return {blocked.limit_key: blocked.cap for blocked in self._blocked[:FULL_SHOWN]}

    def reason(self) -> str:
        """Why ready jobs are not handed out, as far as is known here."""
        return (
            f"waiting for {_named(self._blocked)}" if self._blocked else "others are served first"
        )


def _named(found: Sequence[BlockedKey]) -> str:
    names = "; ".join(_one(blocked) for blocked in found[:KEYS_NAMED_MAX])
    more = len(found) - KEYS_NAMED_MAX
    return names + (f"; and {more} more full limits" if more > 0 else "")


def _one(blocked: BlockedKey) -> str:
    if blocked.cap <= 0:
        return f"the limit {blocked.limit_key!r}, which is 0: nothing runs until it is raised"
    holders = ", ".join(map(repr, blocked.holders[:HOLDERS_NAMED_MAX]))
    more = " and others" if len(blocked.holders) > HOLDERS_NAMED_MAX else ""
    return f"the limit {blocked.limit_key!r} of {blocked.cap}, held by {holders}{more}"


def paused_reason() -> str:
    return f"the queue is paused; '{command('queue', 'resume')}' lets it go on."


class WaitLog:
    """Logs why a worker waits, each reason once an hour."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._said: dict[str, float] = {}  # which reasons, and when

    @property
    def is_empty(self) -> bool:
        return not self._said

    def say(self, reason: str) -> None:
        kind = _without_numbers(reason)  # that a number falls is no news
        now = self._clock.monotonic()
        if now >= self._said.get(kind, -SAY_AGAIN_SECONDS) + SAY_AGAIN_SECONDS:
            log.info("Waiting: %s", reason)
            self._said[kind] = now

    def forget(self, reason: str) -> None:
        """It is news when it comes again."""
        self._said.pop(_without_numbers(reason), None)


def _without_numbers(reason: str) -> str:
    return "".join(c for c in reason if not c.isdigit())


class LeaseLoop:
    """Owns the lease calls of one worker. Belongs to one loop."""

    def __init__(
        self,
        config: WorkerConfig,
        parts: WorkerParts,
        registration: Registration,
        window: PrefetchWindow,
        executor: JobExecutor,
        completer: Completer,
    ) -> None:
        self._config = config
        self._tasks = registration.tasks
        self._store = parts.store
        self._caps = parts.caps
        self._loop = parts.loop
        self._registration = registration
        self._window = window
        self._executor = executor
        self._completer = completer
        self._idle_wait = IdleWait(parts, self.look_again)
        self._unknown = UnknownLeases(parts.clock)
        self.full = FullLimits(parts.clock)
        self.wait_log = WaitLog(parts.clock)
        self._exhausted: frozenset[str] = frozenset()  # tasks of which there is nothing more
        self._suspects = 0
        self._flushes = 0  # of the completer, as far as was looked at what they made room for
        self._cell: int | None = None  # of the suspects that run here
        self.busy = False  # a call is on its way
        self.next_due_at: int | None = None  # of what was not handed out
        #: What the last call said.
        self.knows_more = True
        self.blocked: tuple[BlockedKey, ...] = ()
        self.paused = False

    @property
    def is_idle(self) -> bool:
        """The store had nothing more, and nothing is asked of it."""
        return not self.busy and self._idle_wait.waits

    @property
    def found_nothing(self) -> bool:
        """Nothing is left, as far as the last calls told."""
        asked = set(self._tasks) - self._window.held_back
        return self._cell is None and self._exhausted.issuperset(asked)

    def look_again(self) -> None:
        """There may be something new."""
        self._exhausted = frozenset()
        self._loop.wake()

    def due(self, at: int) -> None:
        """A tick was armed: it will be due then."""
        if self.next_due_at is None or at < self.next_due_at:
            self.next_due_at = at
        self._idle_wait.due(at)

    def forget(self) -> None:
        """There is a new name, and it holds nothing."""
        self._unknown.forget()

    def cancel(self) -> None:
        self._idle_wait.cancel()

    def ask(self) -> None:
        """Lease what there is room for, or wait until there may be something."""
        if self._window.take_news() or self._has_made_room():
            self._exhausted = frozenset()
        if self._unknown.due:
            self.busy = True  # no lease call beside it
            self._loop.spawn(self._reclaim())
            return
        quarantine = self._may_take_suspects()
        if quarantine is None:
            return
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
            worker=self._registration.worker_id,
            tasks=names,
            limit=limit,
            caps=self._caps,
            quarantine=quarantine,
            cell=self._cell or 0,
            weights=self._window.weights,
        )
        self._loop.spawn(self._lease(request, self._store.lease(request)))

    def _has_made_room(self) -> bool:
        """Whether ends became durable while jobs are held back; otherwise the store tells of it."""
        if self._flushes == self._completer.flushes:
            return False
        self._flushes = self._completer.flushes
        return bool(self._window.held_back)

    def _wait(self, *, held_back: bool = False) -> None:
        for_long = self._window.holds_for_long
        self._idle_wait.wait(self.next_due_at, held_back=held_back, for_long=for_long)

    def _is_occupied(self) -> bool:
        return bool(self._executor.running or len(self._window) or self._completer.pending)

    def _may_take_suspects(self) -> bool | None:
        """Whether to ask for suspects or for ready jobs; None: for nothing before what runs ends.

        Nothing runs beside suspects but others of their cell. Without a supervisor they have their
        turn when nothing else runs.
        """
        if self._cell is not None and not self._is_occupied():
            self._cell = None
            self._exhausted = frozenset()
        if self._cell is not None:
            return True if self._cell else None
        if self._config.solo:
            return True
        if not (self._config.runs_suspects and self._suspects):
            return False
        return None if self._is_occupied() else True

    def _known(self) -> set[tuple[int, int]]:
        """Every lease that this worker knows it holds."""
        return self._window.refs().union(self._executor.running, self._completer.refs())

    async def _lease(self, request: LeaseRequest, reply: Reply[LeaseBatch]) -> None:
        worker = request.worker
        try:
            batch = await reply
        except TRANSIENT as error:
            if isinstance(error, StoreUnknown) and worker == self._registration.worker_id:
                self._unknown.doubt()
            await self._idle_wait.back_off(error)
        except LeaseLost:
            if worker == self._registration.worker_id:
                self._registration.is_lost = True
        except PenstockError as error:
            self._loop.fail(error)
        else:
            self._idle_wait.answered()
            preparing = self._leased(batch, request)
            if preparing is not None:
                await preparing
        finally:
            self.busy = False
            self._loop.wake()

    async def _reclaim(self) -> None:
        try:
            await self._release_unknown()
        except TRANSIENT as error:
            await self._idle_wait.back_off(error)
        finally:
            self.busy = False
            self._loop.wake()

    async def _release_unknown(self) -> None:
        """Give back what this worker holds and does not know; no lease call is on its way."""
        held = await self._store.leases(self._registration.worker_id)
        known = self._known()
        unknown = [ref for ref in held if ref not in known]
        for ref in unknown:
            self._completer.add(ref)
        self._unknown.looked()
        if unknown:
            log.warning(
                "The answer to a lease call was lost; what it leased (%s) is released.",
                len(unknown),
            )

    def _leased(self, batch: LeaseBatch, request: LeaseRequest) -> Awaitable[None] | None:
        failpoints.hit("lease.committed")
        self._suspects = batch.suspects
        self.knows_more, self.blocked, self.paused = batch.more, batch.blocked, batch.paused
        if request.quarantine and batch.jobs:
            self._cell = batch.jobs[0].cell
        elif request.quarantine and self._cell is None:
            self._suspects = 0  # none that could run here
        # A suspect's turn says nothing about the others.
        if batch.more:
            self._exhausted = frozenset()
        elif self._config.solo or self._cell is not None or not request.quarantine:
            self._exhausted = self._exhausted.union(request.tasks)
        self._note(batch)
        if request.worker != self._registration.worker_id or self._registration.losing:
            return None  # the lease was lost meanwhile; what came belongs to nobody
        return self._window.take(batch.jobs)

    def _note(self, batch: LeaseBatch) -> None:
        """Take in what a lease call said about what it did not hand out."""
        self.next_due_at = batch.next_due_at
        self.full.note(batch)
        if batch.paused:
            self.wait_log.say(paused_reason())
        elif not self.wait_log.is_empty:
            self.wait_log.forget(paused_reason())
