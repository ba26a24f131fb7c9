# SPDX-License-Identifier: Apache-2.0
"""Is overload that shows as latency found, and told from requests that simply take longer?"""

from __future__ import annotations

import pytest

from penstock.admission.requests.adaptive.latency import Cohorts, LatencyWatch, Trial, Verdict
from penstock.admission.requests.adaptive.window import Window


def window(size: float = 40.0) -> Window:
    made = Window(256)
    made.tune(1.0, 1e9)
    made.size = size
    made.settle(3)
    return made


def cohort_of(watch: LatencyWatch, seconds: float, count: int, in_flight: int = 40) -> None:
    cohorts = [watch.sent() for _ in range(count)]
    for cohort in cohorts:
        watch.answered(0.0, cohort, seconds, in_flight, seconds, is_success=True)


def test_cohort_is_judged_when_three_quarters_have_ended() -> None:
    cohorts = Cohorts()
    members = [cohorts.join(20) for _ in range(20)]
    readings = [cohorts.ended(one, 2.0, timed_out=False) for one in members]

    assert [number for number, reading in enumerate(readings) if reading is not None] == [14]
    assert readings[14] is not None
    assert readings[14].mean_seconds == 2.0


def test_who_leaves_a_cohort_is_not_waited_for() -> None:
    cohorts = Cohorts()
    members = [cohorts.join(20) for _ in range(20)]
    for one in members[:10]:
        cohorts.leave(one)
    readings = [cohorts.ended(one, 2.0, timed_out=False) for one in members[10:]]

    assert sum(reading is not None for reading in readings) == 1


def test_doubled_latency_of_a_full_window_starts_a_trial() -> None:
    watch = LatencyWatch(window())
    cohort_of(watch, 1.0, 40)
    assert watch.may_probe

    cohort_of(watch, 2.1, 40)
    assert not watch.may_probe


def test_doubled_latency_of_a_window_that_is_not_used_does_not() -> None:
    watch = LatencyWatch(window())
    cohort_of(watch, 1.0, 40)
    cohort_of(watch, 3.0, 40, in_flight=20)

    assert watch.may_probe


def test_timeouts_of_a_fifth_of_a_cohort_cut_the_window() -> None:
    made = window()
    watch = LatencyWatch(made)
    cohorts = [watch.sent() for _ in range(40)]
    epochs = [
        watch.answered(0.0, cohort, 1.0, 40, 1.0, is_success=number % 4 > 0)
        for number, cohort in enumerate(cohorts)
    ]

    assert sum(epochs) == 1
    assert made.size == pytest.approx(24.0)


@pytest.mark.parametrize(
    ("per_second", "verdict"), [(10.0, Verdict.SMALLER), (5.0, Verdict.RESTORE)]
)
def test_smaller_window_is_kept_only_if_throughput_holds(
    per_second: float, verdict: Verdict
) -> None:
    trial = Trial(20.0, 40.0, 0.0)
    now, found = 0.0, None
    while not trial.is_smaller:
        now += 0.1
        trial.ended(now, 40, 4.0, 4.0, is_success=True)
    while found is None:
        now += 1 / per_second
        found = trial.ended(now, 20, 2.0, 4.0, is_success=True)

    assert found is verdict
    assert trial.mean_seconds == 2.0


def test_start_ends_when_latency_grows() -> None:
    made = Window(256)
    made.tune(1.0, 1e9)
    watch = LatencyWatch(made)
    cohort_of(watch, 1.0, 16, in_flight=4)
    watch.answered(0.0, watch.sent(), 2.0, 4, 1.8, is_success=True)

    assert not made.is_starting
    assert made.ceiling == made.size
