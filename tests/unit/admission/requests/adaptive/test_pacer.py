# SPDX-License-Identifier: Apache-2.0
"""Is there never a herd?"""

from __future__ import annotations

import pytest

from penstock.admission.requests.adaptive.rate import Pacer


def sends(pacer: Pacer, count: int, gap: float, latency: float, start: float = 0.0) -> list[float]:
    """When so many leave, each as soon as it may."""
    times = []
    now = start
    for _ in range(count):
        now = max(now, pacer.ready_at(now))
        pacer.sent(now, gap, latency, 0.05)
        times.append(now)
    return times


def test_requests_are_a_gap_apart() -> None:
    assert sends(Pacer(), 4, 0.5, 1.0) == [0.0, 0.5, 1.0, 1.5]


def test_f50_at_most_two_leave_in_the_first_tenth_of_the_latency_after_a_pause() -> None:
    pacer = Pacer()
    pacer.start_slowly()
    times = sends(pacer, 20, 0.001, 2.0, start=10.0)

    assert sum(time < 10.2 for time in times) == 2
    assert times[3] - times[2] == pytest.approx(0.001)


def test_after_a_pause_in_vain_the_first_one_goes_alone() -> None:
    pacer = Pacer()
    pacer.start_slowly(was_in_vain=True)
    times = sends(pacer, 3, 0.001, 2.0)

    assert times[1] - times[0] == pytest.approx(0.2)


def test_timer_that_is_a_little_late_does_not_slow_the_pace() -> None:
    pacer = Pacer()
    pacer.sent(0.0, 0.1, 1.0, 0.05)
    pacer.sent(0.11, 0.1, 1.0, 0.05)

    assert pacer.next_at == pytest.approx(0.2)


def test_idle_time_gives_no_claim_to_a_burst() -> None:
    pacer = Pacer()
    pacer.sent(0.0, 0.1, 1.0, 0.05)
    pacer.sent(9.0, 0.1, 1.0, 0.05)

    assert pacer.next_at == pytest.approx(9.1)


def test_pace_is_smoothed_and_loosened_within_bounds() -> None:
    pacer = Pacer()
    for _ in range(10):
        pacer.spread_out()
    assert pacer.gain == 1.2

    for _ in range(10):
        pacer.allow_bursts()
    assert pacer.gain == 3.0


def test_gap_that_no_timer_can_keep_is_kept_on_average() -> None:
    times = sends(Pacer(), 1_001, 0.0001, 0.01)

    assert times[1] == times[0]
    assert times[-1] == pytest.approx(0.1, abs=0.0015)


def test_gap_of_more_than_a_millisecond_is_kept_exactly() -> None:
    assert sends(Pacer(), 3, 0.002, 0.01) == [0.0, 0.002, 0.004]
