# SPDX-License-Identifier: Apache-2.0
"""What the parts of a worker share: configuration, services, background tasks, totals."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Protocol, TypeVar

from penstock.clock import Clock
from penstock.events.sink import SchedulerEvents
from penstock.ids import IdSource
from penstock.model.job import WorkerId
from penstock.model.lease import MAX_CRASHES, Caps
from penstock.model.run import CapacityValue
from penstock.retry.policy import RetryPolicy
from penstock.stores.protocol import Store
from penstock.stores.retry import StoreRetry
from penstock.worker.attempt import Attempt, AttemptEnd
from penstock.worker.observer import Tick, WorkerObserver
from penstock.worker.process_executor import ProcessPool
from penstock.worker.provider_run import ProviderRun
from penstock.worker.scheduler import AsyncTaskScheduler
from penstock.worker.slot_table import SlotTable
from penstock.worker.start_budget import StartBudget
from penstock.worker.thread_executor import ThreadRunner

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """What a worker is told at its start."""

    run_id: str
    slots: Mapping[str, int]  # by kind: async, thread, process
    lease_ttl_seconds: float
    grace_seconds: float
    app: str = ""  # whose jobs it runs, and whose budgets it spends
    slots_max: int | None = None  # of all kinds together; None: as many as there are of each
    beat_seconds: float = 0.0  # between two renewals of its lease; 0: nobody knows
    max_crashes: int = MAX_CRASHES  # of jobs that run alone here
    place: int = 0  # which of the workers of its run it is; who replaces it has the same
    drain: bool = False
    until: str | None = None  # drains until the job of this key has ended, whatever else is left
    solo: bool = False  # runs suspects only, one cell at a time, and ends when there are none
    supervisor_pid: int = 0  # who reports its death; 0: nobody
    runs_suspects: bool = False  # runs suspects itself, when nothing else runs (no supervisor)
    capacity: Mapping[str, CapacityValue] = field(default_factory=dict)  # for whoever asks why
    journal_retention_seconds: float | None = None  # None: no call is kept
    plan: str | None = None  # of a daemon: the mark of the units that it has planned
    unserved: frozenset[str] = frozenset()  # tasks for others: no part of their provider is ours

    @property
    def slots_in_all(self) -> int:
        """How many tasks may run at once, of whatever kinds."""
        most = sum(self.slots.values())
        return most if self.slots_max is None else min(most, self.slots_max)


class LeaseKeeper(Protocol):
    """Whoever renews this worker's lease, outside of the loop."""

    def adopt(self, worker: WorkerId, until_monotonic: float) -> None:
        """Renew this one from now on."""
        ...

    def believed_until(self) -> float:
        """The monotonic time until which the lease is certain."""
        ...


class WorkerLoop:
    """Owns the wake-up, the background tasks and the failure of one worker's loop.

    No background task is lost, and no failure of one stays unseen.
    """

    def __init__(self) -> None:
        self._woken = asyncio.Event()
        #: Lets the loop turn, since something has happened; bound here, as every end calls it.
        self.wake: Callable[[], None] = self._woken.set
        self._tasks: set[asyncio.Task[Any]] = set()
        self.scheduler: AsyncTaskScheduler | None = None  # once the worker is put together
        self.failure: BaseException | None = None  # the first

    def clear(self) -> None:
        """What happened before is known."""
        self._woken.clear()

    async def wait(self) -> None:
        """Until something happens."""
        await self._woken.wait()

    def fail(self, error: BaseException) -> None:
        """End the worker with an error."""
        self.failure = self.failure or error
        self._woken.set()

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        """What nobody expected ends the worker: without this part of it, it would only hang."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)


class Observers:
    """Passes each event on, in the order of subscription, to those who have a method for it."""

    def __init__(self) -> None:
        self._turned: list[Callable[[bool], None]] = []
        self._started: list[Callable[[Attempt], None]] = []
        self._ended: list[Callable[[Attempt, AttemptEnd], None]] = []
        self._ticked: list[Callable[[Tick], None]] = []

    def subscribe(self, observers: Iterable[WorkerObserver]) -> None:
        """Let these hear of what happens from now on."""
        none = WorkerObserver
        for one in observers:
            own = type(one)
            if own.turned is not none.turned:
                self._turned.append(one.turned)
            if own.started is not none.started:
                self._started.append(one.started)
            if own.ended is not none.ended:
                self._ended.append(one.ended)
            if own.ticked is not none.ticked:
                self._ticked.append(one.ticked)

    def turned(self, goes_on: bool) -> None:
        for tell in self._turned:
            tell(goes_on)

    def started(self, attempt: Attempt) -> None:
        for tell in self._started:
            tell(attempt)

    def ended(self, attempt: Attempt, end: AttemptEnd) -> None:
        for tell in self._ended:
            tell(attempt, end)

    def ticked(self, tick: Tick) -> None:
        for tell in self._ticked:
            tell(tick)


class Stopping(Enum):
    """How a worker is told to stop; GRACEFUL is a graceful shutdown."""

    RECYCLE = 0  # lease nothing more, and end when what runs has ended: another one takes over
    GRACEFUL = 1
    NOW = 2


class SupervisorLink(NamedTuple):
    """What a worker says to its supervisor of its own accord."""

    recycle: Callable[[str], None]  # why another worker is to take its place
    tell_once: Callable[[str, str], None]  # a subject, and what one worker of a run says of it


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """What a worker is given by its process: store, clocks, runners, and its own loop."""

    store: Store
    caps: Caps
    keeper: LeaseKeeper
    table: SlotTable
    threads: ThreadRunner
    processes: ProcessPool | None  # None: bodies of process tasks run where all others run
    clock: Clock
    ids: IdSource
    policy: RetryPolicy
    events: SchedulerEvents
    retry: StoreRetry
    loop: WorkerLoop
    observers: Observers
    providers: ProviderRun | None = None
    begin: Callable[[], Awaitable[None]] | None = None  # awaited once, before the first job
    supervisor: SupervisorLink | None = None  # None: nobody would start another worker
    starts: StartBudget | None = None  # of the run; None: it may start any number of jobs


@dataclass(slots=True)
class Totals:
    """What a worker has done so far."""

    ended: int = 0  # attempts whose end is durable
    retries: int = 0  # attempts that failed, and may be tried again
    put_back: int = 0  # attempts that a provider refused; they come back uncharged
    refused: int = 0  # ends that the store did not take
