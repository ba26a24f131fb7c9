# SPDX-License-Identifier: Apache-2.0
"""How do leased jobs get from the store into slots?

The window: jobs that a worker has leased and not started. They go through the fair queue and task
admission; slots are resources like any other, so a job that has none holds nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol

from penstock.admission.tasks.bounded_borrow import BoundedBorrowTaskAdmissionPolicy
from penstock.admission.tasks.controller import TaskAdmissionConfig, TaskAdmissionController
from penstock.admission.tasks.decisions import TaskAdmissionLease, Until
from penstock.admission.tasks.provider_aware import (
    ProviderAwareTaskAdmissionPolicy,
    is_pressed,
)
from penstock.admission.tasks.resolver import SchedulingNote, TaskSchedulingResolver
from penstock.clock import Clock
from penstock.definitions.task import Task
from penstock.events.correlation import Correlation
from penstock.events.sink import SchedulerEvents
from penstock.model.dataset import task_name
from penstock.model.job import LeasedJob
from penstock.model.lease import JobRef
from penstock.model.pressure import PressureSnapshot, RequestPressure
from penstock.model.provider import SeveralResources, gate_name
from penstock.model.task import SchedulableTask
from penstock.worker.attempt import TaskLimits
from penstock.worker.dispatcher import Appetite
from penstock.worker.leased_jobs import LeasedJobs
from penstock.worker.scheduler import AsyncTaskScheduler

SPAWN_FAILURES_MAX = 3  # in a row: then this process is not fit to start anything

log = logging.getLogger("penstock.worker")


class Slotting(Protocol):
    """What a window must know of the slots."""

    def start(
        self, job: LeasedJob, lease: TaskAdmissionLease, correlation: Correlation
    ) -> None: ...

    def free(self) -> dict[str, int]: ...


class JobWindow:
    """Owns what is leased and has not started. Belongs to one loop."""

    def __init__(
        self,
        run_id: str,
        tasks: Mapping[str, tuple[Task[..., Any], TaskLimits]],
        counts: Mapping[str, int],
        events: SchedulerEvents,
        clock: Clock,
        wake: Callable[[], None],
        give_back: Callable[[JobRef], None],
        failed: Callable[[BaseException], None],
        pressure: RequestPressure | None = None,
    ) -> None:
        self._run_id = run_id
        self._resolver = TaskSchedulingResolver(task.scheduling for task, _ in tasks.values())
        for note in self._resolver.diagnostics:
            usual = note.code in (SchedulingNote.NO_CAP, SchedulingNote.SEVERAL_ENDPOINTS)
            log.log(logging.DEBUG if usual else logging.WARNING, "%s", note.text)
        self._give_back = give_back
        self._failed = failed
        self._slots: Slotting | None = None
        self._is_withdrawn: Callable[[LeasedJob], bool] = lambda _: False
        self._failures = 0  # of starts, in a row
        self._source = LeasedJobs(self._task_of)
        self._monotonic = clock.monotonic
        kinds = {name: task.kind for name, (task, _) in tasks.items()}
        self._appetite = Appetite(kinds, counts, clock.monotonic())
        self._pressure = pressure
        self._gates = {
            name: key
            for name in tasks
            if (key := self._resolver.resolve(name).request_resource_key) is not None
        }
        self._aware: ProviderAwareTaskAdmissionPolicy | None = None
        if pressure is not None:
            inner = BoundedBorrowTaskAdmissionPolicy()
            self._aware = ProviderAwareTaskAdmissionPolicy(inner, pressure)
        self.held_back: frozenset[str] = frozenset()  # tasks that were not asked for last time
        self._pressed: PressureSnapshot | None = None  # the first of them
        self._by_budget: set[str] = set()  # tasks that are not asked for any more
        self._in_the_way: dict[Hashable, str | None] = {}  # gate → which of several providers
        self.scheduler = AsyncTaskScheduler(
            self._source,
            TaskAdmissionController(
                TaskAdmissionConfig(sum(counts.values()), counts),
                self._aware,
                monotonic=clock.monotonic,
            ),
            self,
            events,
            Correlation(run_id),
            clock.monotonic,
            wake,
        )

    def __len__(self) -> int:
        return len(self._source) + len(self.scheduler.queue)

    def connect(self, slots: Slotting, is_withdrawn: Callable[[LeasedJob], bool]) -> None:
        """Where jobs run, and who knows of those that were cancelled."""
        self._slots, self._is_withdrawn = slots, is_withdrawn

    def add(self, jobs: Sequence[LeasedJob]) -> None:
        """Jobs have been leased."""
        if self._by_budget:
            for job in jobs:
                if job.task in self._by_budget:
                    self._give_back(JobRef(job.id, job.token))
            jobs = [job for job in jobs if job.task not in self._by_budget]
        self._source.add(jobs)
        self._appetite.leased(jobs)

    def hold_back(self, name: str) -> None:
        """Ask for no more jobs of a task, and give those back that have not started."""
        self._by_budget.add(name)
        waiting = [*self._source.ready_frontier(), *self.scheduler.queue.tasks()]
        for task in [task for task in waiting if task.payload.task == name]:
            self._source.mark_complete(task)
            self.scheduler.queue.discard(task.task_id)
            self._appetite.left(task.payload)
            self._give_back(_ref(task))

    def let_go(self, name: str) -> None:
        """Ask for jobs of a task again."""
        self._by_budget.discard(name)

    def wanted(self, exhausted: frozenset[str] = frozenset()) -> tuple[tuple[str, ...], int]:
        """The tasks to ask for, and for how many jobs in all."""
        if self._slots is None:
            return (), 0
        self.held_back = self._find_held_back() | self._by_budget
        parked = self._parked() if self.held_back else {}
        return self._appetite.wanted(
            self._slots.free(), self._monotonic(), exhausted, self.held_back, parked
        )

    @property
    def is_held_back_by_budget_only(self) -> bool:
        return bool(self._by_budget) and self.held_back == self._by_budget

    def may_be_leased(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Those of some tasks that no budget holds back."""
        return tuple(name for name in names if name not in self._by_budget)

    def held_back_by(self) -> dict[str, str]:
        """Tasks that were not asked for last time, and the providers that were in the way."""
        return {
            name: self._in_the_way.get(gate := self._gates[name]) or gate_name(gate)
            for name in sorted(self.held_back - self._by_budget)
        }

    def gate_in_the_way(self) -> PressureSnapshot | None:
        """The provider for which tasks were not asked for last time."""
        return self._pressed if self.held_back else None

    def _find_held_back(self) -> frozenset[str]:
        """Tasks whose providers could not serve them now: others get their room here."""
        pressure = self._pressure
        if pressure is None or not self._gates:
            return frozenset()
        pressed: dict[Hashable, str | None] = {}
        self._pressed = None
        for gate in set(self._gates.values()):
            snapshot = pressure.snapshot(gate)
            if snapshot is not None and is_pressed(snapshot):
                self._pressed = self._pressed or snapshot
                several = isinstance(gate, SeveralResources) and snapshot.resource is not None
                pressed[gate] = gate_name(snapshot.resource) if several else None
        self._in_the_way = pressed
        return frozenset(name for name, gate in self._gates.items() if gate in pressed)

    def _parked(self) -> dict[str, int]:
        """By kind: jobs that are here and wait for a provider."""
        parked: dict[str, int] = {}
        for line in self.scheduler.queue.view().blocked():
            if line.denied.until is Until.GATE:
                kind = self._appetite.kind(line.denied.item.payload)
                parked[kind] = parked.get(kind, 0) + line.tasks
        return parked

    def tell(self) -> None:
        """Say once what is wrong with the pressure of providers."""
        for note in self._aware.take_diagnostics() if self._aware is not None else ():
            log.warning("%s", note.text)

    def ended(self, kind: str) -> None:
        """A body of this kind has ended."""
        self._appetite.ended(kind)

    def shrink(self) -> bool:
        """Give back what waits in vain, so that others get it, or are not kept out by it.

        Fast jobs leave a wide window, and slow ones would fill it for long. The last of the
        longest groups go.
        """
        if self._slots is None:
            return False
        beyond = self._appetite.surplus(self._slots.free(), self._monotonic())
        if not beyond:
            return False
        ranked: dict[str, list[tuple[int, SchedulableTask]]] = {kind: [] for kind in beyond}
        ranks: dict[tuple[str, str], int] = {}
        for task in self.scheduler.queue.tasks():
            kind = self._appetite.kind(task.payload)
            if kind in ranked:
                of = (kind, task.group.key)
                ranks[of] = ranks.get(of, 0) + 1
                ranked[kind].append((ranks[of], task))
        for kind, tasks in ranked.items():
            tasks.sort(key=lambda entry: -entry[0])
            for _, task in tasks[: beyond[kind]]:
                self.scheduler.queue.discard(task.task_id)
                self._appetite.left(task.payload)
                self._give_back(_ref(task))
        return True

    @property
    def weights(self) -> Mapping[str, int]:
        """Of tasks that weigh more than 1."""
        return self._resolver.weights

    def clear(self) -> list[JobRef]:
        """Take everything out that has not started."""
        tasks = [*self._source.clear(), *self.scheduler.drop_all()]
        self._appetite.clear()
        return [_ref(task) for task in tasks]

    def refs(self) -> set[tuple[int, int]]:
        """The leases of all that wait."""
        tasks = [*self._source.ready_frontier(), *self.scheduler.queue.tasks()]
        return {_ref(task) for task in tasks}

    # ── What the scheduler asks for ───────────────────────────────────────────────────────────

    def correlation(self, task: SchedulableTask) -> Correlation:
        job: LeasedJob = task.payload
        return Correlation(self._run_id, job.task, job.partition, job.group, job.id, job.token)

    def start(
        self, task: SchedulableTask, lease: TaskAdmissionLease, correlation: Correlation
    ) -> None:
        job: LeasedJob = task.payload
        self._appetite.left(job)
        if self._is_withdrawn(job):
            self.scheduler.release(lease, correlation)
        elif self._slots is not None:
            self._slots.start(job, lease, correlation)
            self._failures = 0

    def not_started(self, task: SchedulableTask, error: Exception) -> None:
        """Give the job back; after some of these in a row somebody else must do the work."""
        job: LeasedJob = task.payload
        log.error("Job %r of task %r could not be started: %s", job.key, task_name(job.task), error)
        self._give_back(JobRef(job.id, job.token))
        self._failures += 1
        if self._failures >= SPAWN_FAILURES_MAX:
            self._failed(error)

    def _task_of(self, job: LeasedJob) -> SchedulableTask:
        scheduling = self._resolver.for_job(job.task, job.group)
        return SchedulableTask(
            (job.id, job.token),
            job,
            scheduling.group,
            scheduling.resource_request,
            scheduling.request_resource_key,
            job.priority,
        )


def _ref(task: SchedulableTask) -> JobRef:
    job: LeasedJob = task.payload
    return JobRef(job.id, job.token)
