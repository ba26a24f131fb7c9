# SPDX-License-Identifier: Apache-2.0
"""How fast, how long, and what did this run do?"""

from __future__ import annotations

from penstock.cli.pace import Pace
from penstock.model.job import JobState

DONE, ERROR, QUEUED = JobState.DONE, JobState.ERROR, JobState.QUEUED


def test_only_this_run_is_counted() -> None:
    pace = Pace(now=0.0)
    pace.look({DONE: 100, ERROR: 2, QUEUED: 41}, now=0.0)

    view = pace.look({DONE: 110, ERROR: 3, QUEUED: 30}, now=5.0)

    assert view.ended_count == 11
    assert view.left == 30
    assert view.rate == 11 / 5
    assert view.seconds_left == 30 / (11 / 5)


def test_the_closing_line_has_what_the_run_did_itself_and_what_is_left() -> None:
    pace = Pace(now=0.0)
    pace.look({DONE: 100, ERROR: 2, QUEUED: 41}, now=0.0)

    view = pace.look({DONE: 110, ERROR: 3, QUEUED: 30}, now=5.0)  # others worked as well

    assert view.summary({DONE: 4}) == "4 done, 0 skipped, 0 error in 5.0 s (0.8/s); 30 left"


def test_the_rate_is_that_of_the_last_while() -> None:
    pace = Pace(now=0.0)
    pace.look({}, now=0.0)
    for second in range(1, 101):
        view = pace.look({DONE: 10 * second, QUEUED: 50}, now=float(second))
    assert view.rate == 10.0

    for second in range(101, 131):  # nothing ends any more
        view = pace.look({DONE: 1000, QUEUED: 50}, now=float(second))

    assert view.rate == 0.0
    assert view.seconds_left is None


def test_counts_that_fall_are_no_negative_work() -> None:
    pace = Pace(now=0.0)
    pace.look({DONE: 10, ERROR: 5}, now=0.0)

    view = pace.look({DONE: 10, ERROR: 0, QUEUED: 5}, now=1.0)

    assert view.ended_count == 0
    assert view.rate == 0.0
