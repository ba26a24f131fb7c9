# SPDX-License-Identifier: Apache-2.0
"""Does a unit of a schedule get a true answer, whatever keeps it from ticking?"""

from __future__ import annotations

import msgspec
import pytest

from penstock.cli.commands.why import passed_since
from penstock.model.job import AttemptError, ErrorCategory, JobState
from penstock.model.schedule import PreflightResult, UnitView
from penstock.model.views import WorkerView
from penstock.model.worker import LeasePhase, LeaseReport, WorkerStatus
from penstock.observe.why.facts import Gate, JobFacts, WorkerAnswer
from penstock.observe.why.schedule import FailedStart, UnitFacts, explain_unit, never_armed
from tests.unit.observe.why.test_job import NOW, W, around, job, seconds, stats, worker

TASK = "schedule:poll"
KEY = f"{TASK}:a/b"
DAEMON = worker(tasks=(TASK, "fetch"))
OWN = AttemptError(ErrorCategory.OWN, "KeyError", "'etag'")
NODE = AttemptError(ErrorCategory.NODE, "ConnectError", "refused")
FAILED = FailedStart(
    app="watch",
    failed=(
        PreflightResult(unit="preflight:exists:a/b", name="exists", partition="a/b", error=OWN),
        PreflightResult(unit="preflight:token", name="token", partition="", error=NODE),
    ),
    count=7,
    checked_at=NOW - seconds(60),
)


def unit(state: JobState = JobState.QUEUED, **changes: object) -> UnitView:
    values: dict[str, object] = {
        "key": KEY,
        "app": "watch",
        "task": TASK,
        "partition": "a/b",
        "timing": "every 10 s",
        "state": state,
        "due_at": NOW + seconds(4),
        "attempts": 0,
        "deferred_since": None,
        "last_error": None,
        "ticks": 12,
        "missed": 3,
        "failed": 1,
        "last_tick_at": NOW - seconds(6),
        "retired_at": None,
        **changes,
    }
    values.setdefault("available_at", values["due_at"])
    return UnitView(**values)  # type: ignore[arg-type]


def facts(
    subject: UnitView,
    workers: tuple[WorkerView, ...] = (DAEMON,),
    *,
    start: FailedStart | None = None,
    paused: bool = False,
    answers: tuple[WorkerAnswer, ...] = (),
    **row: object,
) -> UnitFacts:
    values: dict[str, object] = {
        "task": TASK,
        "available_at": subject.available_at,
        "attempts": subject.attempts,
        "last_error": subject.last_error,
        **row,
    }
    row_of_it = job(KEY, subject.state, **values)
    known = JobFacts(
        this=around(row_of_it),
        now=NOW,
        stats=stats(paused=paused),
        workers=workers,
        answers=answers,
    )
    passed = passed_since(subject, NOW)
    return UnitFacts(unit=subject, around=known, start=start, passed=passed)


def test_one_that_is_not_due_says_when_it_is() -> None:
    found = explain_unit(facts(unit()))

    assert found.gate is Gate.NOT_DUE
    assert found.sentence == (
        f"{KEY!r} is not due: its next tick is at 2027-01-15 08:00:04Z, in 4.0 s (every 10 s)."
    )
    assert found.when == NOW + seconds(4)
    assert found.command is None
    assert found.details == (
        "So far: 12 ticks succeeded, 3 missed, 1 try failed; the last success was at "
        "2027-01-15 07:59:54Z.",
    )


def test_a_paused_one_says_so_before_anything_else() -> None:
    pause = {"paused_by": KEY, "paused_at": NOW - seconds(60)}
    due = NOW - seconds(25)

    found = explain_unit(facts(unit(JobState.WAITING, due_at=due, **pause), workers=()))
    runs = explain_unit(facts(unit(JobState.IN_PROGRESS, **pause)))

    assert found.gate is Gate.PAUSED
    assert found.sentence == f"{KEY!r} is paused since 2027-01-15 07:59:00Z (1:00)."
    assert found.command == f"penstock schedule resume {KEY}"
    assert found.details[0] == (
        "Since then 2 occurrences have passed, which are skipped and counted (every 10 s)."
    )
    assert found.details[1].startswith(f"Behind that: No daemon serves {KEY!r}")
    assert runs.gate is not Gate.PAUSED
    assert (
        f"{KEY!r} is paused since 2027-01-15 07:59:00Z (1:00); this tick goes on." in runs.details
    )


def test_a_degraded_one_says_what_failed_how_often_and_when_it_is_tried_again() -> None:
    subject = unit(
        due_at=NOW - seconds(95), available_at=NOW + seconds(30), attempts=2, last_error=OWN
    )

    found = explain_unit(facts(subject))

    assert found.gate is Gate.DEGRADED
    assert found.sentence == (
        f"{KEY!r} is degraded: 2 tries of its tick of 2027-01-15 07:58:25Z (1:35 ago) failed, the "
        "last with KeyError: 'etag'. It is tried again at 2027-01-15 08:00:30Z, in 30 s."
    )
    assert found.details[0] == (
        "Since then 9 occurrences have passed, which are skipped and counted (every 10 s)."
    )


def test_an_error_of_an_earlier_occurrence_is_no_reason() -> None:
    assert explain_unit(facts(unit(last_error=OWN))).gate is Gate.NOT_DUE


def test_one_that_others_have_failed_waits_for_them() -> None:
    subject = unit(
        due_at=NOW - seconds(9),
        available_at=NOW + seconds(2),
        deferred_since=NOW - seconds(8),
        last_error=NODE,
    )

    found = explain_unit(facts(subject))

    assert found.gate is Gate.OTHERS
    since = "2027-01-15 07:59:52Z (8.0 s)"
    assert f"has waited for another party since {since}, uncharged" in found.sentence
    assert "ConnectError: refused. It is tried again at" in found.sentence


def test_a_recheck_that_does_not_pass_is_named() -> None:
    error = AttemptError(ErrorCategory.NODE, "preflight exists", "ConnectError: refused")
    subject = unit(
        due_at=NOW - seconds(9),
        available_at=NOW + seconds(2),
        deferred_since=NOW - seconds(8),
        last_error=error,
    )

    found = explain_unit(facts(subject))

    assert found.gate is Gate.PREFLIGHT
    assert found.sentence.startswith("The preflight 'exists', which runs before each retry")
    assert "does not pass: ConnectError: refused." in found.sentence


@pytest.mark.parametrize("workers", [(), (worker(alive=False, tasks=(TASK,)),)])
def test_without_a_daemon_it_says_so_first_and_how_to_start_one(
    workers: tuple[WorkerView, ...],
) -> None:
    found = explain_unit(facts(unit(), workers))

    assert found.gate is Gate.NO_WORKER
    assert found.sentence == (
        f"No daemon serves {KEY!r}, or one has started and still runs its preflights."
    )
    assert found.command == "penstock run"
    assert found.details[0].startswith(f"Behind that: {KEY!r} is not due")


def test_workers_of_the_queue_are_no_daemon() -> None:
    found = explain_unit(facts(unit(), (worker(tasks=("fetch",)),)))

    assert found.gate is Gate.NO_WORKER
    assert "The only live worker does not know it: 'penstock queue run'" in found.sentence


def test_a_start_that_failed_is_told_with_its_checks() -> None:
    found = explain_unit(facts(unit(), (), start=FAILED))

    assert found.gate is Gate.PREFLIGHT
    assert found.sentence == (
        f"No daemon serves {KEY!r}: the last start of the app 'watch' failed at "
        "2027-01-15 07:59:00Z, since the preflight 'exists' of 'a/b' did not pass, and 6 more: "
        "KeyError: 'etag'."
    )
    assert found.command == "penstock run --check"
    assert found.details[0].startswith("The preflight 'token' failed at")
    assert found.details[1] == "5 more preflights failed."


def test_another_daemons_failed_start_keeps_nobody_from_ticking() -> None:
    assert explain_unit(facts(unit(), start=FAILED)).gate is Gate.NOT_DUE


def test_before_the_first_good_start_there_is_no_unit_but_an_answer() -> None:
    found = never_armed(KEY, FAILED)

    assert (found.state, found.gate) == (None, Gate.PREFLIGHT)
    assert found.sentence.startswith(f"{KEY!r} is not in the store, and no unit is armed: the last")


def test_a_paused_queue_is_said_before_the_time() -> None:
    found = explain_unit(facts(unit(), paused=True))

    assert (found.gate, found.command) == (Gate.PAUSED, "penstock queue resume")


def test_one_that_is_late_says_since_when() -> None:
    found = explain_unit(facts(unit(due_at=NOW - seconds(3))))

    assert found.gate is Gate.TURN
    assert f"Its tick was due at 2027-01-15 07:59:57Z, {3.0} s ago." in found.details


def running(ago: float) -> UnitFacts:
    standing = LeaseReport(
        standing=LeasePhase.RUNNING,
        since_at=NOW - seconds(ago),
        status=WorkerStatus(captured_at=NOW),
    )
    subject = unit(JobState.IN_PROGRESS, due_at=NOW - seconds(ago))
    return facts(subject, answers=(WorkerAnswer(W, standing),), worker=W)


def test_one_whose_last_tick_runs_on_says_what_has_passed() -> None:
    found = explain_unit(running(35))

    assert found.gate is Gate.OVERLAPPING
    assert "is running on worker 'w-1' since 2027-01-15 07:59:25Z (35 s)" in found.sentence
    assert "Since then 3 occurrences have passed, which are skipped" in found.sentence


def test_one_that_ticks_in_time_is_simply_running() -> None:
    found = explain_unit(running(2))

    assert found.gate is Gate.RUNNING
    assert "This is its tick of 2027-01-15 07:59:58Z." in found.details


@pytest.mark.parametrize("timing", ["weekly", "cron 1 2", "every x s"])
def test_a_timing_that_cannot_be_read_costs_no_answer(timing: str) -> None:
    odd = unit(JobState.IN_PROGRESS, due_at=NOW - seconds(35), timing=timing)

    assert passed_since(odd, NOW) == 0


def test_a_retired_one_says_since_when() -> None:
    subject = unit(JobState.CANCELLED, retired_at=NOW - seconds(120))

    found = explain_unit(facts(subject, finished_at=NOW - seconds(120)))

    assert (found.gate, found.command) == (Gate.RETIRED, "penstock run")
    assert "is retired: since 2027-01-15 07:58:00Z (2:00) the app 'watch' no longer plans it" in (
        found.sentence
    )


def test_one_that_an_operator_cancelled_is_armed_by_the_next_start() -> None:
    found = explain_unit(facts(unit(JobState.CANCELLED), finished_at=NOW))

    assert (found.gate, found.command) == (Gate.FINISHED, "penstock run")
    assert "was cancelled by an operator" in found.sentence


def test_one_that_crashed_goes_on_by_a_retry_or_a_start() -> None:
    error = AttemptError(ErrorCategory.CRASHED, "crashed", "SIGSEGV")
    subject = unit(JobState.ERROR, last_error=error)

    found = explain_unit(facts(subject, crashes=3))
    alone = explain_unit(facts(subject, (), crashes=3))

    assert found.gate is alone.gate is Gate.FINISHED
    assert "its process died with it 3 times while it ran alone: crashed: SIGSEGV" in found.sentence
    assert found.command == "penstock queue retry-failed --task schedule:poll"
    assert alone.command == "penstock run"


def test_one_whose_attempts_are_used_up_says_so() -> None:
    subject = unit(JobState.ERROR, attempts=4, last_error=OWN, due_at=NOW - seconds(60))

    found = explain_unit(facts(subject, ()))

    assert "all its attempts are used up (4 tries of its tick of" in found.sentence


def test_of_what_a_check_said_the_first_line_is_told_as_at_the_start() -> None:
    first = FAILED.failed[0]
    assert first.error is not None
    error = msgspec.structs.replace(first.error, message="404 Not Found\nFor more see a page")
    start = msgspec.structs.replace(
        FAILED, failed=(msgspec.structs.replace(first, error=error),), count=1
    )

    found = explain_unit(facts(unit(), (), start=start))

    assert found.sentence.endswith("404 Not Found.")


def test_the_next_tick_of_a_cron_expression_is_told_by_its_own_clocks() -> None:
    due_at = NOW + seconds(18 * 3600)
    berlin = facts(unit(due_at=due_at, timing="cron 0 3 * * * Europe/Berlin"))
    utc = facts(unit(due_at=due_at, timing="cron 0 3 * * * UTC"))

    assert "2027-01-16 03:00:00+01:00" in explain_unit(berlin).sentence
    assert "2027-01-16 02:00:00Z" in explain_unit(utc).sentence
