# SPDX-License-Identifier: Apache-2.0
"""Which preflight crashed its process, and which run again."""

from __future__ import annotations

from penstock.supervisor.phases import DEATHS_MAX, PreflightCrashes
from penstock.supervisor.protocol import Check

CAUSE = "killed by SIGKILL"


def test_one_that_ran_alone_is_blamed_and_the_rest_looked_at_again() -> None:
    crashes = PreflightCrashes()
    assert crashes.died(CAUSE, ["reachable:a"], [], blocked=False)
    assert [(one.unit, CAUSE in one.problem) for one in crashes.crashed] == [("reachable:a", True)]
    assert crashes.alone == ()


def test_of_several_each_runs_alone_until_one_is_found() -> None:
    crashes = PreflightCrashes()
    assert crashes.died(CAUSE, ["a", "b", "c"], [], blocked=True)
    assert not crashes.crashed
    assert list(crashes.alone) == ["a", "b", "c"]

    passed = Check(name="a", partition="", passed=True)
    assert crashes.died(CAUSE, ["b"], [passed], blocked=True)
    assert [one.unit for one in crashes.crashed] == ["b"]
    assert "blocks the event loop" in crashes.crashed[0].problem
    assert list(crashes.alone) == ["c"]  # "a" may run with the others


def test_nobody_looks_again_for_ever_or_without_a_suspect() -> None:
    assert not PreflightCrashes().died(CAUSE, [], [], blocked=False)
    crashes = PreflightCrashes()
    looks = [crashes.died(CAUSE, [f"check:{n}"], [], blocked=False) for n in range(DEATHS_MAX)]
    assert looks == [True] * (DEATHS_MAX - 1) + [False]
    assert len(crashes.crashed) == DEATHS_MAX
