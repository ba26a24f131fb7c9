# SPDX-License-Identifier: Apache-2.0
"""The loop: ready → select → admit → start → release.

Owns control flow, and decides nothing: it asks sources for ready tasks, the fair queue for a
candidate and admission for a lease. A turn has no await in it, so select → acquire → commit is
one critical section; what happens in a turn is told after it. Any number of sources are attached
at once, each with who runs its tasks: the jobs of a worker, and graphs in memory beside them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from penstock.admission.tasks.controller import TaskAdmissionController
from penstock.admission.tasks.decisions import (
    DenialReason,
    TaskAdmissionBlockSummary,
    TaskAdmissionDenied,
    TaskAdmissionLease,
)
from penstock.admission.tasks.queue import FairTaskQueue
from penstock.errors import UsageError
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
        """`start` has raised, or its id is somebody else's; it holds no lease."""
        ...

    def blocked(self) -> None:
        """Some of its tasks are queued, and nothing that is queued can start now."""
        ...


_NOTHING: Mapping[str, int] = MappingProxyType({})


class Attachment:
    """A source of tasks and who runs them, as long as a scheduler serves both."""

    __slots__ = ("lends", "queued", "source", "starter")

    def __init__(self, source: ReadinessSource, starter: Starter, lends: Mapping[str, int]) -> None:
        self.source = source
        self.starter = starter
        self.lends = lends
        self.queued = 0  # of its tasks

    def __repr__(self) -> str:
        return f"<Attachment of {self.source!r}, {self.queued} queued>"


class AsyncTaskScheduler:
    """Owns the turn of one loop: queue, admission, and the integrator of waiting time."""

    def __init__(
        self,
        controller: TaskAdmissionController,
        events: SchedulerEvents,
        run: Correlation,
        monotonic: Callable[[], float],
        wake: Callable[[], None],
    ) -> None:
        """Nothing is attached.

        Args:
            controller: admits tasks.
            events: hears of every step.
            run: what events are about that no task has caused.
            monotonic: the time.
            wake: called when another turn could start something.
        """
        self.controller = controller
        self.events = events
        self._run = run
        self.monotonic = monotonic
        self.wake = wake
        self._attachments: list[Attachment] = []
        self._owners: dict[Hashable, Attachment] = {}  # of what is queued
        self._lent: Counter[str] = Counter()  # by those who are attached
        self.queue = FairTaskQueue()
        self.bottleneck = Bottleneck(monotonic)
        self._is_turning = False
        self.is_cut_short = False  # the last turn; another follows
        self._timer = Timer(wake, monotonic)  # for what opens by itself
        self._said: Hashable = None  # why nothing was selected, when it was last told

    def __repr__(self) -> str:
        return f"<AsyncTaskScheduler {self.queue!r} {self.controller!r}>"

    def attach(
        self, source: ReadinessSource, starter: Starter, lends: Mapping[str, int] = _NOTHING
    ) -> Attachment:
        """Serve a source from the next turn on, until it is detached.

        Args:
            source: shows what is ready; ids of tasks are unique among all that is attached.
            starter: runs what is admitted.
            lends: so much more there is of these resources meanwhile, since whoever attaches holds
                them and has its tasks do its work.
        """
        attachment = Attachment(source, starter, lends)
        self._attachments.append(attachment)
        for resource, amount in lends.items():
            self._lend(resource, amount)
        self.wake()
        return attachment

    def detach(self, attachment: Attachment) -> list[SchedulableTask]:
        """Serve a source no longer; what of it has not started is returned, what runs goes on.

        Safe to repeat.
        """
        if attachment not in self._attachments:
            return []
        self._attachments.remove(attachment)
        for resource, amount in attachment.lends.items():
            self._lend(resource, -amount)
        left = self.drop_all(attachment)
        if not len(self.queue):
            self._timer.cancel()
        return left

    def _lend(self, resource: str, amount: int) -> None:
        self._lent[resource] += amount
        limit = self.controller.limit(resource)
        if limit is not None:
            self.controller.set_limit(resource, limit + amount)

    def turn(self) -> int:
        """Start everything that may start now; return how many tasks were started."""
        if self._is_turning:  # whoever was asked or started calls back: one turn at a time
            self.wake()
            return 0
        self._is_turning = True
        holds = self.events.hold()
        try:
            return self._turn()
        finally:
            self._is_turning = False
            if holds:
                self.events.flush()

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
            owner = self._owners[selection.item.task_id]
            correlation = owner.starter.correlation(selection.item)
            decision = controller.try_acquire(selection.item, view)
            if isinstance(decision, TaskAdmissionDenied):
                numbers = {**decision.numbers}
                self.events.emit(Kind.ADMISSION_DENIED, correlation, decision.reason, numbers)
                continue
            task = queue.commit(selection)
            if task is None:
                controller.release(decision)
                self.events.emit(Kind.STALE_SELECTION, correlation)
                # Not at once: a caller that keeps changing the queue must not stop the loop.
                self.is_cut_short = True
                asyncio.get_running_loop().call_soon(self.wake)
                break
            self._left(task.task_id)
            started += self._start(owner.starter, task, decision, correlation)
        return started

    def release(self, lease: TaskAdmissionLease, correlation: Correlation) -> None:
        """The resources of a task are free. Safe to repeat: only the first time counts."""
        result = self.controller.release(lease)
        if result.released:
            self.bottleneck.came_back(lease)
            self.wake()
            if self.events.wants_steps:
                self.events.emit(Kind.TASK_LEASE_RELEASED, correlation)
        else:
            self.events.emit(Kind.RELEASE_DIAGNOSTIC, correlation, result.reason)

    def set_limit(self, resource: str, limit: int | None) -> None:
        """Change how much of a resource there is, beside what is lent."""
        lent = self._lent[resource]
        self.controller.set_limit(resource, None if limit is None else limit + lent)
        self.wake()

    def pressure_changed(self, gate: Hashable) -> None:
        """A provider's resource has more room, or none."""
        self.controller.pressure_changed(gate)
        self.wake()

    def standing(self, task_id: Hashable) -> TaskAdmissionDenied | None:
        """What a queued task is known to wait for; None if nothing, or if it is not queued."""
        return self.queue.denial_of(task_id)

    def queued(self, attachment: Attachment) -> list[SchedulableTask]:
        """Return its tasks that have not started, in no particular order."""
        if not attachment.queued:
            return []
        owners = self._owners
        return [one for one in self.queue.tasks() if owners.get(one.task_id) is attachment]

    def discard(self, task_id: Hashable) -> bool:
        """Take a task out that must not run; False if it is not queued."""
        if not self.queue.discard(task_id):
            return False
        self._left(task_id)
        return True

    def drop_all(self, attachment: Attachment) -> list[SchedulableTask]:
        """Take out of its tasks what has not started."""
        found = self.queued(attachment)
        for task in found:
            self.discard(task.task_id)
        return found

    def _reopen(self) -> bool:
        """Let tasks be tried again for which something has changed; False if nothing has."""
        changes = self.controller.take_changes()
        if changes is None:
            return False
        self.queue.reopen(changes)
        return True

    def _take_in(self) -> None:
        taken = 0
        for attachment in [*self._attachments]:
            frontier = attachment.source.ready_frontier()
            if not frontier:
                continue
            accepted = self.queue.enqueue(frontier)
            if accepted:
                self._owners.update(dict.fromkeys(accepted, attachment))
                attachment.queued += len(accepted)
                attachment.source.mark_enqueued(accepted)
                taken += len(accepted)
            if len(accepted) < len(frontier):
                self._refuse_foreign(attachment, frontier)
        if taken:
            self.events.emit(Kind.READY_ENQUEUED, self._run, numbers={"tasks": taken})

    def _refuse_foreign(self, attachment: Attachment, frontier: Sequence[SchedulableTask]) -> None:
        """Tell whoever shows tasks with ids that somebody else's queued tasks have."""
        for task in frontier:
            if self._owners.get(task.task_id) is not attachment:
                attachment.source.mark_enqueued((task.task_id,))
                error = UsageError(
                    f"Two tasks that are to run at once have the id {task.task_id!r}. Give each "
                    "graph ids of its own."
                )
                attachment.starter.not_started(task, error)
        self.wake()  # others may be ready now

    def _left(self, task_id: Hashable) -> None:
        """A task is queued no longer."""
        self._owners.pop(task_id).queued -= 1

    def _start(
        self,
        starter: Starter,
        task: SchedulableTask,
        lease: TaskAdmissionLease,
        correlation: Correlation,
    ) -> int:
        emit = self.events.emit
        if self.events.wants_steps:
            emit(Kind.SELECTED, correlation)
            emit(Kind.TASK_LEASE_ACQUIRED, correlation)
        try:
            starter.start(task, lease, correlation)
        except BaseException as error:
            self.release(lease, correlation)
            if not isinstance(error, Exception):
                raise
            emit(Kind.WORKER_SPAWN_FAILED, correlation, type(error).__name__)
            starter.not_started(task, error)
            return 0
        return 1

    def _nothing_selected(self, started: int) -> None:
        """Say why, if it is news: the queue is empty, or all that is queued is kept back."""
        if not len(self.queue):
            if self._said != "empty":  # something was kept back, perhaps until a known time
                self._timer.cancel()
            if started or self._said != "empty":
                self._said = "empty"
                self.events.emit(Kind.QUEUE_EMPTY, self._run)
            return
        summary = self.controller.explain_blocked(self.queue.view())
        said = (summary.dominant, *summary.diagnostics)
        if started or self._said != said:
            self._said = said
            self._tell_blocked(summary)
        after = summary.available_after
        self._timer.set(None if after is None else self.monotonic() + after)
        for attachment in [*self._attachments]:
            if attachment.queued:
                attachment.starter.blocked()

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
        self.events.emit(kind, self._run, reason, numbers)
