# SPDX-License-Identifier: Apache-2.0
"""What is said of a lead that dies before anybody works?"""

from __future__ import annotations

from penstock.supervisor.phases import EXIT_PREFLIGHT_FAILED, Phases
from penstock.supervisor.protocol import Checked, RunSpec

SPEC = RunSpec(app=None, flags={}, folder=".", daemon=True)


def test_those_that_ran_are_named_and_counted() -> None:
    phases = Phases(SPEC)
    assert phases.format_lead_death("exit code 70", [], ["a:1"]) == (
        "The process died while the preflight 'a:1' ran (exit code 70); nothing else was started."
    )
    words = phases.format_lead_death("killed by SIGKILL", [], [f"a:{n}" for n in range(1_007)])
    assert "the preflights 'a:0', 'a:1', 'a:2', 'a:3', 'a:4' and 1,002 more ran (killed" in words
    assert "while the preflights ran (exit code 1)" in phases.format_lead_death("exit code 1")
    assert phases.exit_code() == EXIT_PREFLIGHT_FAILED


def test_one_that_could_not_be_stopped_is_blamed() -> None:
    phases = Phases(SPEC)
    words = phases.format_lead_death("killed by SIGKILL", ["a:1"], ["a:1"])
    assert words.startswith("The preflight 'a:1' had not ended by preflight_timeout")
    assert "it blocks the event loop" in words
    words = phases.format_lead_death(
        "killed by SIGKILL", ["a"], ["a", "b"]
    )  # "b" may have begun later
    assert words.startswith("The preflights 'a', 'b' had not ended")
    assert "one of them blocks" in words


def test_a_death_between_the_phases_is_none_of_a_preflight() -> None:
    phases = Phases(SPEC)
    phases.hear([], Checked(passed=1, failed=0), None)
    assert phases.format_lead_death("exit code 1", [], []) == (
        "The process died while schedules were armed (exit code 1); nothing was started."
    )
