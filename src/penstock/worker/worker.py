# SPDX-License-Identifier: Apache-2.0
"""One worker: leases jobs, runs them in slots, acknowledges their ends, and repeats.

Everything it does is caused by an event: an answer of the store, an end, a new job, a deadline, a
command. There is no fixed sleep. Whatever only watches subscribes to its events.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from penstock.errors import PenstockError
from penstock.events.kinds import Correlation, SchedulerEventKind
from penstock.model.dataset import task_name
from penstock.model.job import WorkerId
from penstock.model.lease import JobEnd, JobFailure, JobRef, Verdict
from penstock.model.provider import ClosedAccount
from penstock.model.spending import BudgetStop
from penstock.model.task import SUBMISSION
from penstock.worker.accounting import BottleneckProbe, CapacityRecord, RequestWaits, RunRecord
from penstock.worker.accounts import AccountHold
from penstock.worker.attempt import NEVER, Attempt, AttemptEnd, Stop
from penstock.worker.attempt_log import AttemptLog, BypassedProviders, RefusedConnections
from penstock.worker.budgets import BudgetHold
from penstock.worker.cancellations import Cancellations
from penstock.worker.completer import Completer
from penstock.worker.cooldowns import KNOWN_SECONDS
from penstock.worker.core import WorkerCore
from penstock.worker.drain import Drain
from penstock.worker.executor import JobExecutor
from penstock.worker.kind import ServedTask
from penstock.worker.lease_loop import LeaseLoop
from penstock.worker.maintenance import Maintenance
from penstock.worker.observer import Tick
from penstock.worker.parts import Stopping, Totals, WorkerConfig, WorkerParts
from penstock.worker.prefetch import PrefetchWindow
from penstock.worker.recycling import Recycling
from penstock.worker.registration import Registration
from penstock.worker.slot_lending import SlotLending
from penstock.worker.status import StatusRow

TICK_SECONDS = 0.25  # how often the loop shows that it is alive and looks at its own lease
STOPPED_SECONDS = 3.0  # after the grace, what does not end is left behind

log = logging.getLogger("penstock.worker")


class Worker:
    """Owns the loop of one worker. Does not renew its lease, and knows no signals."""

    def __init__(
        self, config: WorkerConfig, tasks: Mapping[str, ServedTask], parts: WorkerParts
    ) -> None:
        """A worker that has not signed on yet.

        Args:
            config: what it is told.
            tasks: that the app has; it serves those that are not `config.unserved`.
            parts: what its process gives it.
        """
        self._config = config
        self._parts = parts
        self._tasks = {name: one for name, one in tasks.items() if name not in config.unserved}
        self._clock = parts.clock
        self._loop = parts.loop
        self._correlation = Correlation(config.run_id)
        self.totals = Totals()
        self._observers = parts.observers
        self._registration = Registration(config, tuple(sorted(self._tasks)), parts)
        self._completer = Completer(parts.store, parts.retry, parts.loop, self.totals, self)
        self._window = PrefetchWindow(
            config.run_id,
            self._tasks,
            config.slots,
            parts.events,
            parts.clock,
            parts.loop,
            self._completer.add,
            None if parts.providers is None else parts.providers.pressure,
        )
        scheduler, providers = self._window.scheduler, parts.providers
        scheduler.set_limit(SUBMISSION, config.slots_in_all)
        parts.loop.scheduler = scheduler
        slots, lending = (config.slots, config.slots_in_all), self._connect_providers()
        self._executor = JobExecutor(self._tasks, *slots, parts, scheduler, self._ended, lending)
        self._window.connect(self._executor, parts.starts)
        jobs = self._window, self._executor, self._completer
        self._lease_loop = LeaseLoop(config, parts, self._registration, *jobs)
        self.hold = BudgetHold(
            config.run_id, parts.store, parts.clock, self._window.hold_back, config.app
        )
        self.accounts = AccountHold(providers, self._tasks, self._window, parts.clock)
        holds = self.hold, self.accounts
        self._drain = Drain(config, parts, tasks, holds, *jobs, self._lease_loop)
        self._core = WorkerCore(
            config, parts, self._tasks, *jobs, self._lease_loop, self._drain, *holds, self.totals
        )
        self._log = AttemptLog(parts.events, config.run_id, self._tasks)
        self._status = StatusRow(self._core)
        self._record = RunRecord(self._core, CapacityRecord(self._core, self._status))
        self._cancellations = Cancellations(self._core, self._status)
        self._maintenance = Maintenance(self._core)
        self._recycling: Recycling | None = None
        if (supervisor := parts.supervisor) is not None:
            self._recycling = Recycling(parts.clock, self._executor, self.stop, supervisor.recycle)
        if providers is not None:
            bypassed = BypassedProviders(self._tasks, providers.paid)
            self._observers.subscribe((RequestWaits(self._core), bypassed))
        probe, record = BottleneckProbe(self._core), self._record
        refused = RefusedConnections(parts.clock, supervisor)
        self._observers.subscribe(
            (probe, record.capacity, record, self._log, refused, self._status)
        )
        self._stopping: Stopping | None = None
        self._stop_at = NEVER
        self._is_ready = False  # its providers are served
        self._needs_name = True  # as soon as nothing is left that forbids new work
        self.stops: tuple[BudgetStop, ...] = ()  # budgets that have ended its work
        self.closed_accounts: tuple[ClosedAccount, ...] = ()  # accounts that have
        self.ended_schedules: tuple[str, ...] = ()  # sentences: schedules that have ended its run

    def _connect_providers(self) -> SlotLending | None:
        """Let providers say which tasks may start, and lend slots; None: there are none."""
        providers, window = self._parts.providers, self._window
        if providers is None:
            return None
        give_up_seconds = {
            name: one.limits.policy.give_up_after_seconds for name, one in self._tasks.items()
        }
        slots, most = self._config.slots, self._config.slots_in_all
        return providers.connect(window.scheduler, slots, most, window.learn_use, give_up_seconds)

    def __repr__(self) -> str:
        return f"<Worker {self.worker_id} {self.running} running, {len(self._window)} waiting>"

    @property
    def worker_id(self) -> WorkerId:
        return self._registration.worker_id

    @property
    def running(self) -> int:
        return len(self._executor.running)

    @property
    def left_behind(self) -> int:
        """Open jobs that a drain could not wait for: nobody knows their tasks."""
        return self._drain.left_behind

    def name_of(self, aio_task: asyncio.Task[object] | None) -> str:
        """The job that an asyncio task runs, in words."""
        return self._executor.name_of(aio_task)

    async def run(self) -> Totals:
        """Work until drained, stopped, or failed."""
        try:
            return await self._run()
        finally:
            if self._parts.providers is not None:
                await self._parts.providers.end()

    async def _run(self) -> Totals:
        self._registration.losing = True  # nothing is ours before we have a name
        ticker = self._loop.spawn(self._tick())
        try:
            while not self._finished():
                self._loop.clear()
                self._turn()
                await self._loop.wait()
        except BaseException:
            # Somebody broke the loop from inside. A supervisor reaps us, and suspects what ran; to
            # sign off in good order would hide it.
            if self._config.runs_suspects:
                await self._leave()
            raise
        finally:
            ticker.cancel()
        if self._loop.failure is None and self._stopping is None and self.hold.tasks:
            self.stops = await self.hold.stops()
        if self._loop.failure is None and self._stopping is None and self._drain.is_out_of_money:
            self.closed_accounts = self.accounts.closed()
        if self._loop.failure is None or isinstance(self._loop.failure, PenstockError):
            await self._leave()
        if self._loop.failure is not None:
            raise self._loop.failure
        self._parts.events.emit(SchedulerEventKind.SCHEDULER_JOB_COMPLETED, self._correlation)
        return self.totals

    def stop(self, how: Stopping) -> None:
        """Stop leasing and give back what has not started; NOW cancels what runs as well."""
        now = self._clock.monotonic()
        if self._stopping is None:
            self._window.close()
        if how is Stopping.NOW:
            self._stop_at = now
        elif how is Stopping.GRACEFUL:
            self._stop_at = min(self._stop_at, now + self._config.grace_seconds)
        self._stopping = how
        self._stop_hopeless()
        self._parts.retry.wake()  # what waits for the store must not hold up the end
        self._loop.wake()

    def drain(self) -> None:
        """End when nothing is left."""
        self._drain.ends = True
        self._loop.wake()

    def _stop_hopeless(self) -> None:
        """Give back what a stop need not wait for; a recycled worker waits for all."""
        if self._stop_at < NEVER:
            self._executor.stop_hopeless(self._stop_at - self._clock.monotonic())

    def _finished(self) -> bool:
        if self._loop.failure is not None:
            return True
        if self._executor.running or self._completer.pending or self._lease_loop.busy:
            left_seconds = self._stop_at + STOPPED_SECONDS - self._clock.monotonic()
            return self._stopping is not None and left_seconds < 0
        return not len(self._window) if self._stopping is not None else self._drain.is_reached

    async def _leave(self) -> None:
        """Give everything back, as far as the store lets us."""
        self._executor.stop_all(Stop.LOST)
        left = self._executor.detach_all()
        self._parts.threads.close()
        if self._parts.processes is not None:
            self._parts.processes.close()
        self._lease_loop.cancel()
        self._loop.cancel()
        await asyncio.gather(
            self._record.end(self.worker_id, self.stops, self.closed_accounts),
            self._registration.sign_off(bodies_left=bool(left or self._executor.detached)),
        )

    async def _tick(self) -> None:
        """Show that the loop turns; look at our own lease, and at the deadlines."""
        late_seconds = 0.0
        while True:
            now = self._clock.monotonic()
            self._parts.table.turn(now)
            self._look_at_lease()
            self._executor.enforce_deadlines()
            self._stop_hopeless()
            if self._completer.failed is not None:
                self._loop.fail(self._completer.failed)
            self._look_around(late_seconds)
            self._end_if_all_started()
            if self._window.shrink():
                self._lease_loop.look_again()
            self._loop.wake()
            deadline = self._executor.next_deadline()
            if not self._registration.losing:
                deadline = min(deadline, self._parts.keeper.believed_until())
            now = self._clock.monotonic()
            seconds = min(TICK_SECONDS, max(deadline - now, 0.001))
            await self._clock.sleep(seconds)
            late_seconds = max(self._clock.monotonic() - now - seconds, 0.0)

    def _look_around(self, late_seconds: float = 0.0) -> None:
        """Tell whoever watches of this tick, and do what is due at one."""
        is_registered = not self._registration.losing
        tick = Tick(self.worker_id, is_registered, self._stopping is not None, late_seconds)
        self._observers.ticked(tick)
        self._cancellations.ticked(tick)
        self._maintenance.ticked(tick)
        self.accounts.ticked()
        if self._parts.providers is not None:
            self._parts.providers.pressure.ticked()
        if self._recycling is not None:
            self._recycling.ticked(tick)

    def _look_at_lease(self) -> None:
        """Begin nothing under a lease that is over: a process may be stopped between two ticks."""
        is_over = self._clock.monotonic() >= self._parts.keeper.believed_until()
        if is_over or self._registration.is_lost:
            self._lose()

    def _lose(self) -> None:
        """Our lease may be over: give up all that we hold, and register under a new id."""
        if self._registration.losing:
            return  # it is known
        self._registration.losing = True
        log.error(
            "The lease of worker %s could not be renewed in time; its jobs are given up and it "
            "registers again.",
            self.worker_id,
        )
        self._window.clear()
        self._completer.drop()
        self._executor.stop_all(Stop.LOST)
        self._executor.detach_all()  # the same job may come back before its old body has ended
        self._lease_loop.forget()
        self._needs_name = True
        left = self._executor.forbidding(is_replaced=not self._config.runs_suspects)
        if left is not None and not left.can_be_stopped:
            log.warning(
                "Job %r of task %r cannot be stopped. Nothing else begins here before it has "
                "ended, since nobody counts it against limits any more.",
                left.job.key,
                task_name(left.job.task),
            )

    def _sign_on_again(self) -> None:
        """Take a name, once no body is left from an earlier one that could exceed a limit.

        A supervisor kills a worker whose bodies outlive its lease, and starts a fresh one.
        """
        is_replaced = not self._config.runs_suspects
        if self._needs_name and self._executor.forbidding(is_replaced=is_replaced) is None:
            self._needs_name = False
            self._loop.spawn(self._sign_on())

    async def _sign_on(self) -> None:
        first = not self.worker_id
        await self._registration.sign_on()
        if first:  # its lease may be lost meanwhile: nothing begins before this is over
            if self._parts.begin is not None:
                await self._parts.begin()
            if self._parts.providers is not None:
                await self._parts.providers.begin()
            self._is_ready = True
        self._look_around()  # the run is known before it takes a job
        if first:
            self._parts.events.emit(SchedulerEventKind.SCHEDULER_JOB_STARTED, self._correlation)
        self._loop.wake()

    def _turn(self) -> None:
        """Start what can start, acknowledge what has ended, lease what there is room for."""
        self._look_at_lease()
        self._sign_on_again()
        ours = self._is_ready and not self._registration.losing
        starts = ours and self._completer.takes_more
        goes_on = starts and self._stopping is None
        if starts:  # once it is stopping, only graphs of jobs that run have anything to start
            self._window.scheduler.turn()
            self._end_if_all_started()
        self._completer.kick(self.worker_id)
        if self._completer.armed_at is not None:
            self._lease_loop.due(self._completer.armed_at)
            self._completer.armed_at = None
        if goes_on and not self._lease_loop.busy:
            self._lease_loop.ask()
            self._drain.look_if_idle(self.worker_id)
        self._observers.turned(goes_on)

    def _ended(self, attempt: Attempt, end: AttemptEnd) -> None:
        """An attempt has ended: first of all its end is to be durable."""
        if attempt.closed_account is not None and isinstance(end, JobRef):
            self._loop.spawn(self._give_back_later(end))
        elif end is not None:
            self._completer.add(end)
        if self._parts.providers is not None:
            self.hold.ended(attempt, end)
            self.accounts.ended(attempt, end)
        self._window.ended(attempt)
        self._drain.ended(attempt)
        self._observers.ended(attempt, end)
        sentence = self._tasks[attempt.job.task].kind.ended(attempt.job, end)
        if sentence is not None:
            self._end_run(sentence)
        self._loop.wake()

    async def _give_back_later(self, ref: JobRef) -> None:
        """Give a job back that met a closed account, when the other workers know of it, too."""
        await self._clock.sleep(KNOWN_SECONDS)
        self._completer.add(ref)
        self._loop.wake()

    def effects_refused(self, end: JobEnd, error: PenstockError) -> JobEnd | JobFailure:
        """What becomes of an end whose effects the store has refused."""
        kind = self._tasks[end.job.task].kind
        refused = kind.refused(end, error)
        self._log.effects_refused(end.job, refused)
        sentence = kind.ended(end.job, refused)
        if sentence is not None:
            self._end_run(sentence)
        return refused

    def not_taken(self, end: JobEnd | JobFailure, verdict: Verdict) -> None:
        """The store did not take an end."""
        self.totals.refused += 1
        if isinstance(end, JobEnd) and verdict is Verdict.STALE:
            job = end.job
            if self._tasks[job.task].kind.releases_stale:
                self._completer.add(JobRef(job.id, job.token))
        self._log.refused(end, verdict)

    def _end_if_all_started(self) -> None:
        """End with what runs, once the run has started as many jobs as it may."""
        starts = self._parts.starts
        if starts is None or self._stopping is not None or not starts.is_used_up:
            return
        if not (self._config.place or self._config.solo):
            log.info(
                "This run has started as many jobs as it may (max_jobs), so it ends with them."
            )
        self.stop(Stopping.RECYCLE)

    def _end_run(self, sentence: str) -> None:
        """Stop: something has ended for good, and with it the run; the sentence says what."""
        self.ended_schedules += (sentence,)
        if self._stopping is None:
            self.stop(Stopping.GRACEFUL)
