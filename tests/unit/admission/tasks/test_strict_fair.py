# SPDX-License-Identifier: Apache-2.0
"""Does a group over its admitted limit yield, and only to those who could use it?"""

from __future__ import annotations

from penstock.admission.tasks.controller import TaskAdmissionConfig, TaskAdmissionController
from penstock.admission.tasks.decisions import DenialReason, TaskAdmissionLease
from penstock.admission.tasks.policies import StrictFairTaskAdmissionPolicy
from penstock.admission.tasks.queue import FairTaskQueue
from penstock.model.task import TaskGroupSpec
from tests.scheduling import task, tasks, turn

CAPPED = TaskGroupSpec("capped", admitted_limit=2)


def strict(**limits: int) -> TaskAdmissionController:
    return TaskAdmissionController(
        TaskAdmissionConfig(resource_limits=limits),
        StrictFairTaskAdmissionPolicy(),
        monotonic=lambda: 0.0,
    )


def groups_of(leases: list[TaskAdmissionLease]) -> list[str]:
    return [lease.item.group.key for lease in leases]


def test_a_lone_group_is_never_held_back() -> None:
    queue, controller = FairTaskQueue(), strict(r=8)
    queue.enqueue(tasks(10, CAPPED, {"r": 1}))

    assert len(turn(queue, controller)) == 8


def test_a_group_over_its_limit_yields_to_a_peer_that_waits_for_the_same() -> None:
    queue, controller = FairTaskQueue(), strict(r=5)
    heavy = TaskGroupSpec("capped", weight=10, admitted_limit=2)
    queue.enqueue([*tasks(5, heavy, {"r": 1}), *tasks(5, "peer", {"r": 1})])

    assert groups_of(turn(queue, controller)) == ["capped", "peer", "capped", "peer", "peer"]
    assert queue.view().snapshot().blocked_by_reason[DenialReason.GROUP_CAP] == 3


def test_a_group_over_its_limit_does_not_yield_to_a_peer_that_needs_something_else() -> None:
    queue, controller = FairTaskQueue(), strict(r=4, s=0)
    queue.enqueue([*tasks(5, CAPPED, {"r": 1}), *tasks(5, "peer", {"s": 1})])

    assert groups_of(turn(queue, controller)) == ["capped"] * 4


def test_a_group_over_its_limit_does_not_yield_to_a_peer_that_cannot_go() -> None:
    """The peer needs r too, but waits for s."""
    queue, controller = FairTaskQueue(), strict(r=4, s=0)
    queue.enqueue([*tasks(5, CAPPED, {"r": 1}), *tasks(5, "peer", {"r": 1, "s": 1})])

    assert groups_of(turn(queue, controller)) == ["capped"] * 4


def test_a_group_over_its_limit_goes_when_the_last_peer_has_gone() -> None:
    queue, controller = FairTaskQueue(), strict(r=6)
    queue.enqueue([*tasks(9, CAPPED, {"r": 1}), *tasks(2, "peer", {"r": 1})])

    assert groups_of(turn(queue, controller)) == [
        "capped",
        "peer",
        "capped",
        "peer",
        "capped",
        "capped",
    ]


def test_an_end_of_its_own_lets_a_group_go_again() -> None:
    """The peer waits for three, so that one may pass it."""
    queue, controller = FairTaskQueue(), strict(r=4)
    queue.enqueue(tasks(9, CAPPED, {"r": 1}))
    held = turn(queue, controller, at_most=2)
    queue.enqueue([task("large", "peer", {"r": 3})])
    assert turn(queue, controller) == []  # at its limit: it yields

    controller.release(held[0])

    assert groups_of(turn(queue, controller)) == ["peer"]


def test_a_group_within_its_limit_yields_to_nobody() -> None:
    queue, controller = FairTaskQueue(), strict(r=2)
    queue.enqueue([*tasks(2, CAPPED, {"r": 1}), *tasks(2, "peer", {"r": 1})])

    assert groups_of(turn(queue, controller)) == ["capped", "peer"]


def test_a_raised_admitted_limit_is_seen_at_once() -> None:
    queue, controller = FairTaskQueue(), strict(r=4)
    queue.enqueue(tasks(2, CAPPED, {"r": 1}))
    turn(queue, controller)
    queue.enqueue([task("large", "peer", {"r": 3}), task("x", CAPPED, {"r": 1})])
    assert turn(queue, controller) == []

    queue.discard("x")
    queue.enqueue([task("x", TaskGroupSpec("capped", admitted_limit=3), {"r": 1})])

    assert groups_of(turn(queue, controller)) == ["capped"]


def test_two_groups_over_their_limits_share_what_is_left_in_fair_order() -> None:
    queue, controller = FairTaskQueue(), strict(r=8)
    other = TaskGroupSpec("other", admitted_limit=1)
    queue.enqueue([*tasks(9, CAPPED, {"r": 1}), *tasks(9, other, {"r": 1})])

    started = groups_of(turn(queue, controller))

    assert (started.count("capped"), started.count("other")) == (4, 4)
