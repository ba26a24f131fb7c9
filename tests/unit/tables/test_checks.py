# SPDX-License-Identifier: Apache-2.0
"""Checks: verdicts of functions, schemas and SQL, and checks that cannot decide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from penstock import Penstock
from penstock.definitions.column import CheckColumn
from penstock.model.table import CellError
from penstock.tables.checks import group_verdicts, row_check
from penstock.tables.value_types import INT, JSON, TEXT

SECRET = "an answer that nobody may read in a log"


class Score(BaseModel):
    stars: int
    reason: str


def check(*predicate: Callable[..., Any], **options: Any) -> CheckColumn:
    return Penstock("checked").table("t").check("fine", *predicate, **options)


def verdict(row: dict[str, Any], *predicate: Callable[..., Any], **options: Any) -> Any:
    return row_check(check(*predicate, **options))(row)


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        (lambda row: len(row["review"]) > 3, None),
        (lambda row: len(row["review"]) > 4, "it is not true"),
        (lambda review: "o" in review, None),
        (lambda review, stars: stars > 3, "it is not true"),
        (lambda review: review or "no review", "good"),  # a text is a reason
        (lambda review: "", "it returned an empty text"),
        (lambda review, least=5: len(review) >= least, "it is not true"),
    ],
)
def test_a_function_decides(predicate: Callable[..., Any], expected: str | None) -> None:
    assert verdict({"review": "good", "stars": 3}, predicate) == expected


def raises(review: str) -> bool:
    raise ValueError(review)


def test_a_function_that_raises_is_no_fault_of_the_row_and_quotes_nothing() -> None:
    found = verdict({"review": SECRET}, raises)

    assert isinstance(found, CellError)
    assert (found.column, found.kind) == ("fine", "raised")
    assert found.message.startswith("it raised ValueError at test_checks.py:")
    assert SECRET not in found.message


def test_a_function_that_returns_nothing_cannot_decide() -> None:
    found = verdict({"review": ""}, lambda review: None)

    assert found == CellError("fine", "raised", "it returned None, which is neither true nor false")


def test_a_column_that_a_check_does_not_name_is_told() -> None:
    def sneaky(row: dict[str, Any]) -> bool:
        name = "stars"
        return bool(row["review"]) and row[name] > 1

    found = verdict({"review": "a", "stars": 2}, sneaky)

    assert isinstance(found, CellError)
    assert found.message == (
        "it takes 'stars' of the row and does not say so; name it with needs=[...]"
    )
    assert verdict({"review": "a", "stars": 2}, sneaky, needs=["review", "stars"]) is None


def test_a_schema_decides() -> None:
    schema = {"type": "object", "properties": {"stars": {"maximum": 5}}, "required": ["stars"]}
    good, bad = {"stars": 5, "reason": "x"}, {"stars": 9}

    assert verdict({"score": good}, of="score", schema=schema) is None
    assert verdict({"score": good}, of="score", schema=Score) is None
    found = verdict({"score": bad}, of="score", schema=schema)
    assert found == "'score': the answer breaks its schema (stars: breaks the rule 'maximum')"
    assert verdict({"score": bad}, of="score", schema=Score) == (
        "'score': the answer breaks its schema (reason: missing)"
    )
    assert "no JSON" not in str(verdict({"score": SECRET}, of="score", schema=Score))
    assert verdict({"score": "text"}, of="score", schema={"type": "string"}) is None
    assert verdict({"score": None}, of="score", schema={"type": "null"}) is None


TYPES = {"title": TEXT, "stars": INT, "extra": JSON}


def test_sql_sees_the_whole_group() -> None:
    made = check(sql="count(*) OVER (PARTITION BY title) = 1", needs=["title"])
    rows = [{"title": title} for title in ("a", "b", "a", None)]

    assert group_verdicts(made, rows, TYPES) == [
        "the SQL is not true",
        None,
        "the SQL is not true",
        None,
    ]
    assert group_verdicts(made, [], TYPES) == []


def test_sql_may_ask_the_relation_of_rows() -> None:
    made = check(sql="stars >= (SELECT avg(stars) FROM rows)", needs="stars")
    rows = [{"stars": stars} for stars in (1, 5, 3, None)]

    assert [one is None for one in group_verdicts(made, rows, TYPES)] == [False, True, True, False]


def test_sql_that_fails_on_values_is_no_fault_of_the_rows_and_quotes_nothing() -> None:
    made = check(sql="title::INTEGER > 1", needs="title")
    found = group_verdicts(made, [{"title": SECRET}, {"title": "2"}], TYPES)

    assert found == [CellError("fine", "sql", "the SQL failed (ConversionException)")] * 2


def test_sql_reads_no_files(tmp_path: Any) -> None:
    (tmp_path / "secret.csv").write_text("a\n1\n")
    made = check(sql=f"(SELECT count(*) FROM '{tmp_path}/secret.csv') = 1", needs="stars")

    (found,) = group_verdicts(made, [{"stars": 1}], TYPES)
    assert isinstance(found, CellError)
    assert "Permission" in found.message
