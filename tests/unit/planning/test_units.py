# SPDX-License-Identifier: Apache-2.0
"""Which units are there, and is everything that is wrong told at once?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from penstock.errors import UsageError
from penstock.planning.units import Problems, Unit, UnitSpec, enclosing_partitions, plan_units

VALUES: dict[str, Mapping[str, Any]] = {
    "repo": {"o/a": 1, "o/b": 2},
    "region": {"eu": "EU", "us": "US"},
    "none": {},
    "long": {"x" * 250: 0},
    "longer": {"y" * 20: 0},
    "x": {"a/b": 0, "a": 1},
    "y": {"c": 0, "b/c": 1},
}


def plan(*specs: UnitSpec) -> list[Unit]:
    problems = Problems()
    units = plan_units("schedule:", specs, VALUES.__getitem__, problems)
    problems.raise_if_any()
    return units


def test_a_global_spec_is_one_unit() -> None:
    (unit,) = plan(UnitSpec("sweep"))

    assert unit == Unit("schedule:sweep", "sweep", None, (), ("",))


def test_dimensions_multiply_in_order() -> None:
    units = plan(UnitSpec("poll", ("repo",)), UnitSpec("mirror", ("repo", "region")))

    assert [unit.name for unit in units] == [
        "schedule:poll:o/a",
        "schedule:poll:o/b",
        "schedule:mirror:o/a/eu",
        "schedule:mirror:o/a/us",
        "schedule:mirror:o/b/eu",
        "schedule:mirror:o/b/us",
    ]
    assert units[0].shares == ("", "o/a")
    assert units[3].values == (1, "US")
    assert units[3].partition == "o/a/us"


def test_a_dimension_without_values_gives_no_units() -> None:
    assert plan(UnitSpec("poll", ("none",)), UnitSpec("mirror", ("repo", "none"))) == []


def test_a_unit_lies_in_every_coarser_partition() -> None:
    assert list(enclosing_partitions(())) == [""]
    assert list(enclosing_partitions(("a", "b"))) == ["", "a", "b", "b/a", "a/b"]
    three = list(enclosing_partitions(("a", "b", "c")))
    assert three[:4] == ["", "a", "b", "c"]
    assert three[-1] == "a/b/c"
    assert len(three) == len(set(three)) == 1 + 3 + 6 + 6


def test_two_units_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match="Two units are named schedule:poll:a/b/c; give one"):
        plan(UnitSpec("poll", ("x", "y")))


def test_names_that_are_too_long_are_refused() -> None:
    with pytest.raises(UsageError, match="has a partition of 271 characters; at most 256 fit"):
        plan(UnitSpec("poll", ("long", "longer")))
    with pytest.raises(UsageError, match="has a name of 517 characters; at most 512 fit"):
        plan(UnitSpec("p" * 257, ("long",)))


def test_every_problem_is_told_at_once_and_bounded() -> None:
    problems = Problems()
    problems.raise_if_any()
    for number in range(50):
        problems.add(f"Number {number} is wrong.")
        problems.add(f"Number {number % 5} is wrong.")
    with pytest.raises(UsageError) as refused:
        problems.raise_if_any()

    lines = str(refused.value).splitlines()
    assert lines[0] == "The plan has 50 problems:"
    assert lines[1] == "- Number 0 is wrong."
    assert lines[-1] == "- and 30 more."
    assert len(lines) == 22


def test_one_problem_is_one_sentence() -> None:
    problems = Problems()
    problems.add("This is wrong.")

    with pytest.raises(UsageError, match=r"^This is wrong\.$"):
        problems.raise_if_any()


def test_too_many_units_are_refused_before_they_are_made() -> None:
    many = {str(number): number for number in range(2_000)}
    problems = Problems()
    found = plan_units("schedule:", [UnitSpec("p", ("a", "b"))], lambda _: many, problems)

    assert found == []
    with pytest.raises(UsageError, match="has 4,000,000 units, over a × b; at most 1,000,000"):
        problems.raise_if_any()
