# SPDX-License-Identifier: Apache-2.0
"""Does everybody get its part, and soon enough, whatever ends in which order?

All groups stay backlogged and compete for one resource. `HYPOTHESIS_PROFILE=soak` draws more.
"""

from __future__ import annotations

import math
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.admission.tasks.controller import TaskAdmissionConfig, TaskAdmissionController
from penstock.admission.tasks.decisions import TaskAdmissionLease
from penstock.admission.tasks.policies import StrictFairTaskAdmissionPolicy, TaskAdmissionPolicy
from penstock.admission.tasks.queue import FairTaskQueue
from penstock.model.task import TaskGroupSpec
from tests.depth import SOAK
from tests.scheduling import check_queue, task, turn

PROFILE = settings(max_examples=3_000 if SOAK else 25, derandomize=not SOAK, deadline=None)
STARTS = 120

weights = st.lists(st.sampled_from([1, 1, 1, 2, 3, 5, 10]), min_size=2, max_size=6)
sizes = st.lists(st.integers(1, 3), min_size=6, max_size=6)
ends = st.lists(st.tuples(st.integers(0, 255), st.integers(1, 4)), min_size=1, max_size=30)


def _starts(
    groups: list[TaskGroupSpec],
    amounts: list[int],
    capacity: int,
    ends: list[tuple[int, int]],
    policy: TaskAdmissionPolicy | None,
) -> list[int]:
    """Which group started, in order; leases end as `ends` says: which one, and how many at once."""
    queue = FairTaskQueue()
    controller = TaskAdmissionController(
        TaskAdmissionConfig(resource_limits={"r": capacity}), policy, monotonic=lambda: 0.0
    )
    for n in range(STARTS * 4):
        group = n % len(groups)
        queue.enqueue([task(n, groups[group], {"r": amounts[group]})])
    keys = [group.key for group in groups]
    started: list[int] = []
    held: list[TaskAdmissionLease] = []
    step = 0
    while len(started) < STARTS and min(map(queue.view().queued, keys)) > 0:
        leases = turn(queue, controller)
        held += leases
        started += [keys.index(lease.item.group.key) for lease in leases]
        which, count = ends[step % len(ends)]
        step += 1
        for _ in range(min(count, len(held))):
            controller.release(held.pop(which % len(held)))
    check_queue(queue)
    return started


def _groups(weights: list[int]) -> list[TaskGroupSpec]:
    return [TaskGroupSpec(f"g{n}", weight) for n, weight in enumerate(weights)]


def _longest_waits(started: list[int], count: int) -> list[int]:
    """For each group the most starts of others between two of its own, or before its first."""
    longest, waits = [0] * count, [0] * count
    for group in started:
        for other in range(count):
            waits[other] = 0 if other == group else waits[other] + 1
            longest[other] = max(longest[other], waits[other])
    return longest


@PROFILE
@given(count=st.integers(2, 8), capacity=st.integers(1, 8), ends=ends)
def test_groups_of_equal_weight_wait_for_no_more_than_the_specified_bound(
    count: int, capacity: int, ends: list[tuple[int, int]]
) -> None:
    strict = StrictFairTaskAdmissionPolicy()
    started = _starts(_groups([1] * count), [1] * count, capacity, ends, strict)

    assert max(_longest_waits(started, count)) <= count - 1  # ⌈W/w⌉ + the capacity is more


@PROFILE
@given(weights=weights, capacity=st.integers(1, 8), ends=ends)
def test_a_backlogged_group_waits_for_no_more_than_its_weight_says(
    weights: list[int], capacity: int, ends: list[tuple[int, int]]
) -> None:
    strict = StrictFairTaskAdmissionPolicy()
    started = _starts(_groups(weights), [1] * len(weights), capacity, ends, strict)

    for weight, wait in zip(weights, _longest_waits(started, len(weights)), strict=True):
        assert wait <= math.ceil(sum(weights) / weight) + len(weights) - 2


@PROFILE
@given(weights=weights, capacity=st.integers(1, 8), count=st.integers(1, 4))
def test_shares_keep_the_bound_while_tasks_take_equally_long(
    weights: list[int], capacity: int, count: int
) -> None:
    started = _starts(_groups(weights), [1] * len(weights), capacity, [(0, count)], None)

    for weight, wait in zip(weights, _longest_waits(started, len(weights)), strict=True):
        assert wait <= math.ceil(sum(weights) / weight) + max(capacity, len(weights) - 2)


@PROFILE
@given(weights=weights, sizes=sizes, capacity=st.integers(3, 8), ends=ends)
def test_weights_hold_within_one_quantum_over_every_window(
    weights: list[int], sizes: list[int], capacity: int, ends: list[tuple[int, int]]
) -> None:
    """Of two groups neither gets more than one task ahead of what the weights say."""
    strict = StrictFairTaskAdmissionPolicy()
    unit = [1] * len(weights)
    started = _starts(_groups(weights), unit, capacity, ends, strict)

    for one, other in combinations(range(len(weights)), 2):
        ahead, least, most = 0.0, 0.0, 0.0
        for group in started:
            ahead += (group == one) / weights[one] - (group == other) / weights[other]
            least, most = min(least, ahead), max(most, ahead)
        assert most - least <= 1 / weights[one] + 1 / weights[other] + 1e-9


@PROFILE
@given(count=st.integers(2, 5), sizes=sizes, capacity=st.integers(3, 8), ends=ends)
def test_large_requests_are_not_starved_by_small_ones(
    count: int, sizes: list[int], capacity: int, ends: list[tuple[int, int]]
) -> None:
    """What passes a large request is no more than the limit, beyond what fairness gives."""
    strict = StrictFairTaskAdmissionPolicy()
    started = _starts(_groups([1] * count), sizes[:count], capacity, ends, strict)

    for group, wait in enumerate(_longest_waits(started, count)):
        # sizes of others by turn for one of its own, and what may pass it while it waits for room
        fair = sum(math.ceil(sizes[group] / sizes[n]) + 1 for n in range(count) if n != group)
        assert wait <= fair + capacity + count
