# SPDX-License-Identifier: Apache-2.0
"""Who waits where, who is asked again, and when?"""

from __future__ import annotations

from penstock.admission.tasks.controller import TaskAdmissionConfig, TaskAdmissionController
from penstock.admission.tasks.decisions import (
    DenialReason,
    TaskAdmissionDenied,
    TaskAdmissionLease,
    Until,
)
from penstock.admission.tasks.policies import StrictFairTaskAdmissionPolicy
from penstock.admission.tasks.queue import (
    TAGS_KEPT,
    CapacityChanges,
    Contest,
    FairTaskQueue,
    Group,
    QueueView,
)
from penstock.model.task import SchedulableTask, TaskGroupSpec
from tests.scheduling import check_queue, task, tasks, turn


class Asked:
    """An eligibility callback that remembers what it was asked."""

    def __init__(self, controller: TaskAdmissionController) -> None:
        self.controller = controller
        self.ids: list[object] = []

    def __call__(self, item: SchedulableTask, view: QueueView) -> bool | TaskAdmissionDenied:
        self.ids.append(item.task_id)
        return self.controller.is_eligible(item, view)


def controller_of(**limits: int) -> TaskAdmissionController:
    """Strict fair without admitted limits: nothing but capacity."""
    return TaskAdmissionController(
        TaskAdmissionConfig(resource_limits=limits),
        StrictFairTaskAdmissionPolicy(),
        monotonic=lambda: 0.0,
    )


def queue_of(*items: SchedulableTask) -> FairTaskQueue:
    queue = FairTaskQueue()
    queue.enqueue(items)
    return queue


def ids(leases: list[TaskAdmissionLease]) -> list[object]:
    return [lease.item.task_id for lease in leases]


def test_a_bare_false_is_asked_for_in_every_selection() -> None:
    queue = queue_of(task(1, "a"), task(2, "a", {"r": 1}), task(3, "b"))
    asked: list[object] = []

    def no(item: SchedulableTask, view: QueueView) -> bool:
        asked.append(item.task_id)
        return False

    for _ in range(3):
        assert queue.select_next(no) is None
        check_queue(queue)

    assert sorted(asked, key=str) == [1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_a_bare_false_leaves_no_memory_in_a_line_that_had_opened() -> None:
    queue, controller = queue_of(*tasks(3, "a", {"r": 1})), controller_of(r=1)
    [lease] = turn(queue, controller)
    controller.release(lease)
    changes = controller.take_changes()
    assert changes is not None
    queue.reopen(changes)

    assert queue.select_next(lambda item, view: False) is None

    selection = queue.select_next(controller.is_eligible)
    assert selection is not None
    check_queue(queue)


def test_a_denied_bucket_is_not_asked_again_until_its_resource_is_released() -> None:
    queue = queue_of(*tasks(3, "a", {"r": 1}), *tasks(3, "b", {"r": 1}))
    controller = controller_of(r=1)
    [lease] = turn(queue, controller)
    asked = Asked(controller)

    for _ in range(5):
        assert queue.select_next(asked) is None
    queue.enqueue([task("more", "a", {"r": 1})])
    queue.reopen(CapacityChanges(resources={"another"}))
    assert queue.select_next(asked) is None
    assert asked.ids == []

    controller.release(lease)
    changes = controller.take_changes()
    assert changes is not None
    queue.reopen(changes)
    assert queue.select_next(asked) is not None
    assert asked.ids == ["b-0"]


def test_a_newcomer_is_not_asked_for_what_is_known_to_be_used_up() -> None:
    queue, controller = queue_of(*tasks(2, "a", {"r": 1})), controller_of(r=1)
    turn(queue, controller)
    asked = Asked(controller)

    queue.enqueue([task("new", "b", {"r": 1}), task("large", "c", {"r": 2})])

    assert queue.select_next(asked) is None
    assert asked.ids == []
    check_queue(queue)


def test_a_blocked_bucket_blocks_no_sibling() -> None:
    queue = queue_of(*tasks(3, "a", {"r": 1}), task("sibling", "a", {"s": 1}))

    assert ids(turn(queue, controller_of(r=1, s=1))) == ["a-0", "sibling"]


def test_a_sibling_that_asks_for_less_is_not_blocked_in_the_same_line() -> None:
    queue, controller = FairTaskQueue(), controller_of(r=4)
    queue.enqueue(tasks(4, "a", {"r": 1}))
    held = turn(queue, controller)
    queue.enqueue([task("large", "a", {"r": 3}, priority=1), task("small", "a", {"r": 1})])
    assert turn(queue, controller) == []

    controller.release(held[0])

    assert ids(turn(queue, controller)) == ["small"]


def test_groups_that_wait_get_what_is_released_in_fair_order() -> None:
    queue = queue_of(*tasks(9, "a", {"r": 1}), *tasks(9, "b", {"r": 1}), *tasks(9, "c", {"r": 1}))
    controller = controller_of(r=1)
    order: list[object] = []

    for _ in range(6):
        leases = turn(queue, controller)
        order += ids(leases)
        controller.release(leases[0])

    assert order == ["a-0", "b-0", "c-0", "a-1", "b-1", "c-1"]


def test_weights_hold_when_several_leases_end_at_once() -> None:
    heavy = TaskGroupSpec("heavy", 9)
    queue = queue_of(*tasks(60, heavy, {"r": 1}), *tasks(60, "light", {"r": 1}))
    controller = controller_of(r=2)
    order: list[object] = []

    while len(order) < 40:
        leases = turn(queue, controller)
        order += ids(leases)
        for lease in leases:
            controller.release(lease)

    assert sum(str(name).startswith("heavy") for name in order) == 36  # 40 × 9/10


def test_a_group_that_waits_for_one_resource_does_not_hold_back_another() -> None:
    queue = queue_of(*tasks(5, "a", {"r": 1}), *tasks(5, "b", {"s": 1}))

    started = ids(turn(queue, controller_of(r=1, s=5)))

    assert started == ["a-0", "b-0", "b-1", "b-2", "b-3", "b-4"]


def test_a_group_that_was_blocked_elsewhere_keeps_no_credit() -> None:
    """While `a` waited for s, b used r: back at r, a has no more turns than b."""
    queue = queue_of(*tasks(20, "a", {"r": 1, "s": 1}), *tasks(40, "b", {"r": 1}))
    controller = controller_of(r=2, s=1)
    controller.set_limit("s", 0)
    for _ in range(10):
        for lease in turn(queue, controller):
            controller.release(lease)

    controller.set_limit("s", 20)
    order = []
    for _ in range(5):
        leases = turn(queue, controller)
        order += ids(leases)
        for lease in leases:
            controller.release(lease)

    assert sum(str(name).startswith("a") for name in order) <= 6  # half, and one


def test_a_group_that_waits_keeps_its_place() -> None:
    """`large` waits for room while others start: its turn is not put off by theirs."""
    queue, controller = FairTaskQueue(), controller_of(r=3)
    queue.enqueue(tasks(30, "small", {"r": 1}))
    held = turn(queue, controller)
    queue.enqueue(tasks(2, "large", {"r": 3}))
    assert turn(queue, controller) == []
    started: list[object] = []

    while "large-0" not in started:
        controller.release(held.pop(0))
        leases = turn(queue, controller)
        held += leases
        started += ids(leases)

    assert len(started) == 4  # three units passed it: the whole limit


def test_large_requests_are_not_starved_by_small_ones_that_keep_coming() -> None:
    queue, controller = FairTaskQueue(), controller_of(r=3)
    queue.enqueue(tasks(3, "first", {"r": 1}))
    held = turn(queue, controller)
    queue.enqueue([task("large", "z", {"r": 3})])
    assert turn(queue, controller) == []
    started: list[object] = []

    for n in range(12):
        queue.enqueue([task(n, f"new {n}", {"r": 1})])
        controller.release(held.pop(0))
        leases = turn(queue, controller)
        held += leases
        started += ids(leases)
        if "large" in started:
            break

    assert started[-1] == "large"
    assert len(started) == 4  # three units passed it: the whole limit
    check_queue(queue)


def test_what_was_kept_for_a_large_request_is_free_again_when_it_is_discarded() -> None:
    queue, controller = FairTaskQueue(), controller_of(r=2)
    queue.enqueue(tasks(9, "small", {"r": 1}))
    held = turn(queue, controller)
    queue.enqueue([task("large", "z", {"r": 2})])
    assert turn(queue, controller) == []
    for _ in range(3):
        controller.release(held.pop(0))
        held += turn(queue, controller)
    assert len(held) == 1  # the other one is kept

    queue.discard("large")

    assert len(turn(queue, controller)) == 1


def test_a_request_beyond_the_limit_blocks_nobody() -> None:
    queue, controller = FairTaskQueue(), controller_of(r=2)
    queue.enqueue([task("too large", "z", {"r": 3}), *tasks(20, "small", {"r": 1})])
    started: list[object] = []

    for _ in range(10):
        leases = turn(queue, controller)
        started += ids(leases)
        for lease in leases:
            controller.release(lease)

    assert len(started) == 20
    controller.set_limit("r", 3)
    assert ids(turn(queue, controller)) == ["too large"]


def test_a_gate_is_asked_again_only_when_it_opens() -> None:
    queue = queue_of(task(1, "a", gate="p"), task(2, "b", gate="p"), task(3, "a", gate="q"))
    asked: list[object] = []

    def is_open(item: SchedulableTask, view: QueueView) -> bool | TaskAdmissionDenied:
        asked.append(item.task_id)
        if item.request_resource_key == "p":
            return TaskAdmissionDenied(item, DenialReason.POLICY, Until.GATE)
        return True

    first = queue.select_next(is_open)
    assert first is not None
    assert first.item.task_id == 3
    queue.commit(first)
    assert queue.select_next(is_open) is None
    asked.clear()
    assert queue.select_next(is_open) is None
    assert asked == []

    queue.reopen(CapacityChanges(gates={"p"}))
    assert queue.select_next(is_open) is None
    assert len(asked) == 1  # the first of the line speaks for all
    check_queue(queue)


def test_blocked_lines_are_counted_by_reason() -> None:
    queue = queue_of(*tasks(3, "a", {"r": 1}), *tasks(2, "b", {"r": 1}))
    turn(queue, controller_of(r=1))

    [line] = queue.view().blocked()

    assert (line.denied.reason, line.tasks, line.groups) == (DenialReason.NO_CAPACITY, 4, 2)
    assert queue.view().snapshot().blocked_by_reason == {DenialReason.NO_CAPACITY: 4}


def test_tags_of_groups_that_left_are_bounded_and_those_of_competitors_kept() -> None:
    queue, controller = FairTaskQueue(), controller_of(r=1)
    queue.enqueue(tasks(2, "a", {"r": 1}))
    turn(queue, controller)  # a-1 waits for r

    for n in range(3 * TAGS_KEPT):
        queue.enqueue([task(n, f"g{n}")])
        [lease] = turn(queue, controller)
        controller.release(lease)

    assert len(queue._submissions.tags) <= TAGS_KEPT + 2
    check_queue(queue)


def test_a_competitor_is_charged_from_its_place_and_anybody_else_from_the_present() -> None:
    contest = Contest("r")
    waits, goes = Group(TaskGroupSpec("waits"), 1), Group(TaskGroupSpec("goes"), 2)
    contest.claim(waits)
    contest.claim(goes)
    for _ in range(3):
        contest.charge(goes, 1)

    contest.charge(waits, 1)
    assert contest.tags == {"waits": 1.0, "goes": 3.0}

    contest.unclaim(waits)
    contest.charge(waits, 1)
    assert contest.tags["waits"] == 3.0  # the present is 2, where `goes` was last served
