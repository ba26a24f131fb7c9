# SPDX-License-Identifier: Apache-2.0
"""The prefetch window: jobs that a worker has leased and not started, and how many it leases ahead.

They go through the fair queue and task admission; slots are resources like any other, so a job that
has none holds nothing. Kinds of jobs that need something read first enter when it has been read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from penstock.admission.tasks.controller import TaskAdmissionConfig, TaskAdmissionController
from penstock.admission.tasks.decisions import TaskAdmissionLease, Until
from penstock.admission.tasks.policies import (
    BoundedBorrowTaskAdmissionPolicy,
    ProviderAwareTaskAdmissionPolicy,
    is_pressed,
)
from penstock.admission.tasks.queue import BlockedLine
from penstock.admission.tasks.resolver import SchedulingNote, TaskSchedulingResolver
from penstock.clock import Clock
from penstock.errors import TRANSIENT
from penstock.events.kinds import Correlation
from penstock.events.sink import SchedulerEvents
from penstock.model.dataset import task_name
from penstock.model.job import JobKind, LeasedJob
from penstock.model.lease import JobFailure, JobRef
from penstock.model.provider import SeveralResources, gate_name
from penstock.model.request import PressureSnapshot
from penstock.model.task import SchedulableTask
from penstock.worker.attempt import Attempt
from penstock.worker.kind import JobReader, ServedTask
from penstock.worker.parts import WorkerLoop
from penstock.worker.provider_pressure import ProviderPressure
from penstock.worker.scheduler import AsyncTaskScheduler
from penstock.worker.start_budget import StartBudget

WINDOW_SECONDS = 0.1  # of work at the recent rate
WINDOW_MAX = 1_024  # jobs
RATE_HALF_LIFE_SECONDS = 0.5
SPAWN_FAILURES_MAX = 3  # in a row: then this process is not fit to start anything

log = logging.getLogger("penstock.worker")

_NOBODY: Mapping[str, int] = {}


class WindowSize:
    """Keeps the recent rate of ends and says how many jobs to lease next. Pure."""

    def __init__(self, now_monotonic: float) -> None:
        self._rate = 0.0  # ends per second
        self._count = 0
        self._since = now_monotonic

    @property
    def rate(self) -> float:
        return self._rate

    def ended(self, count: int, now_monotonic: float) -> None:
        """So many jobs have ended."""
        self._count += count
        span = now_monotonic - self._since
        if span < 0.02:
            return
        weight = 1.0 - 0.5 ** (span / RATE_HALF_LIFE_SECONDS)
        self._rate += weight * (self._count / span - self._rate)
        self._count, self._since = 0, now_monotonic

    def target(self, free_slots: int) -> int:
        """Jobs that the window should hold: 100 ms of work, but at least two for each free slot."""
        return min(WINDOW_MAX, max(2 * free_slots, round(self._rate * WINDOW_SECONDS)))

    def to_lease(self, waiting: int, free_slots: int) -> int:
        """How many to ask for now; 0 while the window is more than half full."""
        target = self.target(free_slots)
        if waiting > target // 2:
            return 0
        return max(target - waiting, 0)


class LeaseDemand:
    """Keeps what waits by kind of slot, so that jobs without a slot do not keep others out.

    Pure: it says which tasks to ask for, for how many jobs, and how many wait that should not.
    """

    def __init__(
        self, slot_kinds: Mapping[str, str], counts: Mapping[str, int], now_monotonic: float
    ) -> None:
        self._slot_kinds = dict(slot_kinds)  # task → kind of slot
        self._counts = counts  # slots of each kind
        self._tasks: dict[str, tuple[str, ...]] = {
            slot_kind: tuple(sorted(task for task, of in slot_kinds.items() if of == slot_kind))
            for slot_kind in sorted(set(slot_kinds.values()))
        }
        self._sizes = {slot_kind: WindowSize(now_monotonic) for slot_kind in self._tasks}
        self._waiting = dict.fromkeys(self._tasks, 0)
        self._ended = dict.fromkeys(self._tasks, 0)  # bodies, since the rates were last looked at
        self._asked = 0  # times that one kind was chosen

    def leased(self, jobs: Iterable[LeasedJob]) -> None:
        slot_kinds, waiting = self._slot_kinds, self._waiting
        for job in jobs:
            waiting[slot_kinds[job.task]] += 1

    def left(self, job: LeasedJob) -> None:
        """A job waits no longer."""
        self._waiting[self._slot_kinds[job.task]] -= 1

    def ended(self, slot_kind: str) -> None:
        """A body has ended."""
        self._ended[slot_kind] += 1

    def clear(self) -> None:
        self._waiting = dict.fromkeys(self._tasks, 0)

    def wanted(
        self,
        free: Mapping[str, int],
        now_monotonic: float,
        exhausted: frozenset[str] = frozenset(),
        held_back: frozenset[str] = frozenset(),
        parked: Mapping[str, int] = _NOBODY,
    ) -> tuple[tuple[str, ...], int]:
        """The tasks to ask for, and for how many jobs in all.

        The answer may be of one kind alone, so it is never more than each kind has room for: kinds
        with about the same room are asked for together, others in turn. Tasks that are held back
        are not asked for, and those of them that are here already (`parked`, by kind) take no room.
        """
        self._note_rates(now_monotonic)
        tasks = self._tasks
        if held_back:
            tasks = {
                slot_kind: tuple(name for name in names if name not in held_back)
                for slot_kind, names in tasks.items()
            }
        rooms = {
            slot_kind: self._sizes[slot_kind].to_lease(
                max(waiting - parked.get(slot_kind, 0), 0), free[slot_kind]
            )
            for slot_kind, waiting in self._waiting.items()
            if tasks[slot_kind]
        }
        asked = [one for one, room in rooms.items() if room > 0]
        asked = [one for one in asked if not exhausted.issuperset(tasks[one])] or asked
        if not asked:
            return (), 0
        least, most = min(rooms[one] for one in asked), max(rooms[one] for one in asked)
        if 2 * least < most:
            self._asked += 1
            asked = [asked[self._asked % len(asked)]]
            least = rooms[asked[0]]
        return tuple(name for one in asked for name in tasks[one]), min(least, WINDOW_MAX)

    def surplus(self, free: Mapping[str, int], now_monotonic: float) -> dict[str, int]:
        """How many jobs of each kind were fetched too early: bodies take longer than they did.

        One for each slot may wait: it is the next round.
        """
        self._note_rates(now_monotonic)
        beyond: dict[str, int] = {}
        for slot_kind, size in self._sizes.items():
            target, slots = size.target(free[slot_kind]), self._counts[slot_kind]
            if self._waiting[slot_kind] > max(2 * target, slots):
                beyond[slot_kind] = self._waiting[slot_kind] - max(target, slots)
        return beyond

    def _note_rates(self, now_monotonic: float) -> None:
        for slot_kind, count in self._ended.items():
            self._sizes[slot_kind].ended(count, now_monotonic)
            self._ended[slot_kind] = 0

    def slot_kind(self, job: LeasedJob) -> str:
        """The kind of slot that a job needs."""
        return self._slot_kinds[job.task]


class LeasedJobs:
    """Owns the leased jobs of a worker that are not in its queue yet: a readiness source.

    A job is ready when it is leased; its end is told to the store, not here.
    """

    def __init__(self, to_task: Callable[[LeasedJob], SchedulableTask]) -> None:
        self._to_task = to_task
        self._pending: dict[Hashable, SchedulableTask] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, jobs: Iterable[LeasedJob]) -> None:
        to_task, pending = self._to_task, self._pending
        for job in jobs:
            task = to_task(job)
            pending[task.task_id] = task

    def ready_frontier(self) -> Sequence[SchedulableTask]:
        return [*self._pending.values()]

    def mark_enqueued(self, ids: Iterable[Hashable]) -> None:
        for task_id in ids:
            self._pending.pop(task_id, None)

    def mark_complete(self, task: SchedulableTask) -> None:
        self._pending.pop(task.task_id, None)

    def clear(self) -> list[SchedulableTask]:
        """Take everything out."""
        tasks = [*self._pending.values()]
        self._pending.clear()
        return tasks


class Starter(Protocol):
    """What a window must know of whoever runs its jobs."""

    def start(
        self, job: LeasedJob, lease: TaskAdmissionLease, correlation: Correlation
    ) -> None: ...

    def free(self) -> dict[str, int]: ...


class PrefetchWindow:
    """Owns what is leased and has not started. Belongs to one loop."""

    def __init__(
        self,
        run_id: str,
        tasks: Mapping[str, ServedTask],
        counts: Mapping[str, int],
        events: SchedulerEvents,
        clock: Clock,
        loop: WorkerLoop,
        give_back: Callable[[JobFailure | JobRef], None],
        pressure: ProviderPressure | None = None,
    ) -> None:
        self._run_id = run_id
        self._resolver = TaskSchedulingResolver(one.task.scheduling for one in tasks.values())
        for note in self._resolver.diagnostics:
            usual = note.code in (SchedulingNote.NO_CAP, SchedulingNote.SEVERAL_ENDPOINTS)
            log.log(logging.DEBUG if usual else logging.WARNING, "%s", note.text)
        self.give_back = give_back
        self._loop = loop
        self._starter: Starter | None = None
        self._starts: StartBudget | None = None
        self.cancelled: set[JobRef] = set()  # those that have not started are given back
        self._is_closed = False
        self._readers = {n: one.kind.reader for n, one in tasks.items() if one.kind.reader}
        self._being_read: dict[JobRef, LeasedJob] = {}
        self._has_news = False  # a task is not held back any more
        self._failures = 0  # of starts, in a row
        self._source = LeasedJobs(self._task_of)
        self._monotonic = clock.monotonic
        slot_kinds = {name: one.task.slot_kind for name, one in tasks.items()}
        self._demand = LeaseDemand(slot_kinds, counts, clock.monotonic())
        self._pressure = pressure
        self._gates: dict[str, Hashable] = {
            name: key
            for name in tasks
            if (key := self._resolver.resolve(name).request_resource_key) is not None
        }
        self._declared = frozenset(self._gates)  # tasks that say what they call
        self._aware: ProviderAwareTaskAdmissionPolicy | None = None
        if pressure is not None:
            inner = BoundedBorrowTaskAdmissionPolicy()
            self._aware = ProviderAwareTaskAdmissionPolicy(inner, pressure, pressure.passes)
        self.held_back: frozenset[str] = frozenset()  # tasks that were not asked for last time
        self._pressed: PressureSnapshot | None = None  # the first of them
        self._held_tasks: set[str] = set()  # by a budget, an account, a paused plan, a drain
        self._in_the_way: dict[Hashable, str | None] = {}  # gate → which of several providers
        self.scheduler = AsyncTaskScheduler(
            TaskAdmissionController(
                TaskAdmissionConfig(sum(counts.values()), counts),
                self._aware,
                monotonic=clock.monotonic,
            ),
            events,
            Correlation(run_id),
            clock.monotonic,
            loop.wake,
        )
        self._jobs = self.scheduler.attach(self._source, self)

    def __len__(self) -> int:
        return len(self._source) + self._jobs.queued

    def connect(self, starter: Starter, starts: StartBudget | None = None) -> None:
        """Set what runs the jobs, and how many of them may start."""
        self._starter = starter
        self._starts = starts

    def take(self, jobs: Sequence[LeasedJob]) -> Coroutine[Any, Any, None] | None:
        """Jobs have been leased: those that need it enter when what is returned was awaited."""
        if self._is_closed:
            for job in jobs:
                self.give_back(JobRef(job.id, job.token))
            return None
        readers = self._readers
        by_reader: dict[JobReader, list[LeasedJob]] = {}
        for job in jobs if readers else ():
            reader = readers.get(job.task)
            if reader is not None:
                by_reader.setdefault(reader, []).append(job)
        if not by_reader:
            self.add(jobs)
            return None
        self.add([job for job in jobs if job.task not in readers])
        for read in by_reader.values():
            self._being_read.update((JobRef(job.id, job.token), job) for job in read)
        return self._read(by_reader)

    async def _read(self, by_reader: Mapping[JobReader, Sequence[LeasedJob]]) -> None:
        """Read for all that were leased together, and let those enter that are still wanted."""
        for reader, jobs in by_reader.items():
            refs = [JobRef(job.id, job.token) for job in jobs]
            with suppress(*TRANSIENT):  # none of them is wanted any more
                await reader.prepare(jobs, partial(self._is_any_wanted, refs))
            wanted = [job for ref in refs if (job := self._being_read.pop(ref, None)) is not None]
            self.add([job for job in wanted if reader.enters(job, self)])

    def _is_any_wanted(self, refs: Iterable[JobRef]) -> bool:
        return any(ref in self._being_read for ref in refs)

    def add(self, jobs: Sequence[LeasedJob]) -> None:
        """Queue leased jobs for the scheduler."""
        if self._held_tasks:
            for job in jobs:
                if job.task in self._held_tasks:
                    self.give_back(JobRef(job.id, job.token))
            jobs = [job for job in jobs if job.task not in self._held_tasks]
        self._source.add(jobs)
        self._demand.leased(jobs)

    def hold_back(self, name: str) -> None:
        """Ask for no more jobs of a task, and give those back that have not started."""
        self._held_tasks.add(name)
        for ref in [ref for ref, job in self._being_read.items() if job.task == name]:
            del self._being_read[ref]
            self.give_back(ref)
        waiting = [*self._source.ready_frontier(), *self.scheduler.queued(self._jobs)]
        for task in [task for task in waiting if task.payload.task == name]:
            self._source.mark_complete(task)
            self.scheduler.discard(task.task_id)
            self._demand.left(task.payload)
            self.give_back(_ref(task))

    def is_held(self, name: str) -> bool:
        """Whether somebody holds a task back."""
        return name in self._held_tasks

    def learn_use(self, name: str, gate: Hashable | None) -> None:
        """The attempts of a task that does not say what it calls have called this so far."""
        if name in self._declared:
            return
        if gate is None:
            self._gates.pop(name, None)
        else:
            self._gates[name] = gate
        waiting = [*self._source.ready_frontier(), *self.scheduler.queued(self._jobs)]
        for task in [task for task in waiting if task.payload.task == name]:
            self.scheduler.discard(task.task_id)
            self._source.add([task.payload])  # it enters anew, with its gate
        self._has_news = True
        self._loop.wake()

    def let_go(self, name: str) -> None:
        """Ask for jobs of a task again."""
        self._held_tasks.discard(name)
        self._has_news = True
        self._loop.wake()

    def take_news(self) -> bool:
        """Whether a task was let go since this was last asked."""
        news, self._has_news = self._has_news, False
        return news

    def wanted(self, exhausted: frozenset[str] = frozenset()) -> tuple[tuple[str, ...], int]:
        """The tasks to ask for, and for how many jobs in all."""
        if self._starter is None:
            return (), 0
        self.held_back = self._find_held_back() | self._held_tasks
        parked = self._parked() if self.held_back else {}
        free = self._free(self._starter)
        return self._demand.wanted(free, self._monotonic(), exhausted, self.held_back, parked)

    def _free(self, starter: Starter) -> dict[str, int]:
        """Free slots by kind: tasks of graphs take them, too."""
        controller, leased = self.scheduler.controller, self.scheduler.controller.leased
        return {
            one: min(free, max((controller.limit(one) or 0) - leased.get(one, 0), 0))
            for one, free in starter.free().items()
        }

    @property
    def holds_for_long(self) -> bool:
        """All that was not asked for last time is held, and may be for hours."""
        return bool(self._held_tasks) and self.held_back == self._held_tasks

    def held_back_by(self) -> dict[str, str]:
        """Tasks that were not asked for last time, and the providers that were in the way."""
        return {
            name: self._in_the_way.get(gate := self._gates[name]) or gate_name(gate)
            for name in sorted(self.held_back - self._held_tasks)
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
        parked = {line.denied.item.request_resource_key for line in self._blocked_lines()}
        for gate in set(self._gates.values()):
            snapshot = pressure.snapshot(gate)
            if snapshot is not None and is_pressed(snapshot):
                if pressure.wants(gate) and gate not in parked:
                    continue
                self._pressed = self._pressed or snapshot
                several = isinstance(gate, SeveralResources) and snapshot.resource is not None
                pressed[gate] = gate_name(snapshot.resource) if several else None
        self._in_the_way = pressed
        return frozenset(name for name, gate in self._gates.items() if gate in pressed)

    def _parked(self) -> dict[str, int]:
        """By kind: jobs that are here and wait for a provider."""
        parked: dict[str, int] = {}
        for line in self._blocked_lines():
            job = line.denied.item.payload
            if not isinstance(job, LeasedJob):
                continue  # a task of a graph
            slot_kind = self._demand.slot_kind(job)
            parked[slot_kind] = parked.get(slot_kind, 0) + line.tasks
        return parked

    def _blocked_lines(self) -> Iterator[BlockedLine]:
        """Jobs that are here and wait for a provider, in lines."""
        for line in self.scheduler.queue.view().blocked():
            if line.denied.until is Until.GATE:
                yield line

    def tell(self) -> None:
        """Say once what is wrong with the pressure of providers."""
        for note in self._aware.take_diagnostics() if self._aware is not None else ():
            log.warning("%s", note.text)

    def ended(self, attempt: Attempt) -> None:
        """A body has ended: its kind of slot counts one more."""
        self._demand.ended(attempt.task.slot_kind)

    def shrink(self) -> bool:
        """Give back what was fetched too early, so that others get it, or are not kept out by it.

        Fast jobs leave a wide window, and slow ones would fill it for long. The last of the
        longest groups go.
        """
        if self._starter is None:
            return False
        beyond = self._demand.surplus(self._free(self._starter), self._monotonic())
        if not beyond:
            return False
        ranked: dict[str, list[tuple[int, SchedulableTask]]] = {one: [] for one in beyond}
        ranks: dict[tuple[str, str], int] = {}
        for task in self.scheduler.queued(self._jobs):
            slot_kind = self._demand.slot_kind(task.payload)
            if slot_kind in ranked:
                of = (slot_kind, task.group.key)
                ranks[of] = ranks.get(of, 0) + 1
                ranked[slot_kind].append((ranks[of], task))
        for slot_kind, tasks in ranked.items():
            tasks.sort(key=lambda entry: -entry[0])
            for _, task in tasks[: beyond[slot_kind]]:
                self.scheduler.discard(task.task_id)
                self._demand.left(task.payload)
                self.give_back(_ref(task))
        return True

    @property
    def weights(self) -> Mapping[str, int]:
        """Of tasks that weigh more than 1."""
        return self._resolver.weights

    def close(self) -> None:
        """Give everything back that has not started, and whatever is leased from now on."""
        self._is_closed = True
        for ref in self.clear():
            self.give_back(ref)

    def clear(self) -> list[JobRef]:
        """Take everything out that has not started."""
        tasks = [*self._source.clear(), *self.scheduler.drop_all(self._jobs)]
        self._demand.clear()
        read = [*self._being_read]
        self._being_read.clear()
        return [*map(_ref, tasks), *read]

    def refs(self) -> set[tuple[int, int]]:
        """The leases of all that wait."""
        tasks = [*self._source.ready_frontier(), *self.scheduler.queued(self._jobs)]
        return {_ref(task) for task in tasks}

    # ── What the scheduler asks for ───────────────────────────────────────────────────────────

    def correlation(self, task: SchedulableTask) -> Correlation:
        job: LeasedJob = task.payload
        return Correlation(self._run_id, job.task, job.partition, job.group, job.id, job.token)

    def start(
        self, task: SchedulableTask, lease: TaskAdmissionLease, correlation: Correlation
    ) -> None:
        job: LeasedJob = task.payload
        self._demand.left(job)
        if self.cancelled and (ref := JobRef(job.id, job.token)) in self.cancelled:
            self.cancelled.discard(ref)
            self.give_back(ref)
            self.scheduler.release(lease, correlation)
        elif self._starts is not None and _counts(job) and not self._starts.take():
            self.give_back(JobRef(job.id, job.token))
            self.scheduler.release(lease, correlation)
        elif self._starter is not None:
            self._starter.start(job, lease, correlation)
            self._failures = 0

    def not_started(self, task: SchedulableTask, error: Exception) -> None:
        """Give the job back; after some of these in a row somebody else must do the work."""
        job: LeasedJob = task.payload
        log.error("Job %r of task %r could not be started: %s", job.key, task_name(job.task), error)
        self.give_back(JobRef(job.id, job.token))
        if self._starts is not None and _counts(job):
            self._starts.give_back()
        self._failures += 1
        if self._failures >= SPAWN_FAILURES_MAX:
            self._loop.fail(error)

    def blocked(self) -> None:
        """Leased jobs wait until something changes."""

    def _task_of(self, job: LeasedJob) -> SchedulableTask:
        scheduling = self._resolver.for_job(job.task, job.group)
        return SchedulableTask(
            (job.id, job.token),
            job,
            scheduling.group,
            scheduling.resource_request,
            self._gates.get(job.task),
            job.priority,
        )


def _counts(job: LeasedJob) -> bool:
    """Whether its start is one of those that a run may have; ticks of schedules do not count."""
    return job.kind is not JobKind.TICK


def _ref(task: SchedulableTask) -> JobRef:
    job: LeasedJob = task.payload
    return JobRef(job.id, job.token)
