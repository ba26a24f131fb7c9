# SPDX-License-Identifier: Apache-2.0
"""Can a person read what came of a build?"""

from __future__ import annotations

from penstock.cli.render.plan_and_build import NO_SLICE, ROWS_MAX, report_lines
from penstock.model.job import AttemptError, ErrorCategory, JobState
from penstock.model.plan import BuildReport, JobResult
from penstock.supervisor.protocol import Planned

PLANNED = Planned(plan_id="p", slices=4, jobs=4, levels=3)


def result(name: str, state: JobState, kind: str, said: str) -> JobResult:
    return JobResult(
        job_id=f"build:p:{name}", status=state, error=AttemptError(ErrorCategory.OWN, kind, said)
    )


def test_what_failed_and_what_was_skipped_is_one_table() -> None:
    failed = result("a@2024-01-05", JobState.ERROR, "ValueError", "no rows")
    skipped = result(
        "a.report@2024-01-05..2024-01-07",
        JobState.SKIPPED,
        "Skipped",
        "upstream failed: a@2024-01-05",
    )
    report = BuildReport(
        plan_id="p", run_id="r", slices=2, done=2, failed=(failed,), skipped=(skipped,)
    )

    assert list(report_lines(report, PLANNED)) == [
        "FAILED   a@2024-01-05                     ValueError: no rows",
        "skipped  a.report@2024-01-05..2024-01-07  upstream failed: a@2024-01-05",
        "Built 2 slices, 1 of 4 jobs failed, 1 skipped (plan p).",
    ]


def test_a_name_that_is_not_shown_widens_nothing() -> None:
    many = [result(f"a@{n:02}", JobState.ERROR, "E", "no") for n in range(ROWS_MAX)]
    hidden = result("a" * 50 + "@1", JobState.ERROR, "E", "no")
    report = BuildReport(plan_id="p", run_id="r", failed=(*many, hidden))

    lines = list(report_lines(report, PLANNED))
    assert lines[0] == "FAILED   a@00  E: no"
    assert lines[ROWS_MAX] == "FAILED   … and 1 more"


def test_a_range_without_slices_is_not_called_up_to_date() -> None:
    report = BuildReport(plan_id=None, run_id="r")
    asked = Planned(plan_id=None)

    assert list(report_lines(report, asked)) == [NO_SLICE]
    future = list(report_lines(report, Planned(plan_id=None, future=2)))
    assert future == ["Up to date: 0 slices, nothing to build; 2 slices in the future left out."]
