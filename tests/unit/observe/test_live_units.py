# SPDX-License-Identifier: Apache-2.0
"""Are units of schedules counted by what ails them?"""

from __future__ import annotations

import msgspec

from penstock.model.job import AttemptError, ErrorCategory, JobState
from penstock.model.views import Stats
from penstock.observe.live import Units, UnitTroubles
from tests.live_sample import stats
from tests.unit.observe.why.test_job import NOW, seconds
from tests.unit.observe.why.test_schedule import unit


def failing(category: ErrorCategory, state: JobState = JobState.QUEUED) -> UnitTroubles:
    error = AttemptError(category, "E", "m")
    return UnitTroubles.of([unit(state, attempts=1, last_error=error)], NOW)


def test_a_failure_is_the_units_own_or_that_of_others() -> None:
    assert failing(ErrorCategory.OWN) == UnitTroubles(degraded=1)
    assert failing(ErrorCategory.NODE) == UnitTroubles(deferred=1)
    assert failing(ErrorCategory.OWN, JobState.CANCELLED) == UnitTroubles()


def test_late_is_what_is_due_and_has_not_begun_for_a_while() -> None:
    units = [unit(due_at=NOW - seconds(ago)) for ago in (1, 3, 60)]
    units.append(unit(JobState.IN_PROGRESS, due_at=NOW - seconds(60)))

    assert UnitTroubles.of(units, NOW) == UnitTroubles(late=2)


def test_what_is_paused_is_neither_late_nor_degraded() -> None:
    error = AttemptError(ErrorCategory.OWN, "E", "m")
    units = [
        unit(due_at=NOW - seconds(60), paused_at=NOW),
        unit(JobState.WAITING, paused_at=NOW),
        unit(attempts=1, last_error=error, paused_at=NOW),
        unit(JobState.IN_PROGRESS, paused_at=NOW),  # it goes on
    ]

    assert UnitTroubles.of(units, NOW) == UnitTroubles(paused=3)


def test_words_name_only_what_there_is() -> None:
    schedules = {"schedule:a": {JobState.QUEUED: 7, JobState.IN_PROGRESS: 1, JobState.ERROR: 2}}
    found = Units.of(_with(schedules), UnitTroubles(3, 4, 5, 6))

    assert found is not None
    assert list(found.parts()) == [
        "8 units of schedules",
        "1 ticking",
        "3 degraded",
        "4 waiting for others",
        "5 late",
        "6 paused",
        "2 ended in error",
    ]
    assert Units.of(_with({}), UnitTroubles()) is None


def _with(schedules: dict[str, dict[JobState, int]]) -> Stats:
    return msgspec.structs.replace(stats(), schedules=schedules)
