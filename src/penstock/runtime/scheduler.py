# SPDX-License-Identifier: Apache-2.0
"""The loop: ready → select → admit → start → release.

Owns control flow, and decides nothing: it asks the source for ready tasks, the fair queue for a
candidate and admission for a lease. A turn has no await in it, so select → acquire → commit is
one critical section; events are emitted after it.
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
from penstock.admission.tasks.queue import FairTaskQueue, QueueSelection
from penstock.events.correlation import Correlation
from penstock.events.kinds import SchedulerEventKind as Kind
from penstock.events.sink import SchedulerEvents
from penstock.model.readiness import ReadinessSource
from penstock.model.task import SchedulableTask
from penstock.runtime.gate_times import GateTimes


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
    """Owns the turn of one loop: queue, admission and the integrals of what kept tasks waiting."""

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
        self.times = GateTimes(monotonic())
        self._timer: asyncio.TimerHandle | None = None
        self._said: Hashable = None  # why nothing was selected, when it was last told

    def __repr__(self) -> str:
        return f"<AsyncTaskScheduler {self.queue!r} {self.controller!r}>"

    def turn(self) -> int:
        """Start everything that may start now; how many that were."""
        self.times.turn_begins(self._monotonic())
        self._take_in()
        started = 0
        queue, controller = self.queue, self.controller
        judge, view = controller.judge, queue.view()
        self._reopen()
        while True:
            selection = queue.select_next(judge)
            if selection is None:
                if self._reopen():  # something that was to start has given its resources back
                    continue
                break
            decision = controller.try_acquire(selection.item, view)
            if isinstance(decision, TaskAdmissionDenied):
                self._denied(decision)
            else:
                started += self._admit(selection, decision)
        self._nothing_selected(started)
        self.times.turn_ends(view.blocked(), controller.leased())
        return started

    def release(self, lease: TaskAdmissionLease, correlation: Correlation) -> None:
        """The resources of a task are free. Safe to repeat: only the first time counts."""
        result = self.controller.release(lease)
        if result.released:
            if self._events.tells_steps:
                self._events.emit(Kind.TASK_LEASE_RELEASED, correlation)
            self._wake()
        else:
            self._events.emit(Kind.RELEASE_DIAGNOSTIC, correlation, result.reason)

    def complete(self, task: SchedulableTask) -> None:
        """A task is done; what depends on it may be ready now."""
        self._source.mark_complete(task)
        self._wake()

    def shut(self) -> None:
        """Start nothing any more."""
        self.controller.shut()
        self._cancel_timer()

    def standing(self, task_id: Hashable) -> TaskAdmissionDenied | None:
        """What a queued task is known to wait for; None if nothing, or if it is not queued."""
        return self.queue.standing(task_id)

    def drop_all(self) -> list[SchedulableTask]:
        """Take everything out that has not started."""
        return self.queue.discard_where(lambda _: True)

    def _reopen(self) -> bool:
        """Let those be asked for again for whom something has changed; False if nothing has."""
        openings = self.controller.take_openings()
        if openings is None:
            return False
        self.queue.reopen(openings)
        return True

    def _take_in(self) -> None:
        accepted = self.queue.enqueue(self._source.ready_frontier())
        if accepted:
            self._source.mark_enqueued(accepted)
            self._events.emit(Kind.READY_ENQUEUED, self._run, numbers={"tasks": len(accepted)})

    def _admit(self, selection: QueueSelection, lease: TaskAdmissionLease) -> int:
        """Take the selected task out and start it."""
        task = self.queue.commit(selection)
        correlation = self._starter.correlation(selection.item)
        emit = self._events.emit
        if task is None:
            self.controller.release(lease)
            emit(Kind.STALE_SELECTION, correlation)
            return 0
        if self._events.tells_steps:
            emit(Kind.SELECTED, correlation)
            emit(Kind.TASK_LEASE_ACQUIRED, correlation)
        try:
            self._starter.start(task, lease, correlation)
        except Exception as error:
            self.release(lease, correlation)
            emit(Kind.WORKER_SPAWN_FAILED, correlation, type(error).__name__)
            self._starter.not_started(task, error)
            return 0
        return 1

    def _denied(self, denied: TaskAdmissionDenied) -> None:
        correlation = self._starter.correlation(denied.item)
        numbers = {**denied.numbers}
        self._events.emit(Kind.ADMISSION_DENIED, correlation, denied.reason, numbers)

    def _nothing_selected(self, started: int) -> None:
        """Say why, if it is news: the queue is empty, or all that is queued is kept back."""
        if not len(self.queue):
            if started or self._said != "empty":
                self._said = "empty"
                self._events.emit(Kind.QUEUE_EMPTY, self._run)
            return
        summary = self.controller.explain_blocked(self.queue.view())
        said = (summary.dominant, *summary.diagnostics)
        if started or self._said != said:
            self._said = said
            self._tell_blocked(summary)
        self._set_timer(summary.available_after)

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

    def _set_timer(self, seconds: float | None) -> None:
        """Wake up when the first thing opens that opens by itself."""
        self._cancel_timer()
        if seconds is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(seconds, self._wake)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
