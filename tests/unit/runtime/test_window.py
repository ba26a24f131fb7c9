# SPDX-License-Identifier: Apache-2.0
"""How many jobs wait in the window, in which order, and whose time is over?"""

from __future__ import annotations

import pytest

from penstock.model.job import JobId, LeasedJob
from penstock.runtime.dispatcher import WINDOW_MAX, WINDOW_SECONDS, WindowSize
from penstock.runtime.ready import RoundRobinWindow


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


def everything(window: RoundRobinWindow) -> list[str]:
    order = []
    while (taken := window.next(lambda job: True)) is not None:
        order.append(taken.key)
    return order


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


# The order


def test_groups_take_turns() -> None:
    window = RoundRobinWindow()
    window.add([job(f"a{n}", "a") for n in range(4)])
    window.add([job(f"b{n}", "b") for n in range(2)])
    window.add([job("c0", "c")])

    assert len(window) == 7
    assert everything(window) == ["a0", "b0", "c0", "a1", "b1", "a2", "a3"]
    assert len(window) == 0


def test_inside_a_group_priority_goes_first_and_then_who_came_first() -> None:
    window = RoundRobinWindow()
    window.add([job("low", priority=-1), job("first"), job("second"), job("high", priority=9)])
    window.add([job("third"), job("higher", priority=10)])

    assert everything(window) == ["higher", "high", "first", "second", "third", "low"]


def test_a_group_that_cannot_start_loses_its_turn_and_no_job() -> None:
    window = RoundRobinWindow()
    window.add([job("a0", "a"), job("a1", "a"), job("b0", "b"), job("b1", "b")])

    def not_a(wanted: LeasedJob) -> bool:
        return wanted.group != "a"

    assert [taken.key for _ in range(2) if (taken := window.next(not_a))] == ["b0", "b1"]
    assert window.next(not_a) is None
    assert len(window) == 2
    assert everything(window) == ["a0", "a1"]


def test_a_group_that_comes_back_stands_at_the_end() -> None:
    window = RoundRobinWindow()
    window.add([job("a0", "a"), job("b0", "b"), job("b1", "b")])
    first = window.next(lambda job: True)
    window.add([job("a1", "a")])

    assert first is not None
    assert first.key == "a0"
    assert everything(window) == ["b0", "b1", "a1"] or everything(window) == []


def test_clearing_gives_everything_back_once() -> None:
    window = RoundRobinWindow()
    window.add([job("a0", "a"), job("b0", "b")])

    assert {cleared.key for cleared in window.clear()} == {"a0", "b0"}
    assert window.clear() == []
    assert len(window) == 0
    window.add([job("a1", "a")])
    assert everything(window) == ["a1"]
