# SPDX-License-Identifier: Apache-2.0
"""Which phase follows which, and with which code does a run end in each?"""

from __future__ import annotations

import pytest

from penstock.supervisor.phases import Phases
from penstock.supervisor.protocol import Armed, Check, Checked, RunSpec

ARMED = Armed(schedules=1, units=3)
BAD = Check(name="reachable", partition="a", passed=False, problem="404")


def phases(*, daemon: bool = True, check: bool = False, processes: int = 3) -> Phases:
    spec = RunSpec(app=None, flags={}, folder="/", processes=processes, daemon=daemon, check=check)
    return Phases(spec)


def test_a_run_of_the_queue_works_from_the_start() -> None:
    run = phases(daemon=False)
    assert run.is_working
    assert not run.needs_lead
    assert list(run.starters()) == [0, 1, 2]
    assert run.exit_code() is None


def test_a_daemon_begins_with_its_lead_and_others_follow_when_it_has_armed() -> None:
    run = phases()
    leads = [run.needs_lead]
    assert list(run.starters()) == [0]
    assert not run.hear([], Checked(passed=2, failed=0), None)
    assert run.phase.value == "arming"
    leads.append(run.needs_lead)
    assert run.hear([], Checked(passed=2, failed=0), ARMED)
    leads.append(run.needs_lead)
    assert leads == [True, True, False]
    assert list(run.followers()) == [1, 2]
    assert run.exit_code() is None
    assert not run.hear([], Checked(passed=2, failed=0), ARMED)  # it begins once


def test_both_may_be_heard_at_once() -> None:
    assert phases().hear([], Checked(passed=0, failed=0), ARMED)


def test_a_failed_check_ends_it_whatever_comes_later() -> None:
    run = phases()
    assert not run.hear([BAD], Checked(passed=1, failed=1), ARMED)
    assert run.phase.value == "refused"
    assert run.checks == [BAD]
    assert run.exit_code() == 3
    assert not run.hear([], Checked(passed=2, failed=0), ARMED)
    assert run.exit_code() == 3


@pytest.mark.parametrize(("failed", "code"), [(0, 0), (1, 3)])
def test_a_check_alone_arms_nothing(failed: int, code: int) -> None:
    run = phases(check=True)
    assert not run.hear([], Checked(passed=1, failed=failed), ARMED)
    assert not run.is_working
    assert run.exit_code() == code


def test_a_lead_that_dies_is_told_with_what_it_was_about() -> None:
    run = phases()
    assert "while the preflights ran (killed by SIGKILL)" in run.format_lead_death(
        "killed by SIGKILL"
    )
    assert run.exit_code() == 3
    run.hear([], Checked(passed=1, failed=0), None)
    assert "while schedules were armed" in run.format_lead_death("exit code 1")


def test_a_lead_that_dies_is_followed_by_one_that_looks_at_the_rest() -> None:
    run = phases(check=True)
    assert run.lead_died("exit code 9", [], ["reachable:b", "token"], has_begun=True) is None
    assert run.needs_lead
    assert run.known() == Checked(passed=0, failed=0)
    assert run.lead_died("exit code 9", [], ["token"], has_begun=True) is None
    assert [(check.unit, check.passed) for check in run.checks] == [("token", False)]

    run.hear([BAD, run.checks[0]], Checked(passed=1, failed=2), None)
    assert run.phase.value == "refused"
    assert sorted(check.unit for check in run.checks) == ["reachable:a", "token"]
    assert run.known() == Checked(passed=1, failed=2)


def test_a_lead_that_never_began_is_not_followed() -> None:
    run = phases()
    failed = run.lead_died("exit code 9", [], [], has_begun=False)
    assert failed is not None
    assert failed.exit_code == 3
    assert "while it read the app (exit code 9)" in failed.message
    run.hear([], Checked(passed=1, failed=0), None)
    assert run.lead_died("exit code 9", [], ["a"], has_begun=True) is not None  # it armed
