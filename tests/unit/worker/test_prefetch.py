# SPDX-License-Identifier: Apache-2.0
"""How many jobs wait in the prefetch window, in which order, and which are given back."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from penstock.admission.tasks.decisions import DenialReason, TaskAdmissionLease
from penstock.definitions.context import Context
from penstock.definitions.task import Task, TaskOptions
from penstock.events.kinds import Correlation
from penstock.events.sink import SchedulerEvents
from penstock.model.job import JobId, LeasedJob
from penstock.model.lease import JobFailure, JobRef
from penstock.model.task import SchedulableTask, SchedulerResourceRequest, TaskGroupSpec
from penstock.testing.clocks import ManualClock
from penstock.testing.recording_sink import RecordingSink
from penstock.worker.attempt import Attempt, TaskLimits
from penstock.worker.job_kind import PlainKind
from penstock.worker.kind import ServedTask
from penstock.worker.parts import WorkerLoop
from penstock.worker.prefetch import (
    WINDOW_MAX,
    WINDOW_SECONDS,
    LeaseDemand,
    PrefetchWindow,
    WindowSize,
)


def job(key: str, group: str = "g", priority: int = 0) -> LeasedJob:
    return LeasedJob(
        id=JobId(1),
        token=1,
        key=key,
        task="t",
        group=group,
        lane_id=1,
        payload="{}",
        priority=priority,
    )


# The size


def test_an_idle_worker_asks_for_two_jobs_for_each_free_slot() -> None:
    window = WindowSize(0.0)

    assert window.target(8) == 16
    assert window.to_lease(0, 8) == 16
    assert window.to_lease(8, 8) == 8
    assert window.to_lease(9, 8) == 0  # more than half full


def test_a_busy_worker_keeps_a_tenth_of_a_second_of_work_ready() -> None:
    window = WindowSize(0.0)
    for step in range(1, 1_000):
        window.ended(50, step * 0.01)  # 5,000 per second

    assert window.rate == pytest.approx(5_000, rel=0.01)
    assert window.target(0) == pytest.approx(5_000 * WINDOW_SECONDS, rel=0.01)


def test_the_window_never_grows_beyond_its_maximum() -> None:
    window = WindowSize(0.0)
    for step in range(1, 100):
        window.ended(100_000, step * 0.1)

    assert window.target(0) == window.target(5_000) == WINDOW_MAX
    assert window.to_lease(0, 5_000) == WINDOW_MAX


def test_a_full_worker_without_ends_asks_for_nothing() -> None:
    window = WindowSize(0.0)

    assert window.target(0) == 0
    assert window.to_lease(0, 0) == 0


def test_the_rate_forgets_half_of_the_past_in_half_a_second() -> None:
    window = WindowSize(0.0)
    for step in range(1, 500):
        window.ended(10, step * 0.1)  # 100 per second
    before = window.rate

    window.ended(0, 49.9 + 0.5)

    assert window.rate == pytest.approx(before / 2, rel=0.01)


def test_ends_of_one_moment_are_counted_together() -> None:
    window = WindowSize(0.0)
    for _ in range(100):
        window.ended(1, 0.001)
    assert window.rate == 0.0  # too short a time to say anything

    window.ended(0, 0.5)

    assert window.rate == pytest.approx(100)  # half of 100 / 0.5 s


# Several kinds of slots

KINDS = {"fetch": "async", "parse": "thread", "render": "process"}
COUNTS = {"async": 8, "thread": 32, "process": 4}


def test_free_slots_of_one_kind_fetch_no_jobs_for_another() -> None:
    appetite = LeaseDemand(KINDS, COUNTS, 0.0)
    free = {"async": 1, "thread": 32, "process": 2}

    asked = {appetite.wanted(free, 0.0) for _ in range(3)}

    assert asked == {(("fetch",), 2), (("parse",), 64), (("render",), 4)}


def test_kinds_with_about_the_same_room_are_asked_for_together() -> None:
    appetite = LeaseDemand(KINDS, COUNTS, 0.0)

    assert appetite.wanted({"async": 8, "thread": 6, "process": 4}, 0.0) == (
        ("fetch", "render", "parse"),
        8,
    )


def test_tasks_that_are_held_back_are_not_asked_for_and_take_no_room() -> None:
    kinds = {"ask": "async", "fetch": "async", "parse": "thread"}
    appetite = LeaseDemand(kinds, {"async": 4, "thread": 4}, 0.0)
    free = {"async": 4, "thread": 0}
    assert appetite.wanted(free, 0.0, held_back=frozenset({"ask"})) == (("fetch",), 8)
    assert appetite.wanted(free, 0.0, held_back=frozenset({"ask", "fetch"})) == ((), 0)

    appetite.leased(msgspec.structs.replace(job(str(n)), task="ask") for n in range(8))

    assert appetite.wanted(free, 0.0) == ((), 0)
    held = frozenset({"ask"})
    assert appetite.wanted(free, 0.0, held_back=held, parked={"async": 8}) == (("fetch",), 8)
    assert appetite.wanted(free, 0.0, held_back=held, parked={"async": 80}) == (("fetch",), 8)


def test_a_kind_of_which_there_is_nothing_more_is_asked_for_last() -> None:
    appetite = LeaseDemand(KINDS, COUNTS, 0.0)
    free = {"async": 1, "thread": 32, "process": 0}

    assert {appetite.wanted(free, 0.0, frozenset({"parse"})) for _ in range(4)} == {(("fetch",), 2)}
    assert appetite.wanted({**free, "async": 0}, 0.0, frozenset({"parse"})) == (("parse",), 64)


# From the lease to the slot


class FakeSlots:
    """Slots of one kind; bodies end when the test says so."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.running: list[tuple[LeasedJob, TaskAdmissionLease, Correlation]] = []
        self.started: list[str] = []
        self.refuses = 0

    def free(self) -> dict[str, int]:
        return {"async": self.count - len(self.running)}

    def start(self, job: LeasedJob, lease: TaskAdmissionLease, correlation: Correlation) -> None:
        if self.refuses:
            self.refuses -= 1
            raise OSError("no more of these")
        self.running.append((job, lease, correlation))
        self.started.append(job.key)


class CountedLoop(WorkerLoop):
    """Counts how often it is woken."""

    def __init__(self) -> None:
        super().__init__()
        self.wakes = 0
        self.wake = self._count

    def _count(self) -> None:
        self.wakes += 1


class Desk:
    """A window over fake slots."""

    def __init__(self, slots: int = 1) -> None:
        self.clock = ManualClock()
        self.sink = RecordingSink()
        self.slots = FakeSlots(slots)
        self.given_back: list[JobFailure | JobRef] = []
        self.loop = CountedLoop()

        async def t(ctx: Context) -> None: ...

        task: Task[..., object] = Task("t", t, TaskOptions())
        self.window = PrefetchWindow(
            "run",
            {"t": ServedTask(task, TaskLimits(3, None, 3), PlainKind())},
            {"async": slots},
            SchedulerEvents(self.clock, [self.sink]),
            self.clock,
            self.loop,
            self.given_back.append,
        )
        self.window.connect(self.slots)
        self._ids = itertools.count(1)

    def add(self, *jobs: LeasedJob) -> None:
        self.window.add([msgspec.structs.replace(job, id=JobId(next(self._ids))) for job in jobs])

    def end_first(self) -> None:
        _, lease, correlation = self.slots.running.pop(0)
        self.window.scheduler.release(lease, correlation)

    def everything(self) -> list[str]:
        """Run all that waits to its end, one after the other as slots allow."""
        before = len(self.slots.started)
        self.window.scheduler.turn()
        while self.slots.running:
            self.end_first()
            self.window.scheduler.turn()
        return self.slots.started[before:]


def test_groups_take_turns() -> None:
    desk = Desk()
    desk.add(*(job(f"a{n}", "a") for n in range(4)))
    desk.add(*(job(f"b{n}", "b") for n in range(2)))
    desk.add(job("c0", "c"))

    assert len(desk.window) == 7
    assert desk.everything() == ["a0", "b0", "c0", "a1", "b1", "a2", "a3"]
    assert len(desk.window) == 0


def test_inside_a_group_priority_goes_first_and_then_who_came_first() -> None:
    desk = Desk()
    desk.add(job("low", priority=-1), job("first"), job("second"), job("high", priority=9))
    desk.add(job("third"), job("higher", priority=10))

    assert desk.everything() == ["higher", "high", "first", "second", "third", "low"]


def test_no_more_jobs_start_than_there_are_slots() -> None:
    desk = Desk(slots=2)
    desk.add(*(job(f"a{n}") for n in range(5)))

    assert desk.window.scheduler.turn() == 2
    assert desk.window.scheduler.turn() == 0
    wakes = desk.loop.wakes
    desk.end_first()

    assert desk.loop.wakes == wakes + 1
    assert desk.window.scheduler.turn() == 1
    assert desk.slots.started == ["a0", "a1", "a2"]


def test_a_full_worker_says_what_its_jobs_wait_for() -> None:
    desk = Desk()
    desk.add(job("a"), job("b"))
    desk.window.scheduler.turn()

    (line,) = desk.window.scheduler.queue.view().blocked()
    waits_for = desk.window.scheduler.standing((2, 1))

    assert (line.denied.reason, line.denied.resource) == (DenialReason.NO_CAPACITY, "async")
    assert waits_for is line.denied
    assert [event.event_kind for event in desk.sink.events][-1] == "admission_blocked"


def test_a_cancelled_job_is_passed_over_and_its_slot_is_free_again() -> None:
    desk = Desk()
    desk.add(job("a"), job("b"))
    desk.window.cancelled = {JobRef(JobId(1), 1)}

    assert desk.everything() == ["b"]
    assert desk.window.scheduler.controller.leases == 0


def test_a_job_that_cannot_be_started_is_given_back_and_holds_nothing() -> None:
    desk = Desk()
    desk.slots.refuses = 1
    desk.add(job("a"), job("b"))

    assert desk.everything() == ["b"]
    assert desk.given_back == [JobRef(JobId(1), 1)]
    assert desk.loop.failure is None
    assert desk.window.scheduler.controller.leases == 0


def test_a_process_that_can_start_nothing_fails() -> None:
    desk = Desk()
    desk.slots.refuses = 3
    desk.add(job("a"), job("b"), job("c"), job("d"))

    desk.everything()

    assert len(desk.given_back) == 3
    assert str(desk.loop.failure) == "no more of these"


def test_clearing_gives_everything_back_once() -> None:
    desk = Desk()
    desk.add(job("a0", "a"), job("b0", "b"))
    desk.window.scheduler.turn()
    desk.add(job("a1", "a"))

    assert desk.window.refs() == {(2, 1), (3, 1)}
    assert set(desk.window.clear()) == {JobRef(JobId(2), 1), JobRef(JobId(3), 1)}
    assert desk.window.clear() == []
    assert len(desk.window) == 0
    desk.add(job("a2", "a"))
    assert desk.everything() == ["a2"]


def test_what_waits_in_vain_is_given_back_when_bodies_become_slow() -> None:
    desk = Desk(slots=2)
    fast = cast("Attempt", SimpleNamespace(task=SimpleNamespace(slot_kind="async")))
    for _ in range(1_000):  # 1,000 per second
        desk.clock.advance(0.001)
        desk.window.ended(fast)
    desk.add(*(job(f"a{n}", "a") for n in range(90)), *(job(f"b{n}", "b") for n in range(2)))
    desk.window.scheduler.turn()

    assert not desk.window.shrink()
    desk.clock.advance(10.0)  # nothing ends
    assert desk.window.shrink()
    assert not desk.window.shrink()

    assert len(desk.given_back) == 88
    assert len(desk.window) == 2
    assert desk.everything() == ["a1", "b1"]
    assert desk.window.wanted() == (("t",), 4)


# Beside the tasks of graphs


class Cells:
    """A source and starter of tasks in memory."""

    def __init__(self, count: int, gate: str | None = None) -> None:
        request = SchedulerResourceRequest({"async": 1})
        table = TaskGroupSpec("table:reviews")
        tasks = (SchedulableTask((0, n), None, table, request, gate) for n in range(count))
        self.waiting = {task.task_id: task for task in tasks}
        self.leases: list[TaskAdmissionLease] = []

    def ready_frontier(self) -> list[SchedulableTask]:
        return [*self.waiting.values()]

    def mark_enqueued(self, ids: Iterable[Hashable]) -> None:
        for task_id in ids:
            del self.waiting[task_id]

    def mark_complete(self, task: SchedulableTask) -> None: ...

    def correlation(self, task: SchedulableTask) -> Correlation:
        return Correlation("run", str(task.task_id))

    def start(
        self, task: SchedulableTask, lease: TaskAdmissionLease, correlation: Correlation
    ) -> None:
        self.leases.append(lease)

    def not_started(self, task: SchedulableTask, error: Exception) -> None: ...

    def blocked(self) -> None: ...


def test_slots_that_cells_hold_are_leased_no_jobs_for() -> None:
    desk, cells = Desk(slots=4), Cells(3)
    assert desk.window.wanted() == (("t",), 8)

    desk.window.scheduler.attach(cells, cells)
    desk.window.scheduler.turn()

    assert len(cells.leases) == 3
    assert desk.window.wanted() == (("t",), 2)


@pytest.mark.parametrize("gate", [None, "openai"])
def test_whatever_is_done_to_the_jobs_of_a_window_leaves_cells_alone(gate: str | None) -> None:
    desk, cells = Desk(slots=2), Cells(9, gate)
    scheduler = desk.window.scheduler
    attachment = scheduler.attach(cells, cells)
    desk.add(*(job(f"a{n}") for n in range(9)))
    scheduler.turn()
    assert (len(desk.window), attachment.queued) == (8, 8)  # one of each has started

    desk.window.learn_use("t", "openai")
    scheduler.turn()
    assert (len(desk.window), attachment.queued) == (8, 8)
    assert len(desk.window.refs()) == 8
    desk.clock.advance(10.0)
    desk.window.shrink()
    desk.window.hold_back("t")
    assert (len(desk.window), attachment.queued) == (0, 8)
    desk.window.let_go("t")
    desk.add(job("a9"))
    scheduler.turn()
    desk.window.close()

    assert (len(desk.window), attachment.queued) == (0, 8)
    assert len(scheduler.detach(attachment)) == 8
    assert scheduler.detach(attachment) == []
    assert not len(scheduler.queue)
    assert len(desk.given_back) == 9
