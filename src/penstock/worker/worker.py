# SPDX-License-Identifier: Apache-2.0
"""What is one worker made of?

It leases, fills slots, acknowledges, and repeats; everything it does is caused by an event: an
answer of the store, an end, a new job, a deadline, a command. There is no fixed sleep.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from penstock.builds.slice_inputs import SliceReads
from penstock.clock import Clock
from penstock.definitions.task import Task
from penstock.errors import PenstockError
from penstock.events.kinds import Correlation, SchedulerEventKind
from penstock.events.sink import SchedulerEvents
from penstock.ids import IdSource
from penstock.model.job import LeasedJob, WorkerId
from penstock.model.lease import Caps, JobEnd, JobFailure, JobRef, Verdict
from penstock.model.spending import BudgetStop
from penstock.requests.journal.retention import JournalRetention
from penstock.retry.policy import RetryPolicy
from penstock.schedules.preflight_recheck import PreflightRecheck
from penstock.schedules.preflight_results import CheckedValues
from penstock.schedules.tick import Ticks
from penstock.stores.protocol import Store
from penstock.stores.retry import StoreRetry
from penstock.worker.attempt import NEVER, Attempt, AttemptEnd, Stop, TaskLimits
from penstock.worker.attempt_log import AttemptLog
from penstock.worker.bottleneck_probe import BottleneckProbe
from penstock.worker.budgets import BudgetHold
from penstock.worker.cancellations import Cancellations
from penstock.worker.completer import Completer
from penstock.worker.core import WorkerCore
from penstock.worker.drain import Drain
from penstock.worker.executor import JobExecutor
from penstock.worker.lease_loop import LeaseLoop
from penstock.worker.maintenance import Maintenance
from penstock.worker.observer import Observers, Tick
from penstock.worker.parts import Background, LeaseKeeper, Stopping, Totals, WorkerConfig
from penstock.worker.prefetch import PrefetchWindow
from penstock.worker.process_executor import ProcessRunner
from penstock.worker.provider_run import ProviderRun
from penstock.worker.recycling import Recycling
from penstock.worker.registration import Registration
from penstock.worker.run_end import RunEnd
from penstock.worker.run_record import CapacityRecord, RunRecord
from penstock.worker.slot_lending import SlotLending
from penstock.worker.slot_table import SlotTable
from penstock.worker.status import StatusRow
from penstock.worker.thread_executor import ThreadRunner

TICK_SECONDS = 0.25  # how often the loop shows that it is alive and looks at its own lease
STOPPED_SECONDS = 3.0  # after the grace, what does not end is left behind
MEANWHILE = "Running jobs go on; none is started until it is reachable again."

log = logging.getLogger("penstock.worker")


class Worker:
    """Owns the loop of one worker. Does not renew its lease, and knows no signals."""

    def __init__(
        self,
        config: WorkerConfig,
        tasks: Mapping[str, tuple[Task[..., Any], TaskLimits]],
        store: Store,
        caps: Caps,
        keeper: LeaseKeeper,
        table: SlotTable,
        threads: ThreadRunner,
        processes: ProcessRunner | None,
        clock: Clock,
        ids: IdSource,
        policy: RetryPolicy,
        events: SchedulerEvents,
        recycle: Callable[[str], None] | None = None,
        providers: ProviderRun | None = None,
        checked: CheckedValues | None = None,
    ) -> None:
        self._providers = providers
        self._checked = checked
        self._config = config
        known, tasks = tasks, {n: tasks[n] for n in tasks if n not in config.unserved}
        self._task_names = tuple(sorted(tasks))
        self._store = store
        self._keeper = keeper
        self._table = table
        self._threads = threads
        self._processes = processes
        self._clock = clock
        self._retry = StoreRetry(log, clock, ids.random, MEANWHILE)
        self._name = Registration(
            config, self._task_names, store, keeper, table, clock, ids, self._retry
        )
        self._events = events
        self._correlation = Correlation(config.run_id)
        self.totals = Totals()
        self._observers = Observers()
        self._telling = AttemptLog(events, config.run_id)
        self._wake = asyncio.Event()
        beside = self._background = Background(self._fail)
        self._ticks = Ticks(
            tasks,
            store,
            policy,
            ids.random,
            self._retry,
            self._telling,
            lambda jobs: self._window.add(jobs),
            self._stop_for,
        )
        self._reads = SliceReads(tasks, store, clock, self._retry, threads, self._ticks)
        self._acks = Completer(
            store,
            self._retry,
            self._wake.set,
            self._refused,
            self.totals.accept,
            self._ticks.spoilt,
            (lambda at: self._leasing.due(at)) if self._ticks.names else None,
        )
        self._window = PrefetchWindow(
            config.run_id,
            tasks,
            config.slots,
            events,
            clock,
            self._wake.set,
            self._acks.add,
            self._fail,
            None if providers is None else providers.pressure,
        )
        lending: SlotLending | None = None
        scheduler = self._window.scheduler
        if providers is not None:
            lending = SlotLending(config.slots, clock.monotonic, scheduler.set_limit)
            providers.connect(scheduler.pressure_changed, lending, scheduler.bottleneck)
        self._slots = JobExecutor(
            tasks,
            config.slots,
            table,
            threads,
            processes,
            clock,
            policy,
            ids.random,
            self._observers,
            scheduler.release,
            self._attempt_ended,
            providers,
            lending,
            checked,
            None
            if checked is None
            else PreflightRecheck(checked, store, threads, clock, beside.spawn),
        )
        self.hold = BudgetHold(config.run_id, store, clock, self._window.hold_back)
        until = config.until
        self._drain = Drain(store, known, config.run_id, clock, self._retry, config.drain, until)
        self._leasing = LeaseLoop(
            config,
            self._task_names,
            store,
            caps,
            clock,
            self._retry,
            self._name,
            self._window,
            self._slots,
            self._acks,
            self._drain,
            self._background,
            taken=self._taken,
            lose=self._lose,
            fail=self._fail,
            wake=self._wake.set,
        )
        core = WorkerCore(
            config,
            tasks,
            store,
            clock,
            self._window,
            self._slots,
            self._acks,
            self._leasing,
            self._drain,
            self._background,
            self.totals,
            self._wake.set,
            providers,
        )
        status = StatusRow(core, caps, self.hold.refusals)
        cancellations = Cancellations(store, self._slots, self._acks.add, status.standing)
        self._window.connect(self._slots, cancellations.take)
        kept = None if config.solo else config.journal_retention_seconds
        pruning = None if kept is None else JournalRetention(store, clock, kept, ids.random)
        capacity = CapacityRecord(core, status)
        self._record = RunRecord(core, capacity)
        self._observers.subscribe(
            (
                self.hold,
                BottleneckProbe(core),
                capacity,
                self._record,
                self._telling,
                Maintenance(core, cancellations, pruning),
                status,
            )
        )
        if recycle is not None:
            self._observers.subscribe((Recycling(clock, self._slots, self.stop, recycle),))
        self._reads.connect(self._window, self._acks.add, beside.spawn, self._leasing.look_again)
        self._end = RunEnd(
            self._drain,
            self.hold,
            self._window,
            self._slots,
            self._acks,
            self._leasing,
            self._ticks,
            self._background,
            solo=config.solo,
            fail=self._fail,
            wake=self._wake.set,
        )
        self._stopping: Stopping | None = None
        self._stop_at = NEVER
        self._is_ready = False  # its providers are served
        self._failure: BaseException | None = None
        self.stops: tuple[BudgetStop, ...] = ()  # budgets that have ended its work
        self.ended_schedules: tuple[str, ...] = ()  # sentences: schedules that have ended its run

    def __repr__(self) -> str:
        return f"<Worker {self.worker_id} {self.running} running, {len(self._window)} waiting>"

    @property
    def worker_id(self) -> WorkerId:
        return self._name.worker_id

    @property
    def running(self) -> int:
        return len(self._slots.running)

    @property
    def left_behind(self) -> int:
        """Open jobs that a drain could not wait for: nobody knows their tasks."""
        return self._drain.left_behind

    def name_of(self, aio_task: asyncio.Task[object] | None) -> str:
        """Which job does this asyncio task run?"""
        return self._slots.name_of(aio_task)

    async def run(self) -> Totals:
        """Work until drained, stopped, or failed."""
        try:
            return await self._run()
        finally:
            if self._providers is not None:
                await self._providers.end()

    async def _run(self) -> Totals:
        self._name.losing = True  # nothing is ours before we have a name
        self._background.spawn(self._sign_on())
        ticker = self._background.spawn(self._tick())
        try:
            while not self._finished():
                self._wake.clear()
                self._turn()
                await self._wake.wait()
        except BaseException:
            # Somebody broke the loop from inside. A supervisor buries us, and suspects what ran; to
            # sign off in good order would hide it.
            if self._config.runs_suspects:
                await self._leave()
            raise
        finally:
            ticker.cancel()
        if self._failure is None and self._stopping is None and self.hold.tasks:
            self.stops = await self.hold.stops()
        if self._failure is None or isinstance(self._failure, PenstockError):
            await self._leave()
        if self._failure is not None:
            raise self._failure
        self._events.emit(SchedulerEventKind.SCHEDULER_JOB_COMPLETED, self._correlation)
        return self.totals

    def stop(self, how: Stopping) -> None:
        """Stop leasing and give back what has not started; NOW cancels what runs as well."""
        now = self._clock.monotonic()
        if self._stopping is None:
            for ref in (*self._window.clear(), *self._reads.clear()):
                self._acks.add(ref)
        if how is Stopping.NOW:
            self._stop_at = now
        elif how is Stopping.GRACEFUL:
            self._stop_at = min(self._stop_at, now + self._config.grace_seconds)
        self._stopping = how
        self._stop_hopeless()
        self._retry.wake()  # what waits for the store shall not hold up the end
        self._wake.set()

    def drain(self) -> None:
        """End when nothing is left."""
        self._drain.ends = True
        self._wake.set()

    def _stop_hopeless(self) -> None:
        """Give back what a stop need not wait for; a recycled worker waits for all."""
        if self._stop_at < NEVER:
            self._slots.stop_hopeless(self._stop_at - self._clock.monotonic())

    def _finished(self) -> bool:
        if self._failure is not None:
            return True
        if self._slots.running or self._acks.pending or self._leasing.busy:
            left_seconds = self._stop_at + STOPPED_SECONDS - self._clock.monotonic()
            return self._stopping is not None and left_seconds < 0
        return not len(self._window) if self._stopping is not None else self._end.is_reached

    async def _leave(self) -> None:
        """Give everything back, as far as the store lets us."""
        self._slots.stop_all(Stop.LOST)
        left = self._slots.forsake_all()
        self._threads.close()
        if self._processes is not None:
            self._processes.close()
        self._leasing.cancel()
        self._background.cancel()
        await asyncio.gather(
            self._record.end(self.worker_id, self.stops),
            self._name.sign_off(bodies_left=bool(left or self._slots.abandoned)),
        )

    async def _tick(self) -> None:
        """Show that the loop turns; look at our own lease, and at the deadlines."""
        late_seconds = 0.0
        while True:
            now = self._clock.monotonic()
            self._table.turn(now)
            if now >= self._keeper.believed_until():
                self._lose()
            self._slots.enforce_deadlines()
            self._stop_hopeless()
            if self._acks.failed is not None:
                self._failure = self._acks.failed
            self._observers.ticked(self._tick_now(late_seconds))
            if self._window.shrink():
                self._leasing.look_again()
            self._wake.set()
            deadline = self._slots.next_deadline()
            if not self._name.losing:
                deadline = min(deadline, self._keeper.believed_until())
            now = self._clock.monotonic()
            seconds = min(TICK_SECONDS, max(deadline - now, 0.001))
            await self._clock.sleep(seconds)
            late_seconds = max(self._clock.monotonic() - now - seconds, 0.0)

    def _tick_now(self, late_seconds: float = 0.0) -> Tick:
        is_registered = not self._name.losing
        return Tick(self.worker_id, is_registered, self._stopping is not None, late_seconds)

    def _lose(self) -> None:
        """Our lease may be over: nothing we hold is ours any more. Start again as somebody else."""
        if self._name.losing:
            return  # the tick and a lease call may both notice it
        self._name.losing = True
        log.error(
            "The lease of worker %s could not be renewed in time; its jobs are given up and it "
            "starts anew.",
            self.worker_id,
        )
        self._window.clear()
        self._reads.clear()
        self._acks.drop()
        self._slots.stop_all(Stop.LOST)
        self._slots.forsake_all()  # the same job may come back before its old body has ended
        self._leasing.forget()
        self._background.spawn(self._sign_on())

    async def _sign_on(self) -> None:
        first = not self.worker_id
        await self._name.sign_on()
        if first and self._checked is not None:
            await self._checked.read(self._store, self._retry)
        if first and self._providers is not None:
            await self._providers.begin()
        self._is_ready = True
        self._observers.ticked(self._tick_now())  # the run is known before it takes a job
        if first:
            self._events.emit(SchedulerEventKind.SCHEDULER_JOB_STARTED, self._correlation)
        self._wake.set()

    def _turn(self) -> None:
        """Start what can start, acknowledge what has ended, lease what there is room for."""
        ours = self._is_ready and not self._name.losing
        goes_on = ours and self._stopping is None and self._acks.takes_more
        if goes_on:
            self._window.scheduler.turn()
        self._acks.kick(self.worker_id)
        if goes_on and not self._leasing.busy:
            self._leasing.ask()
            self._end.look(self.worker_id)
        self._observers.turned(goes_on)

    def _taken(self, worker: WorkerId, jobs: Sequence[LeasedJob]) -> Awaitable[None] | None:
        """Jobs have come: for the window, for others if we stop, or for who we were."""
        if worker != self.worker_id or self._name.losing:
            return None  # the lease was lost meanwhile; what came belongs to nobody
        if self._stopping is not None:
            for job in jobs:
                self._acks.add(JobRef(job.id, job.token))
            return None
        return self._reads.take(jobs)

    def _stop_for(self, sentence: str) -> None:
        """A schedule has ended for good, and with it the run."""
        self.ended_schedules += (sentence,)
        if self._stopping is None:
            self.stop(Stopping.GRACEFUL)

    def _attempt_ended(self, attempt: Attempt, end: AttemptEnd) -> None:
        if end is not None:
            self._acks.add(end)
        self._window.ended(attempt.task.kind)
        self._observers.ended(attempt, end)
        if attempt.limits.recurring is None:
            self._end.stirred()
        else:
            self._ticks.ended(attempt.job, end)
        self._wake.set()

    def _refused(self, end: JobEnd | JobFailure, verdict: Verdict) -> None:
        self.totals.refused += 1
        if isinstance(end, JobEnd) and end.job.plan_id is not None and verdict is Verdict.STALE:
            self._acks.add(JobRef(end.job.id, end.job.token))  # its plan was, not its lease
        self._telling.refused(end, verdict)

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._wake.set()
