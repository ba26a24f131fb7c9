# SPDX-License-Identifier: Apache-2.0
"""Runs a graph of tasks in memory to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable

from penstock.admission.tasks.controller import TaskAdmissionController
from penstock.admission.tasks.decisions import DenialReason, TaskAdmissionLease
from penstock.clock import Clock
from penstock.errors import UsageError
from penstock.events.kinds import Correlation
from penstock.events.kinds import SchedulerEventKind as Kind
from penstock.events.kinds import current as current_correlation
from penstock.events.sink import SchedulerEvents
from penstock.model.task import SchedulableTask
from penstock.planning.completion import CompletionSnapshot, CompletionTracker
from penstock.sentences import counted
from penstock.worker.bottleneck import Cause
from penstock.worker.scheduler import AsyncTaskScheduler

#: Does the work of one task.
Execute = Callable[[SchedulableTask], Awaitable[None]]


class GraphRun:
    """Owns the running tasks of one graph. Belongs to one loop.

    A task that fails is tried again, through the tracker, until its attempts are used up; then what
    needs it is dropped, and the rest goes on.
    """

    def __init__(
        self,
        tracker: CompletionTracker,
        controller: TaskAdmissionController,
        execute: Execute,
        events: SchedulerEvents,
        clock: Clock,
        run_id: str,
        attempts_max: int = 1,
    ) -> None:
        self._tracker = tracker
        self._controller = controller
        self._execute = execute
        self._events = events
        self._run = Correlation(run_id)
        self._attempts_max = attempts_max
        self._attempts: dict[Hashable, int] = {}
        self._running: dict[asyncio.Task[None], TaskAdmissionLease] = {}
        self._wake = asyncio.Event()
        self._is_stopping = False
        self.errors: dict[Hashable, BaseException] = {}  # of tasks that failed for good
        self.scheduler = AsyncTaskScheduler(
            tracker, controller, self, events, self._run, clock.monotonic, self._wake.set
        )

    async def run(self) -> CompletionSnapshot:
        """Run everything that can run, or until `stop`; failed tasks are in `errors`.

        However it ends, nothing runs any more: a cancellation is passed on to the bodies, and
        waits for them.
        """
        try:
            while self._running or not (self._tracker.is_finished or self._is_stopping):
                self._wake.clear()
                self.scheduler.turn()
                blocked = self.scheduler.queue.view().blocked()
                self.scheduler.bottleneck.turned(len(self._running), Cause(None), blocked)
                self._refuse_stand_still()
                await self._wake.wait()
        finally:
            await self._end_all()
        if self._tracker.is_finished:
            self._events.emit(Kind.QUEUE_DRAINED, self._run)
        return self._tracker.snapshot()

    def stop(self) -> None:
        """Start nothing more; `run` returns when what runs has ended."""
        self._is_stopping = True
        self.scheduler.shut()

    # ── What the scheduler asks for ───────────────────────────────────────────────────────────

    def correlation(self, task: SchedulableTask) -> Correlation:
        attempt = self._attempts.get(task.task_id, 0) + 1
        return Correlation(self._run.run_id, str(task.task_id), None, task.group.key, None, attempt)

    def start(
        self, task: SchedulableTask, lease: TaskAdmissionLease, correlation: Correlation
    ) -> None:
        body = self._body(task, correlation)
        try:
            aio_task = asyncio.get_running_loop().create_task(body)
        except BaseException:
            body.close()
            raise
        self._running[aio_task] = lease

        def ended(ended_task: asyncio.Task[None]) -> None:
            # The one place where a lease comes back, however the body ended, also before it began.
            held = self._running.pop(ended_task)
            self.scheduler.release(held, correlation)
            self._ended(task, correlation, ended_task)
            self._wake.set()

        aio_task.add_done_callback(ended)
        self._events.emit(Kind.WORKER_SPAWNED, correlation)

    def not_started(self, task: SchedulableTask, error: Exception) -> None:
        self._failed(task, self.correlation(task), error)

    # ── Bodies ────────────────────────────────────────────────────────────────────────────────

    async def _body(self, task: SchedulableTask, correlation: Correlation) -> None:
        current_correlation.set(correlation)
        await self._execute(task)

    def _ended(
        self, task: SchedulableTask, correlation: Correlation, aio_task: asyncio.Task[None]
    ) -> None:
        if aio_task.cancelled():
            self._events.emit(Kind.CANCELLED, correlation)
            self._failed(task, correlation, asyncio.CancelledError())
        elif (error := aio_task.exception()) is not None:
            self._events.emit(Kind.TASK_COMPLETED, correlation, type(error).__name__)
            self._failed(task, correlation, error)
        else:
            self._events.emit(Kind.TASK_COMPLETED, correlation, "done")
            self._attempts.pop(task.task_id, None)
            self.scheduler.complete(task)

    def _failed(
        self, task: SchedulableTask, correlation: Correlation, error: BaseException
    ) -> None:
        """Let the tracker show it again, or drop it with what needs it."""
        used = self._attempts.get(task.task_id, 0) + 1
        self._attempts[task.task_id] = used
        if used < self._attempts_max and not isinstance(error, asyncio.CancelledError):
            self._tracker.mark_retry(task)
            self._events.emit(Kind.SALVAGE_REDISPATCHED, correlation)
            return
        self._attempts.pop(task.task_id, None)
        self.errors[task.task_id] = error
        dropped = self._tracker.mark_failed(task)
        numbers = {"dropped": float(len(dropped))}
        self._events.emit(Kind.NON_RETRYABLE_DROPPED, correlation, type(error).__name__, numbers)

    async def _end_all(self) -> None:
        """Start nothing more, and end what runs; its leases come back as it ends."""
        self.scheduler.shut()
        cancelled: asyncio.CancelledError | None = None
        self._cancel_bodies()
        while self._running:
            self._wake.clear()
            try:
                await self._wake.wait()
            except asyncio.CancelledError as again:
                cancelled = again
                self._cancel_bodies()
        if cancelled is not None:
            raise cancelled

    def _cancel_bodies(self) -> None:
        for aio_task in self._running:
            aio_task.cancel()

    def _refuse_stand_still(self) -> None:
        """Nothing runs, and nothing that is queued could ever start: say why instead of waiting."""
        if self._running or self._is_stopping or not len(self.scheduler.queue):
            return
        if self._wake.is_set() or self.scheduler.is_cut_short:
            return  # another turn follows
        summary = self._controller.explain_blocked(self.scheduler.queue.view())
        # A provider's pressure is told by somebody else, who may still do so.
        is_gated = DenialReason.POLICY in summary.dominant_denial_reasons
        if summary.available_after is None and not is_gated:
            what = "; ".join(
                f"{name}: " + ", ".join(f"{key} {value:g}" for key, value in numbers.items())
                for name, numbers in summary.diagnostics.items()
            )
            raise UsageError(
                f"{counted(summary.queued_count, 'task')} can never start ({what}). Raise the "
                "limits, or "
                "let the tasks ask for less."
            )
