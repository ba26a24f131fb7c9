# SPDX-License-Identifier: Apache-2.0
"""The one schema of all parts: types of every kind of column, known before a row is made."""

from __future__ import annotations

from datetime import date
from enum import Enum
from pathlib import Path
from typing import Any, Literal, TypedDict

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import BaseModel

from penstock import Penstock
from penstock.definitions.column import SeedColumn
from penstock.definitions.table import Table
from penstock.errors import UsageError
from penstock.tables.part_schema import PartSchema
from penstock.tables.seeds import SeedReader


class Tone(Enum):
    DRY = "dry"


class Inner(BaseModel):
    tags: list[str]
    tone: Tone


class Score(BaseModel):
    stars: int
    weight: float | None = None
    inner: Inner
    either: int | str
    open: dict[str, int]


class Pair(TypedDict):
    a: int
    b: str | None


@pytest.fixture
def app() -> Penstock:
    return Penstock("typed")


@pytest.fixture
def table(app: Penstock) -> Table:
    return app.table("t")


def schema_of(table: Table) -> PartSchema:
    table.validate()
    seeds = [one for one in table.columns.values() if isinstance(one, SeedColumn)]
    return PartSchema(table, {one.name: SeedReader(one, 0) for one in seeds})


def types_of(table: Table) -> dict[str, str]:
    return {field.name: str(field.type) for field in schema_of(table).arrow}


def test_every_kind_of_column_has_a_type(app: Penstock, table: Table) -> None:
    model = app.provider("openai").model("gpt-5")
    table.seed("product", source=[{"name": "a", "price": 1, "tags": []}, {"price": 1.5}])
    table.seed("mixed", source=[1, "a"])
    table.sample("stars", choices=[1, 2, None])
    table.sample("part", choices=[1, 2.5])
    table.sample("maybe", choices=[True], when="{{ stars }}")
    table.sample("day", dates=("2024-01-01", "2024-01-02"))
    table.sample("at", dates=("2024-01-01T00:00:00Z", "2024-01-02T00:00:00Z"))
    table.sample("id", ids="{hex}")
    table.sample("kind", choices={1: ["a"]}, by="stars")
    table.expression("title", "{{ stars }}")
    table.expression("double", "{{ stars * 2 }}", type=int)
    table.llm("review", model=model, prompt="{{ title }}")
    table.llm("score", model=model, prompt="{{ review }}", schema=Score)
    table.llm("free", model=model, prompt="x", schema={"type": "object"})
    table.judge("quality", model=model, of="review", rubric={"true to it": "1 to 5"})
    table.check("long", lambda review: len(review) > 4)

    @table.column()
    def embedding(review: str) -> list[float]:
        return [1.0]

    @table.column(batch=True)
    def pairs(review: list[str]) -> list[Pair]:
        return [{"a": 1, "b": None} for _ in review]

    @table.column()
    def literal(review: str) -> Literal["a", "b"] | None:
        return "a"

    assert types_of(table) == {
        "product": "struct<name: string, price: double, tags: list<item: string>>",
        "mixed": "string",
        "stars": "int64",
        "part": "double",
        "maybe": "bool",
        "day": "date32[day]",
        "at": "timestamp[us, tz=UTC]",
        "id": "string",
        "kind": "string",
        "title": "string",
        "double": "int64",
        "review": "string",
        "score": "struct<stars: int64, weight: double, inner: struct<tags: list<item: string>, "
        "tone: string>, either: string, open: string>",
        "free": "string",
        "quality": "struct<true to it: struct<score: int64, reason: string>>",
        "long": "bool",
        "embedding": "list<item: double>",
        "pairs": "struct<a: int64, b: string>",
        "literal": "string",
    }


def test_parts_of_different_rows_have_one_schema_and_give_their_values_back(
    app: Penstock, table: Table, tmp_path: Path
) -> None:
    table.seed("product", source=[{"name": "a"}])
    table.llm("score", model=app.provider("o").model("m"), prompt="x", schema=Score)
    table.sample("hidden", choices=[1], keep=False)
    table.expression("n", "{{ hidden }}", type=float)
    made = schema_of(table)
    score = {
        "stars": 1,
        "weight": 2,
        "inner": {"tags": [], "tone": "dry"},
        "either": "x",
        "open": {"a": 1},
    }
    parts = [
        made.table([{"product": {"name": "a"}, "score": score, "hidden": 1, "n": 1}]),
        made.table([{"product": {"name": None}, "score": None, "n": None}]),
        made.table([]),
    ]

    for part in parts:
        assert part.schema == made.arrow
        pq.write_table(part, tmp_path / "part.parquet")
        assert pq.read_table(tmp_path / "part.parquet").schema == made.arrow
    row = parts[0].to_pylist()[0]
    assert row["score"] == {**score, "either": '"x"', "open": '{"a":1}'}
    assert row["n"] == 1.0
    assert made.rows(parts[0]) == [{"product": {"name": "a"}, "score": score, "n": 1.0}]
    assert pa.concat_tables(parts).num_rows == 2


def test_what_has_several_types_is_json_text_and_comes_back(table: Table) -> None:
    table.seed("mixed", source=[1, {"a": date(2024, 1, 1)}])
    made = schema_of(table)
    part = made.table([{"mixed": {"a": date(2024, 1, 1)}}, {"mixed": 1}])

    assert part.to_pylist() == [{"mixed": '{"a":"2024-01-01"}'}, {"mixed": "1"}]
    assert made.rows(part) == [{"mixed": {"a": "2024-01-01"}}, {"mixed": 1}]


def test_types_of_files_are_kept(table: Table, tmp_path: Path) -> None:
    source = pa.table(
        {"n": pa.array([1, None], pa.int8()), "d": pa.array(["x", "y"]).dictionary_encode()}
    )
    pq.write_table(source, tmp_path / "p.parquet")
    table.seed("p", source=tmp_path / "p.parquet")
    made = schema_of(table)

    assert types_of(table)["p"].startswith("struct<n: int8, d: ")
    assert made.table([{"p": {"n": 1, "d": "x"}}]).to_pylist() == [{"p": {"n": 1, "d": "x"}}]


def declare_numpy(table: Table, app: Penstock) -> None:
    @table.column()
    def odd(x: int) -> Path:
        return Path()


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (
            lambda t, a: t.expression("y", "{{ p.nmae }}"),
            "Column 'y' of table 't' reads p.nmae, and 'p' has the fields 'name'; closest: 'name'.",
        ),
        (
            lambda t, a: t.check("y", sql="nosuch(x) = 1", needs="x"),
            "Check 'y' of table 't': its SQL cannot be run: .*nosuch",
        ),
        (
            lambda t, a: t.check("y", sql="p.name > ", needs=["p"]),
            "Check 'y' of table 't': its SQL cannot be run: .*syntax error",
        ),
        (
            lambda t, a: t.expression("y", "1", type=int, skip_when="x", skip_value="none"),
            "Column 'y' of table 't': skip_value= is a str, not a whole number",
        ),
        (
            lambda t, a: t.llm(
                "y", model=a.provider("o").model("m"), prompt="", schema={"type": 3}
            ),
            "Column 'y' of table 't': The JSON schema is wrong",
        ),
        (
            lambda t, a: t.check("y", of="x", schema={"type": 3}),
            "Check 'y' of table 't': The JSON schema is wrong",
        ),
        (declare_numpy, "Column 'odd' of table 't' returns Path, which no column can hold"),
    ],
)
def test_what_does_not_fit_the_types_is_refused(
    app: Penstock, table: Table, declare: Any, message: str
) -> None:
    table.seed("p", source=[{"name": "a"}])
    table.sample("x", choices=[1])
    declare(table, app)

    with pytest.raises(UsageError, match=message):
        schema_of(table)
