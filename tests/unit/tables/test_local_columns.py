# SPDX-License-Identifier: Apache-2.0
"""Columns that are computed here: expressions, samples and seeds of a row group, with bad cells."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pydantic import BaseModel

from penstock import Penstock
from penstock.definitions.table import Table
from penstock.model.table import CellError
from penstock.tables.local_columns import compute, plain_value, plain_values, skipped
from penstock.tables.seeds import SeedReader
from penstock.tables.value_types import (
    FLOAT,
    INT,
    JSON,
    TEXT,
    UTC_TIME,
    type_of_annotation,
)

SECRET = "a prompt that nobody may read in a log"


@pytest.fixture
def table() -> Table:
    return Penstock("computed").table("t")


def test_an_expression_is_computed_and_a_bad_cell_stands_in_its_place(table: Table) -> None:
    made = table.expression("title", "{{ product.name }}: {{ stars }}")
    rows: list[dict[str, Any]] = [
        {"product": {"name": "Lamp"}, "stars": 3},
        {"product": {}, "stars": 3},
        {"product": {"name": "Bed"}, "stars": None},
    ]

    assert compute(made, 0, 0, rows) == [
        "Lamp: 3",
        CellError("title", "template", "'product' has no field 'name'"),
        "Bed: ",
    ]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (int, "{{ x + 1 }}", 3),
        (float, "{{ x / 4 }}", 0.5),
        (bool, "{{ x > 1 }}", True),
        (bool, "false", False),
        (str, "{{ x }}", "2"),
    ],
)
def test_an_expression_has_a_type(table: Table, kind: Any, text: str, value: Any) -> None:
    (found,) = compute(table.expression("e", text, type=kind), 0, 0, [{"x": 2}])

    assert found == value
    assert type(found) is kind


@pytest.mark.parametrize(
    ("kind", "text"),
    [(int, "1.5"), (int, "{{ s }}"), (int, str(2**63)), (float, "nan"), (bool, "yes"), (bool, "")],
)
def test_a_text_that_is_not_of_the_type_is_told_without_it(
    table: Table, kind: Any, text: str
) -> None:
    (found,) = compute(table.expression("e", text, type=kind), 0, 0, [{"s": SECRET}])

    assert found == CellError("e", "type", f"its text is no {kind.__name__}")


def test_a_sample_without_choices_is_a_bad_cell(table: Table) -> None:
    made = table.sample("s", choices={"a": [1]}, by="kind")

    assert compute(made, 0, 0, [{"kind": "a"}, {"kind": SECRET}]) == [
        1,
        CellError("s", "choices", "there are no choices for the value of 'kind'"),
    ]


def test_a_seed_gives_the_rows_of_the_group(table: Table) -> None:
    made = table.seed("p", source=["a", "b", "c"])

    assert compute(made, 0, 4, [{}, {}], SeedReader(made, 0)) == ["b", "c"]


def test_a_condition_says_which_cells_are_not_made(table: Table) -> None:
    made = table.expression("e", "1", skip_when="{{ stars < 3 }}", skip_value="none")

    assert [skipped(made, {"stars": stars}) for stars in (1, 3)] == [True, False]
    assert skipped(table.expression("f", "1"), {}) is False
    assert skipped(made, {}) == CellError("e", "template", "skip_when=: the row has no 'stars'")


class Mood(enum.Enum):
    GOOD = "good"


@dataclass
class Point:
    x: int
    mood: Mood


class Score(BaseModel):
    stars: int
    at: datetime


NOW = datetime(2024, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (str, "a", "a"),
        (Mood, Mood.GOOD, "good"),
        (Point, Point(1, Mood.GOOD), {"x": 1, "mood": "good"}),
        (list[Point], [Point(1, Mood.GOOD)], [{"x": 1, "mood": "good"}]),
        (dict[str, int], {"a": 1}, {"a": 1}),
        (list[float], (1, 2.5), [1.0, 2.5]),
        (Point, {"x": 1, "more": 2}, {"x": 1, "mood": None}),
        (int | None, None, None),
        (datetime, NOW, NOW),
        (list[dict[str, Any]], [{"at": NOW}], [{"at": "2024-01-01T00:00:00Z"}]),
    ],
)
def test_what_a_function_returns_becomes_what_is_read_again(
    annotation: Any, value: Any, expected: Any
) -> None:
    kind = type_of_annotation(annotation).settled
    found = plain_value("c", kind, value)
    again = kind.restored(pa.array([kind.stored(found)], kind.arrow)[0].as_py())

    assert found == expected == again
    assert str(found) == str(again)  # what a template writes


@pytest.mark.parametrize(
    ("kind", "value", "problem"),
    [
        (INT, "1", "the value is a str, not a whole number"),
        (INT, True, "the value is a bool, not a whole number"),
        (FLOAT, 10**400, "the value is a number that is too large"),
        (INT, 2**63, "the value is a whole number outside 64 bits"),
        (TEXT, "\ud800", "the value is a text with a lone surrogate"),
        (UTC_TIME, "now", "the value is a str, not a time"),
        (JSON, {"a": np.zeros(2)}, "the value cannot be kept as JSON"),
        (
            type_of_annotation(Point),
            {"x": "a"},
            "has a field 'x' that is a str, not a whole number",
        ),
        (type_of_annotation(list[int]), ["a"], "has an element that is a str, not a whole number"),
    ],
)
def test_what_does_not_fit_its_column_is_told_without_it(
    kind: Any, value: Any, problem: str
) -> None:
    found = plain_value("c", kind, value)

    assert isinstance(found, CellError)
    assert problem in found.message


def test_a_function_of_a_group_returns_a_value_for_each_row() -> None:
    assert plain_values("c", INT, (n for n in (1, 2)), 2) == [1, 2]
    assert plain_values("c", INT, np.array([1, 2]).tolist(), 2) == [1, 2]
    assert plain_values("c", INT, [1, "a"], 2)[0] == 1
    assert (
        plain_values("c", INT, [1], 2)
        == [CellError("c", "type", "it returned 1 value for 2 rows")] * 2
    )
    assert (
        plain_values("c", TEXT, "ab", 2)
        == [CellError("c", "type", "a function of a row group returns a list, got a str")] * 2
    )
