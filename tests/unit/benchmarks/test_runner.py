# SPDX-License-Identifier: Apache-2.0
"""Checks, sections and exit codes of the benchmark runner, with scenarios that measure nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

import pytest

from benchmarks import runner
from benchmarks.runner import (
    Check,
    Kind,
    Outcome,
    Scenario,
    Section,
    Sense,
    Setup,
    Surroundings,
    Table,
)

MET = Check("met", 1.0, Sense.AT_MOST, 2.0)
MISSED = Check("missed", 3.0, Sense.AT_MOST, 2.0)


def section_of(*checks: Check) -> Section:
    return Section("fake", (Scenario("one", lambda setup: Outcome(checks)),))


def run(section: Section, *, smoke: bool = False) -> runner.SectionResult:
    return runner.run_section(section, smoke=smoke)


@pytest.mark.parametrize(
    ("sense", "value", "ok"),
    [
        (Sense.AT_MOST, 2.0, True),
        (Sense.AT_MOST, 2.1, False),
        (Sense.AT_LEAST, 2.0, True),
        (Sense.AT_LEAST, 1.9, False),
        (Sense.BELOW, 1.9, True),
        (Sense.BELOW, 2.0, False),
    ],
)
def test_a_check_compares_its_value_with_its_bound(sense: Sense, value: float, ok: bool) -> None:
    assert Check("x", value, sense, 2.0).ok is ok


def test_a_value_that_is_not_a_number_is_never_ok() -> None:
    assert not any(Check("x", float("nan"), sense, 2.0).ok for sense in Sense)


def test_relaxing_moves_a_timing_bound_to_its_own_side() -> None:
    assert Check("x", 1, Sense.AT_MOST, 3.0).relaxed(2).bound == 6.0
    assert Check("x", 1, Sense.BELOW, 3.0).relaxed(2).bound == 6.0
    assert Check("x", 1, Sense.AT_LEAST, 3.0).relaxed(2).bound == 1.5


def test_relaxing_leaves_a_bound_of_logic_alone() -> None:
    check = Check("x", 1, Sense.AT_LEAST, 0.2, timing=False)
    assert check.relaxed(2) is check


def test_smoke_mode_relaxes_what_a_full_run_does_not() -> None:
    assert run(section_of(MISSED)).outcome.checks == (MISSED,)
    assert run(section_of(MISSED), smoke=True).outcome.checks == (replace(MISSED, bound=4.0),)


def test_a_missed_bound_fails_the_run() -> None:
    assert runner.exit_code([run(section_of(MET, MISSED))]) == 1


def test_a_missed_goal_does_not_fail_the_run() -> None:
    assert runner.exit_code([run(section_of(MET, replace(MISSED, kind=Kind.GOAL)))]) == 0


def test_a_missed_bound_of_any_section_fails_the_run() -> None:
    assert runner.exit_code([run(section_of(MISSED)), run(section_of(MET))]) == 1


def test_no_checks_are_no_failure() -> None:
    assert runner.exit_code([run(section_of())]) == 0


def test_a_scenario_that_breaks_fails_the_run_and_stops_no_other() -> None:
    def broken(setup: Setup) -> Outcome:
        raise ValueError("no such probe")

    section = Section(
        "fake", (Scenario("bad", broken), Scenario("good", lambda setup: Outcome((MET,))))
    )
    result = run(section, smoke=True)
    assert [check.ok for check in result.outcome.checks] == [False, True]
    assert "no such probe" in result.errors[0]
    assert runner.exit_code([result]) == 1


def test_a_scenario_is_given_its_size_its_rounds_and_a_folder_of_its_own() -> None:
    seen: list[Setup] = []

    def look(setup: Setup) -> Outcome:
        assert setup.folder.is_dir()
        seen.append(setup)
        return Outcome()

    for smoke in (False, True):
        run(Section("fake", (Scenario("one", look),)), smoke=smoke)
    assert [setup.rounds for setup in seen] == [5, 3]
    assert [setup.size(1_000, smoke=10) for setup in seen] == [1_000, 10]
    assert not any(setup.folder.exists() for setup in seen)


def test_outcomes_are_joined_in_order() -> None:
    table = Table("t", ("a",), ((1,),))
    joined = Outcome.joined([Outcome((MET,), (table,)), Outcome((MISSED,))])
    assert joined == Outcome((MET, MISSED), (table,))


def test_a_section_can_be_cut_down_to_some_scenarios() -> None:
    one, two = (Scenario(name, lambda setup: Outcome()) for name in ("one", "two"))
    assert Section("fake", (one, two)).only(["two"]).scenarios == (two,)


def test_cutting_down_to_an_unknown_scenario_names_those_there_are() -> None:
    with pytest.raises(ValueError, match="no scenario 'three'; it has one"):
        section_of().only(["three"])


def test_scenarios_get_what_surrounds_them_and_it_ends_after_them() -> None:
    told: list[str] = []

    @contextmanager
    def surroundings() -> Iterator[Surroundings]:
        yield Surroundings("url", (Table("server", ("version",), (("15",),)),))
        told.append("ended")

    def measure(setup: Setup) -> Outcome:
        told.append(setup.url)
        return Outcome()

    result = run(Section("fake", (Scenario("one", measure),), surroundings).only(["one"]))

    assert told == ["url", "ended"]
    assert [table.title for table in result.outcome.tables] == ["server"]


def test_surroundings_that_cannot_be_had_fail_the_run() -> None:
    def surroundings() -> AbstractContextManager[Surroundings]:
        raise ValueError("no such server")

    result = run(Section("fake", (Scenario("one", lambda setup: Outcome((MET,))),), surroundings))

    assert runner.exit_code([result]) == 1
    assert "no such server" in result.errors[0]
