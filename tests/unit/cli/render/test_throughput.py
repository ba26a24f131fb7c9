# SPDX-License-Identifier: Apache-2.0
"""How fast, how long, and what did this run do?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.cli.render.throughput import SAMPLES_MAX, Throughput, ThroughputMeter
from penstock.model.job import JobState

DONE, ERROR, QUEUED = JobState.DONE, JobState.ERROR, JobState.QUEUED
SKIPPED, CANCELLED = JobState.SKIPPED, JobState.CANCELLED


def test_only_this_run_is_counted() -> None:
    pace = ThroughputMeter(now=0.0)
    pace.measure({DONE: 100, ERROR: 2, QUEUED: 41}, now=0.0)

    view = pace.measure({DONE: 110, ERROR: 3, QUEUED: 30}, now=5.0)

    assert view.ended_count == 11
    assert view.left == 30
    assert view.rate == 11 / 5
    assert view.mean == 11 / 5
    assert view.seconds_left is None  # five seconds tell nothing


def test_the_closing_line_has_what_the_run_did_itself_and_what_is_left() -> None:
    pace = ThroughputMeter(now=0.0)
    pace.measure({DONE: 100, ERROR: 2, QUEUED: 41}, now=0.0)

    view = pace.measure({DONE: 110, ERROR: 3, QUEUED: 30}, now=5.0)  # others worked as well

    assert view.summary({DONE: 4}) == "4 done, 0 skipped, 0 error in 5.0 s (0.8/s); 30 left"


def test_the_closing_line_counts_what_was_skipped_because_of_others_and_cancelled() -> None:
    pace = ThroughputMeter(now=0.0)
    pace.measure({QUEUED: 10, SKIPPED: 2}, now=0.0)

    view = pace.measure({ERROR: 1, SKIPPED: 8, CANCELLED: 3}, now=5.0)

    assert view.summary({ERROR: 1}) == "0 done, 6 skipped, 1 error, 3 cancelled in 5.0 s (0.2/s)"


def test_the_rate_is_that_of_the_last_while() -> None:
    pace = ThroughputMeter(now=0.0)
    pace.measure({}, now=0.0)
    for second in range(1, 101):
        view = pace.measure({DONE: 10 * second, QUEUED: 50}, now=float(second))
    assert view.rate == 10.0

    for second in range(101, 131):  # nothing ends any more
        view = pace.measure({DONE: 1000, QUEUED: 50}, now=float(second))

    assert view.rate == 0.0
    assert view.seconds_left is None


def test_counts_that_fall_are_no_negative_work() -> None:
    pace = ThroughputMeter(now=0.0)
    pace.measure({DONE: 10, ERROR: 5}, now=0.0)

    view = pace.measure({DONE: 10, ERROR: 0, QUEUED: 5}, now=1.0)

    assert view.ended_count == 0
    assert view.rate == 0.0


def paced(ends: Callable[[float], float], seconds: int, **known: Any) -> Throughput:
    """A run that is looked at four times a second and has ended so many at a time."""
    pace = ThroughputMeter(now=0.0)
    pace.measure({QUEUED: 1_000}, now=0.0)
    for quarter in range(1, 4 * seconds):
        pace.measure({DONE: int(ends(quarter / 4)), QUEUED: 1_000}, now=quarter / 4)
    return pace.measure({DONE: int(ends(seconds)), QUEUED: 1_000}, now=float(seconds), **known)


def test_a_steady_run_tells_how_long_the_rest_takes() -> None:
    view = paced(lambda at: 5 * at, 60)

    assert view.seconds_left == 200.0  # 1,000 at 5 a second


def test_a_slow_run_is_steady_over_a_longer_while() -> None:
    view = paced(lambda at: at / 10, 300)  # one in ten seconds

    assert view.seconds_left is not None
    assert 9_000 < view.seconds_left < 11_000


@pytest.mark.parametrize(
    "ends",
    [
        pytest.param(lambda at: 2 ** (at / 5), id="it has just become faster"),
        pytest.param(lambda at: 600 if at > 20 else 30 * at, id="it stalls"),
        pytest.param(lambda at: 5 * at if at < 48 else 5 * 48, id="nothing ended lately"),
        pytest.param(lambda at: 3 if at > 5 else 0, id="too few to tell"),
    ],
)
def test_a_run_that_is_not_steady_tells_no_time_left(ends: Callable[[float], float]) -> None:
    assert paced(ends, 60).seconds_left is None


def test_a_paused_run_tells_no_time_left() -> None:
    assert paced(lambda at: 5 * at, 60, paused=True).seconds_left is None


def test_jobs_that_are_all_delayed_take_at_least_their_delay() -> None:
    assert paced(lambda at: 5 * at, 60, all_due_in=3_600.0).seconds_left == 3_600.0


def test_samples_are_bounded() -> None:
    pace = ThroughputMeter(now=0.0)

    for second in range(5_000):
        pace.measure({DONE: second}, now=float(second))

    assert len(pace._samples) == SAMPLES_MAX


def test_what_the_run_has_ended_before_the_first_look_is_its_own() -> None:
    pace = ThroughputMeter(100.0)

    view = pace.measure({JobState.DONE: 12}, 100.1, own={JobState.DONE: 2})

    assert view.ended[JobState.DONE] == 2
    assert pace.measure({JobState.DONE: 15}, 101.0, own={JobState.DONE: 5}).ended_count == 5
