# SPDX-License-Identifier: Apache-2.0
"""Values of every type go into a table and come back as they were, made, kept or read."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, TypedDict

from penstock import Penstock
from tests.scripted_server import Call, scripted


class Stamp(TypedDict):
    day: date
    at: datetime | None
    raw: bytes
    part: float
    tags: list[str]
    free: dict[str, Any]


def stamp(n: int) -> Stamp:
    return {
        "day": date(2024, 1, 1) + timedelta(days=n),
        "at": None if n == 1 else datetime(2024, 1, 1, 8, n, tzinfo=UTC),
        "raw": bytes([0, 255, n]),
        "part": n / 2,
        "tags": ["a"] * n,
        "free": {"n": [n, None]},
    }


class Stamps:
    """An app with a function of every type, as a program that is started again has it."""

    def __init__(self, folder: Path, calls: Counter[int]) -> None:
        self.app = Penstock("stamps", store=f"sqlite:///{folder / 'stamps.db'}")
        self.out = folder / "out"
        self.table = self.app.table("stamps", buffer_size=4)
        self.table.seed("n", source=list(range(6)))

        @self.table.column()
        def stamped(n: int) -> Stamp:
            calls[n] += 1
            return stamp(n)

    def rows(self, count: int) -> list[dict[str, Any]]:
        try:
            return list(self.table.generate(count, out=self.out).rows())
        finally:
            self.app.close()


def test_what_is_kept_of_a_part_has_its_types_again(tmp_path: Path) -> None:
    calls: Counter[int] = Counter()
    first = Stamps(tmp_path, calls).rows(3)
    longer = Stamps(tmp_path, calls).rows(6)

    assert first == [{"n": n, "stamped": stamp(n)} for n in range(3)]
    assert longer == [{"n": n, "stamped": stamp(n)} for n in range(6)]
    assert calls == dict.fromkeys(range(6), 1)


def test_another_type_of_the_same_values_makes_the_parts_anew_and_no_value(tmp_path: Path) -> None:
    calls: Counter[int] = Counter()

    def rows(kind: type) -> list[dict[str, Any]]:
        app = Penstock("typed", store=f"sqlite:///{tmp_path / 'typed.db'}")
        table = app.table("typed", buffer_size=2)
        table.seed("n", source=[1, 2, 3])

        def twice(n: int) -> int:
            calls[n] += 1
            return n * 2

        twice.__annotations__["return"] = kind
        table.column()(twice)
        try:
            result = table.generate(3, out=tmp_path / "out")
            assert result.to_arrow().schema == result.schema
            return list(result.rows())
        finally:
            app.close()

    assert [repr(row["twice"]) for row in rows(int)] == ["2", "4", "6"]
    assert [repr(row["twice"]) for row in rows(float)] == ["2.0", "4.0", "6.0"]
    assert calls == {1: 1, 2: 1, 3: 1}


def test_a_hidden_value_that_is_no_plain_data_is_made_anew(tmp_path: Path) -> None:
    calls: Counter[str] = Counter()

    def rows(count: int) -> list[int]:
        app = Penstock("hidden", store=f"sqlite:///{tmp_path / 'hidden.db'}")
        table = app.table("hidden", buffer_size=4)
        table.seed("n", source=list(range(9)))

        @table.column(keep=False)
        def pair(n):  # type: ignore[no-untyped-def]
            calls["pair"] += 1
            return (n, {n})

        @table.column(keep=False)
        def listed(n):  # type: ignore[no-untyped-def]
            calls["listed"] += 1
            return [n]

        @table.column(version=count)
        def second(pair: tuple[int, set[int]], listed: list[int]) -> int:
            return pair[0] + max(pair[1]) + listed[0]

        try:
            return [row["second"] for row in table.generate(count, out=tmp_path / "out").rows()]
        finally:
            app.close()

    assert rows(2) == [0, 3]
    assert rows(3) == [0, 3, 6]
    assert calls == {"pair": 5, "listed": 3}


def test_what_depends_on_a_whole_group_is_made_anew_when_the_group_grows(tmp_path: Path) -> None:
    calls: Counter[str] = Counter()

    def rows(count: int, folder: Path) -> list[dict[str, Any]]:
        app = Penstock("ranked", store=f"sqlite:///{folder / 'ranked.db'}")
        table = app.table("ranked", buffer_size=4)
        table.seed("n", source=[3, 5, 1, 4, 9, 7, 8, 6])

        @table.column()
        def own(n: int) -> int:
            calls["own"] += 1
            return n

        @table.column(batch=True)
        def rank(own: list[int]) -> list[int]:
            calls["rank"] += 1
            return [sorted(own).index(one) for one in own]

        @table.column()
        def told(rank: int) -> str:
            return f"place {rank + 1}"

        try:
            return list(table.generate(count, out=folder / "out").rows())
        finally:
            app.close()

    (tmp_path / "undisturbed").mkdir()
    whole = rows(8, tmp_path / "undisturbed")
    calls.clear()

    assert [row["rank"] for row in rows(6, tmp_path)] == [1, 3, 0, 2, 1, 0]
    assert rows(8, tmp_path) == whole
    assert [row["told"] for row in whole[4:]] == ["place 4", "place 2", "place 3", "place 1"]
    assert calls == {"own": 8, "rank": 3}  # the first group is left as it is


ANSWERS: list[dict[str, Any]] = [
    {"n": 1, "text": "fine"},
    {"n": 2**70, "text": "large"},
    {"n": 3, "text": "\ud800"},
    {"n": 4},
]
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "text": {"type": "string"}},
    "required": ["n"],
}


def test_an_answer_that_no_column_holds_fails_its_cell_and_not_its_part(tmp_path: Path) -> None:
    async def answer(call: Call) -> None:
        prompt = json.loads(call.body)["messages"][0]["content"]
        reply = {"content": json.dumps(ANSWERS[int(prompt[0])])}
        body = {"choices": [{"message": reply, "finish_reason": "stop"}], "model": "m"}
        await call.answer(body=json.dumps(body).encode())

    async def main() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        async with scripted(answer) as server:
            app = Penstock("answers", store=f"sqlite:///{tmp_path / 'answers.db'}")
            model = app.provider("openai", base_url=f"{server.url}/v1", api="openai").model("m")
            table = app.table("answers", early_stop=None)
            table.seed("n", source=list(range(4)))
            table.llm("said", model=model, prompt="{{ n }}", schema=SCHEMA, attempts=1)
            try:
                result = await table.generate_async(4, out=tmp_path / "out")
                return list(result.rows()), list(result.dropped)
            finally:
                app.close()

    rows, dropped = asyncio.run(main())

    assert rows == [
        {"n": 0, "said": {"n": 1, "text": "fine"}},
        {"n": 3, "said": {"n": 4, "text": None}},
    ]
    assert [(one["row"], one["reason"]) for one in dropped] == [
        (1, "type: the value has a field 'n' that is a whole number outside 64 bits"),
        (2, "type: the value has a field 'text' that is a text with a lone surrogate"),
    ]
