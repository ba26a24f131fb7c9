# SPDX-License-Identifier: Apache-2.0
"""Who is blamed for the death of a process of preflights, and who runs again?"""

from __future__ import annotations

from penstock.supervisor.phases import DEATHS_MAX, Blame
from penstock.supervisor.protocol import Check

CAUSE = "killed by SIGKILL"


def test_one_that_ran_alone_is_blamed_and_the_rest_looked_at_again() -> None:
    blame = Blame()
    assert blame.died(CAUSE, ["reachable:a"], [], blocked=False)
    assert [(one.unit, CAUSE in one.problem) for one in blame.blamed] == [("reachable:a", True)]
    assert blame.alone == ()


def test_of_several_each_runs_alone_until_one_is_found() -> None:
    blame = Blame()
    assert blame.died(CAUSE, ["a", "b", "c"], [], blocked=True)
    assert not blame.blamed
    assert list(blame.alone) == ["a", "b", "c"]

    passed = Check(name="a", partition="", passed=True)
    assert blame.died(CAUSE, ["b"], [passed], blocked=True)
    assert [one.unit for one in blame.blamed] == ["b"]
    assert "blocks the event loop" in blame.blamed[0].problem
    assert list(blame.alone) == ["c"]  # "a" may run with the others


def test_nobody_looks_again_for_ever_or_without_a_suspect() -> None:
    assert not Blame().died(CAUSE, [], [], blocked=False)
    blame = Blame()
    looks = [blame.died(CAUSE, [f"check:{n}"], [], blocked=False) for n in range(DEATHS_MAX)]
    assert looks == [True] * (DEATHS_MAX - 1) + [False]
    assert len(blame.blamed) == DEATHS_MAX
