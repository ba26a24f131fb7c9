# SPDX-License-Identifier: Apache-2.0
"""May a group run ahead of its share, how far, and does it give back?"""

from __future__ import annotations

from typing import Any

import pytest

from penstock.admission.tasks.controller import TaskAdmissionConfig, TaskAdmissionController
from penstock.admission.tasks.decisions import (
    DenialReason,
    TaskAdmissionDenied,
    TaskAdmissionLease,
    Until,
)
from penstock.admission.tasks.policies import BoundedBorrowTaskAdmissionPolicyConfig
from penstock.admission.tasks.queue import FairTaskQueue
from penstock.errors import UsageError
from penstock.model.task import TaskGroupSpec
from tests.scheduling import check_queue, task, tasks, turn

R = {"r": 1}


class Desk:
    """A queue and a controller that share r by the default policy."""

    def __init__(self, limit: int = 8, **config: Any) -> None:
        self.queue = FairTaskQueue()
        self.controller = TaskAdmissionController(
            TaskAdmissionConfig(
                resource_limits={"r": limit},
                bounded_borrow=BoundedBorrowTaskAdmissionPolicyConfig(**config),
            ),
            monotonic=lambda: 0.0,
        )

    def turn(self) -> list[TaskAdmissionLease]:
        leases = turn(self.queue, self.controller)
        check_queue(self.queue)
        return leases

    def started(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for lease in self.turn():
            counts[lease.item.group.key] = counts.get(lease.item.group.key, 0) + 1
        return counts

    def debt(self, group: str) -> int:
        return self.controller.debt(group, "r")


def test_a_lone_group_may_use_everything() -> None:
    desk = Desk(limit=7)
    desk.queue.enqueue(tasks(9, "a", R))

    assert desk.started() == {"a": 7}


def test_what_a_lone_group_takes_beyond_half_is_its_debt() -> None:
    desk = Desk(limit=7)
    desk.queue.enqueue(tasks(9, "a", R))
    desk.turn()

    assert desk.debt("a") == 3  # 7 - ⌈7 / 2⌉


@pytest.mark.parametrize(("rounding", "shares"), [("ceil", (4, 2)), ("floor", (3, 1))])
def test_a_share_goes_by_weight_and_is_rounded_as_configured(
    rounding: str, shares: tuple[int, int]
) -> None:
    """5 × 2/3 = 3.3 and 5 × 1/3 = 1.7: beyond that a group steps back for one that waits."""
    desk = Desk(limit=5, strict_share_rounding=rounding)
    heavy, light = TaskGroupSpec("heavy", 2), TaskGroupSpec("light", 1)
    for group, share in zip((heavy, light), shares, strict=True):
        other = light if group is heavy else heavy
        desk.queue.enqueue(tasks(9, other, R))
        held = []
        for n in range(share):
            lease = desk.controller.try_acquire(task(n, group, R), desk.queue.view())
            assert isinstance(lease, TaskAdmissionLease)
            held.append(lease)

        denied = desk.controller.try_acquire(task(9, group, R), desk.queue.view())

        assert not isinstance(denied, TaskAdmissionLease)
        assert denied.reason is DenialReason.GROUP_CAP
        assert denied.numbers == {"held": share, "share": share, "debt": 0, "limit": 5, "rivals": 1}
        desk.queue.discard_where(lambda item: True)
        for lease in held:
            desk.controller.release(lease)


def test_groups_that_compete_get_their_shares() -> None:
    desk = Desk(limit=8)
    desk.queue.enqueue([*tasks(9, TaskGroupSpec("a", 3), R), *tasks(9, "b", R)])

    assert desk.started() == {"a": 6, "b": 2}  # 8 × 3/4, 8 × 1/4


def test_an_admitted_limit_caps_the_share() -> None:
    desk = Desk(limit=8)
    desk.queue.enqueue([*tasks(9, TaskGroupSpec("a", 3, 2), R), *tasks(9, "b", R)])

    assert desk.started() == {"a": 4, "b": 4}  # 2 and 2, then in turns what nobody else may use


def test_a_group_in_debt_steps_back_for_a_peer_that_waits() -> None:
    """A slow root holds everything; each end goes to the peer until it has its share."""
    desk = Desk(limit=4)
    desk.queue.enqueue(tasks(20, "root", R))
    held = desk.turn()
    desk.queue.enqueue(tasks(9, "child", R))
    assert desk.turn() == []
    order = []

    for lease in held[:3]:
        desk.controller.release(lease)
        order += [one.item.group.key for one in desk.turn()]

    assert order == ["child", "child", "root"]  # at 2 and 2 it is in turns again


def test_debt_is_paid_back_by_the_ends_of_the_group_one_for_one() -> None:
    desk = Desk(limit=8)
    desk.queue.enqueue(tasks(8, "a", R))
    held = desk.turn()
    debts = []

    for lease in held:
        desk.controller.release(lease)
        debts.append(desk.debt("a"))

    assert debts == [3, 2, 1, 0, 0, 0, 0, 0]


def test_debt_is_paid_back_by_the_last_ends_if_so_configured() -> None:
    desk = Desk(limit=8, repay_on_withheld_peer_pressure=False)
    desk.queue.enqueue(tasks(8, "a", R))
    held = desk.turn()
    debts = []

    for lease in held:
        desk.controller.release(lease)
        debts.append(desk.debt("a"))

    assert debts == [4, 4, 4, 4, 3, 2, 1, 0]  # never more than is held


def test_an_end_of_more_than_the_debt_leaves_no_negative_debt() -> None:
    desk = Desk(limit=8)
    desk.queue.enqueue([task(1, "a", {"r": 4}), task(2, "a", {"r": 1})])
    held = desk.turn()
    assert desk.debt("a") == 1  # 5 - 4

    desk.controller.release(held[0])

    assert desk.debt("a") == 0


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"default_borrow_ceiling": 0}, 4),  # its share
        ({"default_borrow_ceiling": 2}, 6),  # 4 + 2
        ({"borrow_ceiling_by_group_resource": {("a", "r"): 1}}, 5),  # 4 + 1
        ({"borrow_ceiling_by_group_resource": {("b", "r"): 1}}, 8),
        (
            {
                "borrow_ceiling_by_group_resource": {("a", "r"): 3},
                "default_borrow_ceiling": 0,
            },
            7,
        ),
        ({"dynamic_borrow_reserve_fraction": 0.25}, 6),  # 8 - ⌈8 × 0.25⌉
        (
            {
                "dynamic_borrow_reserve_fraction": 0.5,
                "dynamic_borrow_max_reserved_slots": 1,
            },
            7,  # 8 - 1
        ),
        ({"dynamic_borrow_reserve_fraction": 1.0}, 4),  # never below its share
    ],
)
def test_a_lone_group_runs_ahead_only_up_to_its_ceiling(
    config: dict[str, Any], expected: int
) -> None:
    desk = Desk(limit=8, **config)
    desk.queue.enqueue(tasks(20, "a", R))

    assert desk.started() == {"a": expected}


def test_a_denial_at_the_ceiling_names_it() -> None:
    desk = Desk(limit=8, default_borrow_ceiling=1)
    desk.queue.enqueue(tasks(20, "a", R))
    desk.turn()

    denied = desk.controller.is_eligible(task("a-more", "a", R), desk.queue.view())

    assert isinstance(denied, TaskAdmissionDenied)
    assert (denied.reason, denied.until) == (DenialReason.BORROW_DEBT, Until.OWN)
    assert (denied.numbers["share"], denied.numbers["ceiling"]) == (4, 1)


def test_a_group_at_its_ceiling_goes_on_after_an_end_of_its_own() -> None:
    desk = Desk(limit=8, default_borrow_ceiling=1)
    desk.queue.enqueue(tasks(20, "a", R))
    held = desk.turn()
    assert len(held) == 5
    assert desk.queue.view().snapshot().blocked_by_reason == {DenialReason.BORROW_DEBT: 15}

    desk.controller.release(held[0])

    assert len(desk.turn()) == 1


def test_a_raised_limit_leaves_a_lone_group_nothing_to_wait_for() -> None:
    desk = Desk(limit=4)
    desk.queue.enqueue(tasks(20, "a", R))
    assert len(desk.turn()) == 4

    desk.controller.set_limit("r", 8)

    assert len(desk.turn()) == 4
    assert desk.debt("a") == 4


def test_what_nobody_else_may_use_is_not_left_lying() -> None:
    """All are beyond their shares, and there is room: the first of them goes."""
    desk = Desk(limit=8, strict_share_rounding="floor")
    desk.queue.enqueue([*tasks(9, "a", R), *tasks(9, "b", R), *tasks(9, "c", R)])

    assert sorted(desk.started().values()) == [2, 3, 3]  # 2 each, and two more


def test_a_peer_that_waits_for_something_else_keeps_nobody_from_borrowing() -> None:
    desk = Desk(limit=8)
    desk.controller.set_limit("s", 0)
    desk.queue.enqueue([*tasks(9, "a", R), *tasks(9, "b", {"r": 1, "s": 1})])

    assert desk.started() == {"a": 8}


def test_a_task_larger_than_its_share_is_not_starved() -> None:
    desk = Desk(limit=3)
    desk.queue.enqueue([*tasks(60, "small", R), task("large", "big", {"r": 3})])
    held = desk.turn()

    for _ in range(20):
        desk.controller.release(held.pop(0))
        held += desk.turn()
        if any(lease.item.task_id == "large" for lease in held):
            break
    else:
        pytest.fail("the large task never started")


def test_only_a_task_that_needs_nothing_else_competes_for_submissions() -> None:
    queue = FairTaskQueue()
    controller = TaskAdmissionController(
        TaskAdmissionConfig(submission_capacity=4, resource_limits={"thread": 4}),
        monotonic=lambda: 0.0,
    )
    queue.enqueue([*tasks(9, "threads", {"thread": 1}), *tasks(1, "loop")])
    turn(queue, controller)

    assert controller.held("threads", "submission") == 3  # beyond half of them
    assert controller.debt("threads", "submission") == 0


def test_a_resource_without_a_limit_is_shared_without_rules() -> None:
    desk = Desk()
    desk.queue.enqueue([*tasks(9, "a", {"free": 1}), *tasks(9, "b", {"free": 1})])

    assert desk.started() == {"a": 9, "b": 9}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"default_borrow_ceiling": -1}, "A borrow ceiling is at least 0, got -1."),
        (
            {"borrow_ceiling_by_group_resource": {("a", "r"): -2}},
            "A borrow ceiling is at least 0, got -2.",
        ),
        (
            {"dynamic_borrow_reserve_fraction": 1.5},
            "dynamic_borrow_reserve_fraction lies between 0 and 1, got 1.5.",
        ),
        (
            {"dynamic_borrow_max_reserved_slots": -1},
            "dynamic_borrow_max_reserved_slots is at least 0, got -1.",
        ),
        (
            {"strict_share_rounding": "up"},
            "strict_share_rounding is 'ceil' or 'floor', got 'up'.",
        ),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(
    config: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        BoundedBorrowTaskAdmissionPolicyConfig(**config)

    assert str(caught.value) == message
