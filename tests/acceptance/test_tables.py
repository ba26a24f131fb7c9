# SPDX-License-Identifier: Apache-2.0
"""Is a table generated, extended and changed, and is nothing bought that is there?"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from penstock import Penstock
from penstock.errors import UsageError
from penstock.testing import ProviderRules, SimulatedProvider

PRICES = {"m": {"usd_per_million_tokens": {"input": 1, "output": 2}}}


@pytest.fixture
def provider() -> Iterator[SimulatedProvider]:
    with SimulatedProvider(ProviderRules(latency=0.001)) as serving:
        yield serving


_opened: list[Penstock] = []
_down = threading.Event()


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """The stores that a test opens are closed at its end."""
    yield
    while _opened:
        _opened.pop().close()


class Shop:
    """An app with a table, as a program that is started again has it."""

    def __init__(self, folder: Path, provider: SimulatedProvider, **options: Any) -> None:
        self.app = Penstock("shop", store=f"sqlite:///{folder / 'shop.db'}")
        _opened.append(self.app)
        model = self.app.provider(
            "openai", base_url=f"{provider.url}/v1", paid=True, models=PRICES
        ).model("m", max_tokens=20)
        self.model = model
        self.out = folder / "out"
        self.table = self.app.table("reviews", buffer_size=8, **options)
        self.table.seed("product", source=[{"name": f"coat {n}"} for n in range(5)])
        self.table.sample("stars", choices=[1, 2, 3, 4, 5])
        self.table.llm("review", model=model, prompt="Review {{ product.name }}: {{ stars }}.")

    def generate(self, rows: int | None = None) -> Any:
        return self.table.generate(rows, out=self.out)


def test_a_table_is_made_and_not_made_again(tmp_path: Path, provider: SimulatedProvider) -> None:
    first = Shop(tmp_path, provider).generate(20)
    frame = first.to_polars()
    assert (first.made, first.dropped, first.missing) == (20, [], 0)
    assert frame.columns == ["product", "stars", "review"]
    assert frame["product"].struct.field("name").to_list()[:6] == [
        "coat 0", "coat 1", "coat 2", "coat 3", "coat 4", "coat 0",
    ]  # fmt: skip
    assert first.columns["review"].calls == 20
    assert first.usd == pytest.approx(
        (first.columns["review"].input_tokens + 2 * first.columns["review"].output_tokens) / 1e6
    )
    again = Shop(tmp_path, provider).generate(20)
    assert again.to_polars().equals(frame)
    assert provider.counts.served == 20


def test_without_rows_each_record_is_used_once(tmp_path: Path, provider: SimulatedProvider) -> None:
    assert Shop(tmp_path, provider).generate().made == 5


def test_more_rows_extend_it_and_buy_only_those(
    tmp_path: Path, provider: SimulatedProvider
) -> None:
    first = Shop(tmp_path, provider).generate(20).to_polars()
    longer = Shop(tmp_path, provider).generate(30).to_polars()
    assert longer.head(20).equals(first)
    assert longer.height == provider.counts.served == 30
    assert Shop(tmp_path, provider).generate(10).made == 16  # whole row groups


def test_a_new_column_buys_nothing_of_the_others(
    tmp_path: Path, provider: SimulatedProvider
) -> None:
    first = Shop(tmp_path, provider).generate(20).to_polars()
    shop = Shop(tmp_path, provider)
    shop.table.llm("verdict", model=shop.model, prompt="Rate: {{ review }}")
    wider = shop.generate(20)
    assert wider.to_polars().drop("verdict").equals(first)
    assert provider.counts.served == 40
    assert wider.columns["review"].calls == 20  # what they have cost, then


def test_a_changed_prompt_makes_its_column_and_what_needs_it_anew(
    tmp_path: Path, provider: SimulatedProvider
) -> None:
    def shop(prompt: str) -> Shop:
        made = Shop(tmp_path, provider)
        made.table.llm("verdict", model=made.model, prompt=prompt)
        made.table.expression("shown", "{{ verdict }}!")
        return made

    first = shop("Rate: {{ review }}").generate(20).to_polars()
    second = shop("Judge: {{ review }}").generate(20).to_polars()
    assert provider.counts.served == 60
    assert second["review"].equals(first["review"])
    assert not second["verdict"].equals(first["verdict"])
    assert (second["shown"] == second["verdict"] + "!").all()


def test_a_record_that_has_changed_makes_its_rows_anew(
    tmp_path: Path, provider: SimulatedProvider
) -> None:
    def shop(*names: str) -> Shop:
        made = Shop(tmp_path, provider)
        made.table._columns.pop("product")
        made.table.seed("product", source=[{"name": name} for name in names])
        return made

    shop("coat", "hat", "shoe").generate(3)
    shop("coat", "cap", "shoe").generate(3)
    assert provider.counts.served == 4


def test_an_outage_and_refusals_cost_no_row(tmp_path: Path, provider: SimulatedProvider) -> None:
    provider.change(concurrency=2, failure_rate=0.1, reset_rate=0.05)
    result = Shop(tmp_path, provider).generate(40)
    assert (result.made, result.dropped) == (40, [])


def test_dropped_rows_are_told_with_their_reason_and_values(
    tmp_path: Path, provider: SimulatedProvider
) -> None:
    shop = Shop(tmp_path, provider)
    shop.table.check("few", lambda row: row["stars"] < 3)
    result = shop.generate(20)
    kept = sum(one < 3 for one in result.to_polars()["stars"])
    assert 0 < kept == result.made < 20
    assert result.reasons == {"few: check: it is not true": 20 - kept}
    assert all(one["values"]["stars"] >= 3 for one in result.dropped)


def test_the_rows_can_be_read_in_many_ways(tmp_path: Path, provider: SimulatedProvider) -> None:
    result = Shop(tmp_path, provider).generate(10)
    rows = [*result.rows()]
    assert [row["product"]["name"] for row in rows[:2]] == ["coat 0", "coat 1"]
    assert result.to_arrow().to_pylist() == rows
    assert pl.from_arrow(result.to_arrow()).equals(result.to_polars())
    cells = [cell for cell in result.cells() if cell["column"] == "review"]
    assert len(cells) == 10
    assert all(cell["calls"] == 1 and cell["micros"] > 0 for cell in cells)
    assert json.loads(cells[3]["value"]) == rows[3]["review"]


@pytest.mark.parametrize("rows", [0, -1, 2.5, True, "20"])
def test_what_is_no_count_of_rows_is_refused(
    rows: Any, tmp_path: Path, provider: SimulatedProvider
) -> None:
    with pytest.raises(UsageError, match="rows= is a whole number from 1"):
        Shop(tmp_path, provider).generate(rows)
    assert not (tmp_path / "out").exists()


def test_more_row_groups_than_slots_do_not_wait_for_each_other(
    tmp_path: Path, provider: SimulatedProvider
) -> None:
    shop = Shop(tmp_path, provider, max_row_groups=8)

    made = shop.table.generate(80, out=shop.out, slots=1, thread_slots=1)

    assert made.made == 80


def test_a_preview_is_apart_from_the_table_and_buys_only_what_has_changed(
    tmp_path: Path, provider: SimulatedProvider
) -> None:
    def preview(prompt: str, rows: int = 2) -> Any:
        shop = Shop(tmp_path, provider)
        shop.table.llm("verdict", model=shop.model, prompt=prompt)
        return shop.table.preview(rows, out=shop.out)

    first = preview("Rate: {{ review }}").to_polars()
    second = preview("Judge: {{ review }}").to_polars()
    assert provider.counts.served == 6
    assert second["review"].equals(first["review"])
    assert preview("Judge: {{ review }}", 3).made == 3
    assert provider.counts.served == 8
    assert Shop(tmp_path, provider).table.result(out=tmp_path / "out").made == 0


def test_rows_that_were_dropped_are_made_once_more_with_what_they_have(
    tmp_path: Path, provider: SimulatedProvider
) -> None:
    def shop() -> Shop:
        made = Shop(tmp_path, provider)

        @made.table.column(version=1)
        async def odd(review: str, product: dict[str, str]) -> str:
            if _down.is_set() and product["name"] == "coat 2":
                raise KeyError(review)
            return product["name"]

        return made

    _down.set()  # whoever the function asks is no part of its code
    assert shop().generate(20).made == 16
    _down.clear()
    assert shop().generate(20).made == 16
    kept = shop()
    again = kept.table.generate(20, out=kept.out, retry_dropped=True)
    assert (again.made, again.dropped) == (20, [])
    assert provider.counts.served == 20


@pytest.mark.parametrize(
    ("options", "table_options"),
    [({"on_fail": "stop"}, {}), ({}, {"early_stop_window": 4})],
    ids=["stop", "early stop"],
)
def test_what_ends_a_run_is_not_tried_again(
    tmp_path: Path, options: dict[str, Any], table_options: dict[str, Any]
) -> None:
    app = Penstock("stopped", store=f"sqlite:///{tmp_path / 'stopped.db'}")
    _opened.append(app)
    table = app.table("stopped", buffer_size=4, **table_options)
    table.seed("n", source=list(range(4)))
    calls = []

    @table.column(attempts=1, **options)
    async def broken(n: int) -> int:
        calls.append(n)
        raise KeyError(n)

    result = table.generate(4, out=tmp_path / "out")

    assert result.made == 0
    assert len(calls) == len(set(calls))


def test_a_column_that_calls_nobody_has_cost_no_tokens(
    tmp_path: Path, provider: SimulatedProvider
) -> None:
    shop = Shop(tmp_path, provider)

    @shop.table.column()
    async def length(review: str) -> int:
        return len(review)

    cost = shop.generate(5).columns["length"]
    assert (cost.cells, cost.input_tokens, cost.output_tokens, cost.micros) == (5, 0, 0, 0)


def test_after_an_early_stop_the_same_program_may_go_on(tmp_path: Path) -> None:
    app = Penstock("again", store=f"sqlite:///{tmp_path / 'again.db'}")
    _opened.append(app)
    table = app.table("again", buffer_size=4, max_row_groups=1, early_stop_window=4)
    table.seed("n", source=list(range(40)))
    calls: list[int] = []

    @table.column()
    async def made(n: int) -> int:
        calls.append(n)
        if len(calls) <= 8:
            raise KeyError(n)
        return n

    stopped = table.generate(40, out=tmp_path / "out")
    assert stopped.report is not None
    assert len(stopped.report.failed) == 10
    assert (stopped.made, len(calls)) == (0, 4)
    calls += [0] * 8
    assert table.generate(40, out=tmp_path / "out").made == 40


def test_what_looks_at_a_whole_group_is_made_anew_with_rows_that_were_dropped(
    tmp_path: Path, provider: SimulatedProvider
) -> None:
    def generate(*, retry_dropped: bool = False) -> Any:
        shop = Shop(tmp_path, provider)

        @shop.table.column()
        async def odd(product: dict[str, str]) -> str:
            if _down.is_set() and product["name"] == "coat 2":
                raise KeyError
            return product["name"]

        @shop.table.column(batch=True)
        def rows_beside(odd: list[str]) -> list[int]:
            return [len(odd)] * len(odd)

        return shop.table.generate(5, out=shop.out, retry_dropped=retry_dropped)

    _down.set()
    assert generate().to_polars()["rows_beside"].to_list() == [4] * 4
    _down.clear()
    assert generate(retry_dropped=True).to_polars()["rows_beside"].to_list() == [5] * 5
    assert provider.counts.served == 5
