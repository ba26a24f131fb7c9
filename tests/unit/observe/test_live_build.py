# SPDX-License-Identifier: Apache-2.0
"""Does what is shown of a build count its slices' jobs, and nothing else?"""

from __future__ import annotations

import msgspec

from penstock.model.job import JobState
from penstock.model.plan import LevelStates, PlanFacts, PlanRow
from penstock.model.views import Outlook, Stats
from penstock.observe.live import BuildView

FACTS = PlanFacts(targets=("a",), ranges=((0, 1),), datasets=("a",), slices=120, fresh=3)
PLAN = PlanRow(
    id="p1",
    app="shop",
    digest="d",
    run_id="r",
    root="x",
    document=FACTS.document(),
    levels=3,
    jobs=40,
)
LEVELS = (
    LevelStates(level=0, states={"done": 19, "error": 1}, committed=True),
    LevelStates(level=1, states={"done": 4, "in_progress": 2, "queued": 4}, committed=False),
    LevelStates(level=2, states={"waiting": 10}, committed=False),
)
STATS = Stats(
    states={JobState.DONE: 900, JobState.WAITING: 70},
    tasks={},
    groups={},
    groups_total=0,
    oldest_ready_seconds=None,
    next_due_at=None,
    delayed=0,
    suspects=0,
    workers=1,
    paused=True,
)


def test_a_build_is_told_by_plan_slices_jobs_and_levels() -> None:
    assert list(BuildView.of(PLAN, LEVELS).parts()) == [
        "plan p1: 120 slices",
        "24 of 40 jobs ended",
        "1 of 3 levels committed",
    ]


def test_in_eager_mode_no_level_is_committed() -> None:
    eager = msgspec.structs.replace(FACTS, eager=True).document()
    view = BuildView.of(msgspec.structs.replace(PLAN, document=eager), LEVELS)

    assert list(view.parts())[-1] == "3 levels"


def test_a_document_of_another_version_does_no_harm() -> None:
    view = BuildView.of(msgspec.structs.replace(PLAN, document='{"new": 1}'), LEVELS)

    assert next(iter(view.parts())) == "plan p1"


def test_the_queue_is_seen_as_far_as_it_is_the_plan() -> None:
    stats = BuildView.of(PLAN, LEVELS).stats_of(STATS)

    assert stats.states == {
        JobState.DONE: 23,
        JobState.ERROR: 1,
        JobState.IN_PROGRESS: 2,
        JobState.QUEUED: 4,
        JobState.WAITING: 10,
    }
    assert stats.paused


def test_barriers_that_a_run_has_ended_are_not_counted() -> None:
    outlook = Outlook(
        open_by_task={},
        next_due_at=None,
        suspects=0,
        served_elsewhere=frozenset(),
        ended_in_run={JobState.DONE: 26, JobState.ERROR: 1},
    )
    view = BuildView.of(PLAN, LEVELS)

    assert view.outlook_of(outlook).ended_in_run == {JobState.DONE: 23, JobState.ERROR: 1}
    assert view.ended_in({JobState.DONE: 7}) == {JobState.DONE: 7}  # it was resumed
