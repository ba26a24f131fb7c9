# SPDX-License-Identifier: Apache-2.0
"""The loop: ready → select → admit → start → release.

Owns control flow, and decides nothing: it asks the source for ready tasks, the fair queue for a
candidate and admission for a lease. A turn has no await in it, so select → acquire → commit is
one critical section; what happens in a turn is told after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Protocol

from penstock.admission.tasks.controller import TaskAdmissionController
from penstock.admission.tasks.decisions import (
    DenialReason,
    TaskAdmissionBlockSummary,
    TaskAdmissionDenied,
    TaskAdmissionLease,
)
from penstock.admission.tasks.queue import FairTaskQueue
from penstock.events.kinds import Correlation
from penstock.events.kinds import SchedulerEventKind as Kind
from penstock.events.sink import SchedulerEvents
from penstock.model.task import ReadinessSource, SchedulableTask
from penstock.timers import Timer
from penstock.worker.bottleneck import Bottleneck


class Starter(Protocol):
    """Whoever runs admitted tasks."""

    def correlation(self, task: SchedulableTask) -> Correlation: ...

    def start(
        self, task: SchedulableTask, lease: TaskAdmissionLease, correlation: Correlation
    ) -> None:
        """Run it; whoever does calls `AsyncTaskScheduler.release` when its resources are free."""
        ...

    def not_started(self, task: SchedulableTask, error: Exception) -> None:
        """`start` has raised; the lease is released already."""
        ...


class AsyncTaskScheduler:
    """Owns the turn of one loop: queue, admission, and the integrator of waiting time."""

    def __init__(
        self,
        source: ReadinessSource,
        controller: TaskAdmissionController,
        starter: Starter,
        events: SchedulerEvents,
        run: Correlation,
        monotonic: Callable[[], float],
        wake: Callable[[], None],
    ) -> None:
        self._source = source
        self.controller = controller
        self._starter = starter
        self._events = events
        self._run = run
        self._monotonic = monotonic
        self._wake = wake
        self.queue = FairTaskQueue()
        self.bottleneck = Bottleneck(monotonic)
        self._is_turning = False
        self.is_cut_short = False  # the last turn; another follows
        self._timer = Timer(wake, monotonic)  # for what opens by itself
        self._said: Hashable = None  # why nothing was selected, when it was last told

    def __repr__(self) -> str:
        return f"<AsyncTaskScheduler {self.queue!r} {self.controller!r}>"

    def turn(self) -> int:
        """Start everything that may start now; return how many tasks were started."""
        if self._is_turning:  # whoever was asked or started calls back: one turn at a time
            self._wake()
            return 0
        self._is_turning = True
        holds = self._events.hold()
        try:
            return self._turn()
        finally:
            self._is_turning = False
            if holds:
                self._events.flush()

    def _turn(self) -> int:
        self._take_in()
        self.is_cut_short = False
        started = 0
        queue, controller = self.queue, self.controller
        is_eligible, view = controller.is_eligible, queue.view()
        self._reopen()
        while True:
            selection = queue.select_next(is_eligible)
            if selection is None:
                if self._reopen():  # something that was to start has given its resources back
                    continue
                self._nothing_selected(started)
                break
            correlation = self._starter.correlation(selection.item)
            decision = controller.try_acquire(selection.item, view)
            if isinstance(decision, TaskAdmissionDenied):
                numbers = {**decision.numbers}
                self._events.emit(Kind.ADMISSION_DENIED, correlation, decision.reason, numbers)
                continue
            task = queue.commit(selection)
            if task is None:
                controller.release(decision)
                self._events.emit(Kind.STALE_SELECTION, correlation)
                # Not at once: a caller that keeps changing the queue must not stop the loop.
                self.is_cut_short = True
                asyncio.get_running_loop().call_soon(self._wake)
                break
            started += self._start(task, decision, correlation)
        return started

    def release(self, lease: TaskAdmissionLease, correlation: Correlation) -> None:
        """The resources of a task are free. Safe to repeat: only the first time counts."""
        result = self.controller.release(lease)
        if result.released:
            self.bottleneck.came_back(lease)
            self._wake()
            if self._events.wants_steps:
                self._events.emit(Kind.TASK_LEASE_RELEASED, correlation)
        else:
            self._events.emit(Kind.RELEASE_DIAGNOSTIC, correlation, result.reason)

    def complete(self, task: SchedulableTask) -> None:
        """A task is done; what depends on it may be ready now."""
        self._source.mark_complete(task)
        self._wake()

    def shut(self) -> None:
        """Start nothing from now on."""
        self.controller.shut()
        self._timer.cancel()
        self._wake()

    def set_limit(self, resource: str, limit: int | None) -> None:
        """Change how much of a resource there is."""
        self.controller.set_limit(resource, limit)
        self._wake()

    def pressure_changed(self, gate: Hashable) -> None:
        """A provider's resource has more room, or none."""
        self.controller.pressure_changed(gate)
        self._wake()

    def standing(self, task_id: Hashable) -> TaskAdmissionDenied | None:
        """What a queued task is known to wait for; None if nothing, or if it is not queued."""
        return self.queue.denial_of(task_id)

    def drop_all(self) -> list[SchedulableTask]:
        """Take everything out that has not started."""
        return self.queue.discard_where(lambda _: True)

    def _reopen(self) -> bool:
        """Let tasks be tried again for which something has changed; False if nothing has."""
        changes = self.controller.take_changes()
        if changes is None:
            return False
        self.queue.reopen(changes)
        return True

    def _take_in(self) -> None:
        accepted = self.queue.enqueue(self._source.ready_frontier())
        if accepted:
            self._source.mark_enqueued(accepted)
            self._events.emit(Kind.READY_ENQUEUED, self._run, numbers={"tasks": len(accepted)})

    def _start(
        self, task: SchedulableTask, lease: TaskAdmissionLease, correlation: Correlation
    ) -> int:
        emit = self._events.emit
        if self._events.wants_steps:
            emit(Kind.SELECTED, correlation)
            emit(Kind.TASK_LEASE_ACQUIRED, correlation)
        try:
            self._starter.start(task, lease, correlation)
        except BaseException as error:
            self.release(lease, correlation)
            if not isinstance(error, Exception):
                raise
            emit(Kind.WORKER_SPAWN_FAILED, correlation, type(error).__name__)
            self._starter.not_started(task, error)
            return 0
        return 1

    def _nothing_selected(self, started: int) -> None:
        """Say why, if it is news: the queue is empty, or all that is queued is kept back."""
        if not len(self.queue):
            self._timer.cancel()
            if started or self._said != "empty":
                self._said = "empty"
                self._events.emit(Kind.QUEUE_EMPTY, self._run)
            return
        summary = self.controller.explain_blocked(self.queue.view())
        said = (summary.dominant, *summary.diagnostics)
        if started or self._said != said:
            self._said = said
            self._tell_blocked(summary)
        after = summary.available_after
        self._timer.set(None if after is None else self._monotonic() + after)

    def _tell_blocked(self, summary: TaskAdmissionBlockSummary) -> None:
        kinds = {
            DenialReason.GROUP_CAP: Kind.GROUP_CAPPED,
            DenialReason.POLICY: Kind.REQUEST_PRESSURE_ADVISORY_SKIPPED,
        }
        reason = summary.dominant
        kind = kinds.get(reason, Kind.ADMISSION_BLOCKED) if reason else Kind.ADMISSION_BLOCKED
        numbers = {"queued": float(summary.queued_count)}
        for name, count in summary.dominant_denial_reasons.items():
            numbers[name] = count
        self._events.emit(kind, self._run, reason, numbers)
