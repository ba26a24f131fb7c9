# SPDX-License-Identifier: Apache-2.0
"""Is a queue that stands still told from one that is at rest?"""

from __future__ import annotations

import msgspec
import pytest

from penstock.model.job import AttemptError, ErrorCategory, JobState, WorkerId
from penstock.model.schedule import PreflightResult, UnitView
from penstock.model.views import Finding, QueueFacts, Stats, WorkerView
from penstock.model.worker import WorkerStatus
from penstock.observe.doctor import OLD_READY_SECONDS, queue_findings
from tests.unit.observe.why.test_schedule import unit

STATS = Stats(
    states={JobState.QUEUED: 3},
    tasks={"fetch": {JobState.QUEUED: 3, JobState.DONE: 9}},
    groups={},
    groups_total=1,
    oldest_ready_seconds=5.0,
    next_due_at=None,
    delayed=0,
    suspects=0,
    workers=0,
    paused=False,
)
FACTS = QueueFacts(stats=STATS, workers=[], caps={"host:x": 2}, served=frozenset())


def worker(name: str, *, alive: bool) -> WorkerView:
    return WorkerView(
        id=WorkerId(name),
        run_id="r",
        host="here",
        pid=7,
        started_at=1,
        alive=alive,
        tasks=(),
        status=None,
        status_at=None,
    )


def findings(facts: QueueFacts, *tasks: str) -> dict[str, Finding]:
    return {finding.check: finding for finding in queue_findings(facts, tasks, lambda mark: True)}


def with_stats(**changes: object) -> QueueFacts:
    return msgspec.structs.replace(FACTS, stats=msgspec.structs.replace(STATS, **changes))


def test_a_queue_at_work_is_well() -> None:
    found = findings(FACTS, "fetch")

    assert all(finding.ok for finding in found.values())
    assert found["waiting"].text == "3 queued; the oldest ready one has waited for 0:00:05"
    assert found["workers"].text == "none alive"


def test_workers_are_named_and_the_lost_ones_counted() -> None:
    many = [worker(f"w-{n}", alive=True) for n in range(7)]
    facts = msgspec.structs.replace(FACTS, workers=[*many, worker("gone", alive=False)])

    text = findings(facts)["workers"].text

    assert text.startswith("7 alive: w-0 (pid 7 on here), w-1")
    assert "and 2 more" in text
    assert "1 dead, the next worker takes back their jobs" in text


def test_a_worker_that_was_killed_is_not_counted_as_alive() -> None:
    status = WorkerStatus(captured_at=1, process="mark").encoded()
    killed = msgspec.structs.replace(worker("k", alive=True), status=status, lease_seconds=12.0)
    old = msgspec.structs.replace(STATS, oldest_ready_seconds=OLD_READY_SECONDS + 1, workers=1)

    found = findings(msgspec.structs.replace(FACTS, workers=[killed], stats=old))

    assert found["workers"].text == "none alive; 1 not responding, their leases end within 12 s"
    assert "no worker is alive" in found["waiting"].text


@pytest.mark.parametrize(("workers", "remedy"), [(0, "'penstock queue run'"), (2, "more workers")])
def test_a_job_that_nobody_takes_is_told(workers: int, remedy: str) -> None:
    alive = [worker(f"w-{n}", alive=True) for n in range(workers)]
    facts = with_stats(oldest_ready_seconds=OLD_READY_SECONDS, workers=workers)

    found = findings(msgspec.structs.replace(facts, workers=alive), "fetch")["waiting"]

    assert not found.ok
    assert "has been ready for 1:00:00" in found.text
    assert remedy in found.text


def test_a_paused_queue_is_one_problem_not_two() -> None:
    found = findings(with_stats(paused=True, oldest_ready_seconds=1e6), "fetch")

    assert [name for name, finding in found.items() if not finding.ok] == ["paused"]
    assert "'penstock queue resume'" in found["paused"].text


def test_jobs_of_a_task_that_nobody_knows_are_told_with_the_nearest() -> None:
    found = findings(FACTS, "fetsh", "parse")["tasks"]

    assert not found.ok
    assert found.text.startswith("3 unfinished jobs are of the task 'fetch', which the app does")
    assert "closest: 'fetsh'" in found.text


def test_a_task_that_a_live_worker_of_another_app_serves_is_no_problem() -> None:
    facts = msgspec.structs.replace(FACTS, served=frozenset({"fetch"}))

    assert findings(facts, "other")["tasks"].ok
    assert findings(with_stats(tasks={"old": {JobState.DONE: 5}}), "other")["tasks"].ok


def test_tasks_are_not_judged_where_the_app_could_not_be_read() -> None:
    assert "tasks" not in {
        finding.check for finding in queue_findings(FACTS, None, lambda mark: True)
    }


def test_a_limit_of_nothing_is_told() -> None:
    found = findings(msgspec.structs.replace(FACTS, caps={"host:b": 0, "host:a": 0, "c:d": 1}))

    assert not found["limits"].ok
    assert "'host:a', 'host:b' to 0" in found["limits"].text


def ill(state: JobState, category: ErrorCategory = ErrorCategory.OWN) -> UnitView:
    return unit(state, attempts=1, last_error=AttemptError(category, "E", "m"))


@pytest.mark.parametrize(
    ("units", "ok", "words"),
    [
        ((), True, "2 units, none of them degraded"),
        ((ill(JobState.QUEUED),), False, "The unit 'schedule:poll:a/b' is degraded"),
        ((ill(JobState.ERROR),), False, "The unit 'schedule:poll:a/b' has ended in error"),
        (
            (ill(JobState.ERROR), ill(JobState.ERROR)),
            False,
            "2 units of schedules (schedule:poll:a/b, schedule:poll:a/b) have ended in error",
        ),
        ((ill(JobState.QUEUED, ErrorCategory.NODE),), True, "1 wait for others"),
    ],
)
def test_units_that_fail_or_have_ended_are_named(
    units: tuple[UnitView, ...], ok: bool, words: str
) -> None:
    schedules = {"schedule:poll": {JobState.QUEUED: 2}}
    facts = msgspec.structs.replace(with_stats(schedules=schedules), units=units)

    found = findings(facts, "fetch")["schedules"]

    assert found.ok is ok
    assert words in found.text
    assert ok or "penstock why schedule:poll:a/b" in found.text


def test_without_schedules_nothing_is_said_of_them() -> None:
    assert "schedules" not in findings(FACTS, "fetch")


def test_a_start_that_has_failed_is_a_problem_until_one_passes() -> None:
    failed = tuple(
        PreflightResult(
            unit=f"preflight:exists:{name}",
            name="exists",
            partition=name,
            error=AttemptError(ErrorCategory.OWN, "KeyError", "secret"),
            checked_at=1,
        )
        for name in ("a/b", "c/d")
    )

    found = findings(msgspec.structs.replace(FACTS, failed_checks=failed), "fetch")["preflights"]

    assert not found.ok
    assert found.text == (
        "The last start of a daemon failed: the preflight 'exists:a/b' did not pass, nor 1 more; "
        "'penstock run --check' runs them again and shows the errors."
    )
    assert "preflights" not in findings(FACTS, "fetch")
