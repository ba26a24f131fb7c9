# SPDX-License-Identifier: Apache-2.0
"""Does the queue keep members and order, and change only when it is told to?"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.admission.tasks.controller import TaskAdmissionConfig, TaskAdmissionController
from penstock.admission.tasks.decisions import DenialReason, TaskAdmissionDenied, Until
from penstock.admission.tasks.queue import (
    CapacityChanges,
    FairTaskQueue,
    QueueSelection,
    QueueView,
)
from penstock.errors import InternalError
from penstock.model.task import SchedulableTask, TaskGroupSpec
from tests.scheduling import check_queue, task, tasks, turn


def yes(item: SchedulableTask, view: QueueView) -> bool:
    return True


def take(queue: FairTaskQueue, count: int = 1_000) -> list[object]:
    taken: list[object] = []
    while len(taken) < count and (selection := queue.select_next(yes)) is not None:
        assert queue.commit(selection) is selection.item
        taken.append(selection.item.task_id)
    return taken


def queue_of(*items: SchedulableTask) -> FairTaskQueue:
    queue = FairTaskQueue()
    queue.enqueue(items)
    return queue


def test_select_next_changes_nothing() -> None:
    queue = queue_of(task(1, "a"), task(2, "b"), task(3, "a"))
    before = queue.view().snapshot()

    first = queue.select_next(yes)
    second = queue.select_next(yes)

    assert first == second
    assert queue.view().snapshot() == before
    check_queue(queue)


@pytest.mark.parametrize(
    "change",
    [
        lambda queue: queue.enqueue([task("new", "b")]),
        lambda queue: queue.discard("other"),
        lambda queue: queue.commit(queue.select_next(yes)),
    ],
    ids=["enqueue", "discard", "commit"],
)
def test_commit_rejects_a_selection_made_before_a_change(
    change: Callable[[FairTaskQueue], object],
) -> None:
    queue = queue_of(task("first", "a"), task("other", "a"))
    stale = queue.select_next(yes)
    assert stale is not None

    change(queue)

    assert queue.commit(stale) is None
    check_queue(queue)


def test_commit_accepts_a_selection_after_an_enqueue_that_brought_nothing_new() -> None:
    queue = queue_of(task(1))
    selection = queue.select_next(yes)
    assert selection is not None

    queue.enqueue([task(1)])

    assert queue.commit(selection) is selection.item


def test_enqueue_is_idempotent_by_task_id() -> None:
    queue = FairTaskQueue()

    assert queue.enqueue([task(1, "a"), task(1, "b"), task(2, "a")]) == (1, 2)
    assert queue.enqueue([task(2, "a")]) == ()
    assert len(queue) == 2
    assert 1 in queue
    assert 3 not in queue


def test_a_task_that_was_taken_may_come_again() -> None:
    queue = queue_of(task(1))
    assert take(queue) == [1]

    assert queue.enqueue([task(1)]) == (1,)
    assert take(queue) == [1]


def test_a_group_is_ordered_by_priority_and_then_first_come() -> None:
    queue = queue_of(
        task("low", priority=-1),
        task("first"),
        task("high", needs={"r": 1}, priority=5),
        task("second"),
        task("high too", priority=5),
    )

    assert take(queue) == ["high", "high too", "first", "second", "low"]


def test_priority_does_not_reach_beyond_its_group() -> None:
    urgent = [task(f"a-{n}", "a", priority=9) for n in range(4)]
    queue = queue_of(*urgent, *tasks(4, "b"))

    assert take(queue, 4) == ["a-0", "b-0", "a-1", "b-1"]


def test_weights_decide_how_often_a_group_is_next() -> None:
    heavy = TaskGroupSpec("heavy", 3)
    queue = queue_of(*tasks(20, heavy), *tasks(20, "light"))

    taken = take(queue, 16)

    assert sum(str(name).startswith("heavy") for name in taken) == 12  # 16 × 3/4


def test_a_group_is_what_its_latest_task_says() -> None:
    queue = queue_of(*tasks(30, "a"), *tasks(30, "b"))
    queue.enqueue([task("more", TaskGroupSpec("a", 3))])
    check_queue(queue)

    taken = take(queue, 16)

    assert sum(str(name).startswith("a") for name in taken) == 12  # 16 × 3/4


def test_a_group_that_was_away_keeps_no_credit() -> None:
    queue = queue_of(*tasks(10, "stays"), task("early", "leaves"))
    assert len(take(queue, 9)) == 9  # "early" among them

    queue.enqueue([task(f"late-{n}", "leaves") for n in range(5)])

    assert take(queue, 4) == ["late-0", "stays-8", "late-1", "stays-9"]


def test_a_discarded_task_is_never_selected() -> None:
    queue = queue_of(*tasks(5, "a"))

    assert queue.discard("a-0") is True  # the first
    assert queue.discard("a-3") is True  # one inside
    assert queue.discard("a-3") is False
    check_queue(queue)

    assert take(queue) == ["a-1", "a-2", "a-4"]


def test_discarding_everything_leaves_nothing_behind() -> None:
    queue = queue_of(*tasks(5, "a", {"r": 1}), *tasks(5, "b"))

    gone = queue.discard_where(lambda item: True)

    assert len(gone) == 10
    assert repr(queue) == "<FairTaskQueue 0 queued in 0 groups, v11>"
    assert take(queue) == []
    check_queue(queue)


def test_discard_where_takes_out_exactly_what_the_predicate_names() -> None:
    queue = queue_of(*tasks(50, "a"), *tasks(50, "b", {"r": 1}))

    gone = queue.discard_where(lambda item: item.group.key == "b" and item.task_id != "b-7")

    assert len(gone) == 49
    assert queue.view().queued("b") == 1
    assert queue.view().queued("a") == 50
    check_queue(queue)


def test_the_view_is_live_and_a_snapshot_is_not() -> None:
    queue = queue_of(task(1, "a", {"r": 2}), task(2, "a", {"r": 1}, priority=1), task(3, "b"))
    view = queue.view()
    snapshot = view.snapshot()

    assert view.queued_total == 3
    assert view.queued("a") == 2
    assert view.queued("nobody") == 0
    assert [*view.groups()] == ["a", "b"]
    assert view.rivals("a", "submission") == 1
    assert view.rivals("a", "r") == 0
    assert view.rivals("b", "r") == 1
    assert view.rivals("a", "unheard of") == 0

    queue.discard(3)

    assert view.queued_total == 2
    assert "b" not in view.snapshot().demand_by_group
    assert snapshot.queued_total == 3
    assert snapshot.queued_by_group == {"a": 2, "b": 1}
    assert snapshot.demand_by_group["a"] == {"submission": 2, "r": 3}
    assert snapshot.blocked_by_reason == {}


def test_weights_of_competitors_count_each_group_once() -> None:
    heavy, light = TaskGroupSpec("heavy", 5), TaskGroupSpec("light", 1)
    view = queue_of(*tasks(3, heavy, {"r": 1}), task("x", light, {"r": 2})).view()

    assert view.rivalry(light, "r") == (1, 6)  # 5 + 1
    assert view.rivalry(TaskGroupSpec("third", 2), "r") == (2, 8)  # 5 + 1 + 2
    assert view.rivalry(light, "unheard of") == (0, 1)


def test_a_denial_without_the_resource_it_waits_for_is_an_internal_error() -> None:
    queue = queue_of(task(1))

    with pytest.raises(InternalError, match="A denial until capacity names no resource"):
        queue.select_next(
            lambda item, view: TaskAdmissionDenied(item, DenialReason.NO_CAPACITY, Until.CAPACITY)
        )


def test_a_callback_that_raises_leaves_the_queue_as_it_was() -> None:
    queue = queue_of(task(1, "a"), task(2, "b"))

    def fails(item: SchedulableTask, view: QueueView) -> bool:
        if item.task_id == 1:
            return False
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        queue.select_next(fails)

    check_queue(queue)
    assert take(queue) == [1, 2]


def test_the_queue_does_not_grow_with_groups_that_came_and_went() -> None:
    queue = queue_of(task("stays", "z"))

    for n in range(5_000):
        queue.enqueue([task(n, f"group {n}")])
        queue.discard(n)
    for n in range(5_000):
        queue.enqueue([task(n, f"group {n}")])
        queue.commit(_selected(queue))

    assert len(queue._free._heap) < 100
    assert len(queue._submissions.tags) < 1_100
    check_queue(queue)


def _selected(queue: FairTaskQueue) -> QueueSelection:
    selection = queue.select_next(yes)
    assert selection is not None
    return selection


@pytest.mark.parametrize("slots", [1, 2, 8])
def test_groups_of_one_task_each_do_not_keep_out_a_group_that_stays(slots: int) -> None:
    queue = FairTaskQueue()
    limits = TaskAdmissionConfig(slots, {"async": slots})
    controller = TaskAdmissionController(limits, monotonic=lambda: 0.0)
    queue.enqueue(tasks(100, "stays", {"async": 1}))
    leases = turn(queue, controller)
    waited, longest = 0, 0
    queue.enqueue([task("one", "one", {"async": 1})])
    for n in range(200):  # there are never more than three groups
        queue.enqueue([task(f"new-{n}", f"new-{n}", {"async": 1})])
        while len(queue.view().snapshot().queued_by_group) > 2:
            controller.release(leases.pop(0))
            started = turn(queue, controller)
            leases += started
            waited = 0 if any(x.item.group.key == "stays" for x in started) else waited + 1
            longest = max(longest, waited)

    assert longest <= 8


# ── Parts of a group ──────────────────────────────────────────────────────────────────────────


def served(queue: FairTaskQueue, count: int) -> list[str]:
    """The parts of the next tasks, all of which may start."""
    found = []
    for _ in range(count):
        selection = queue.select_next(lambda item, view: True)
        assert selection is not None
        assert queue.commit(selection) is not None
        check_queue(queue)
        found.append(selection.item.part)
    return found


def test_parts_of_a_group_take_turns_whatever_is_queued_before() -> None:
    queue = FairTaskQueue()
    queue.enqueue(task(f"made-{n}", "table", part="made") for n in range(40))
    assert served(queue, 3) == ["made"] * 3

    queue.enqueue(task(f"judged-{n}", "table", part="judged") for n in range(3))

    assert served(queue, 7) == ["made", "judged"] * 3 + ["made"]


def test_parts_that_ask_for_different_things_take_turns_too() -> None:
    queue = FairTaskQueue()
    queue.enqueue(task(f"a-{n}", "table", {"r": 1}, part="a") for n in range(6))
    queue.enqueue(task(f"b-{n}", "table", {"s": 2}, part="b") for n in range(6))
    queue.enqueue(task(f"c-{n}", "table", {"s": 1}, part="c") for n in range(6))

    assert served(queue, 9) == ["a", "b", "c"] * 3


def test_a_part_that_asks_for_several_things_has_no_more_turns_for_it() -> None:
    queue = FairTaskQueue()
    queue.enqueue(task(f"r-{n}", "table", {"r": 1}, part="several") for n in range(4))
    queue.enqueue(task(f"s-{n}", "table", {"s": 1}, part="several") for n in range(4))
    queue.enqueue(task(f"t-{n}", "table", {"t": 1}, part="single") for n in range(8))

    assert served(queue, 16) == ["several", "single"] * 8


def test_parts_behind_one_gate_take_turns_when_it_opens() -> None:
    queue, closed = FairTaskQueue(), True

    def eligible(item: SchedulableTask, view: QueueView) -> bool | TaskAdmissionDenied:
        if closed and item.request_resource_key is not None:
            return TaskAdmissionDenied(item, DenialReason.POLICY, Until.GATE)
        return True

    for part in ("write", "judge"):
        queue.enqueue(task(f"{part}-{n}", "table", gate="openai", part=part) for n in range(5))
    assert queue.select_next(eligible) is None
    closed = False
    queue.reopen(CapacityChanges(gates={"openai"}))

    assert served(queue, 10) == ["write", "judge"] * 5


def test_parts_count_as_one_group_beside_another() -> None:
    queue = FairTaskQueue()
    queue.enqueue(task(f"{part}-{n}", "table", part=part) for part in "abc" for n in range(9))
    queue.enqueue(task(f"job-{n}", "jobs", part="jobs") for n in range(9))

    found = served(queue, 12)

    assert found.count("jobs") == 6
    assert [part for part in found if part != "jobs"] == ["a", "b", "c"] * 2


def test_a_part_that_had_nothing_to_do_keeps_no_claim() -> None:
    queue = FairTaskQueue()
    queue.enqueue([task("early", "table", part="late")])
    queue.enqueue(task(f"made-{n}", "table", part="made") for n in range(40))
    served(queue, 20)

    queue.enqueue(task(f"late-{n}", "table", part="late") for n in range(9))

    assert served(queue, 7).count("late") in (3, 4)


def test_a_part_that_was_kept_back_by_its_provider_keeps_no_claim() -> None:
    queue, closed = FairTaskQueue(), True

    def eligible(item: SchedulableTask, view: QueueView) -> bool | TaskAdmissionDenied:
        if closed and item.request_resource_key is not None:
            return TaskAdmissionDenied(item, DenialReason.POLICY, Until.GATE)
        return True

    queue.enqueue(task(f"gated-{n}", "table", gate="openai", part="gated") for n in range(40))
    queue.enqueue(task(f"local-{n}", "table", part="local") for n in range(40))
    for _ in range(20):
        selection = queue.select_next(eligible)
        assert selection is not None
        assert selection.item.part == "local"
        queue.commit(selection)
    closed = False
    queue.reopen(CapacityChanges(everything=True))
    check_queue(queue)

    assert served(queue, 7).count("gated") in (3, 4)


def test_priority_goes_before_the_turns_of_parts() -> None:
    queue = FairTaskQueue()
    queue.enqueue(task(f"a-{n}", "table", part="a") for n in range(3))
    queue.enqueue(task(f"b-{n}", "table", part="b", priority=1) for n in range(3))

    assert served(queue, 6) == ["b", "b", "b", "a", "a", "a"]
