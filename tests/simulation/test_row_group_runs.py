# SPDX-License-Identifier: Apache-2.0
"""Are the rows of a group made as its columns say, whatever fails, in virtual time?"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.admission.tasks.controller import TaskAdmissionConfig, TaskAdmissionController
from penstock.definitions.column import SeedColumn
from penstock.definitions.table import Table, TableOptions
from penstock.errors import ProviderThrottled, TableStopped, TooManyFailures
from penstock.events.kinds import Correlation
from penstock.events.sink import SchedulerEvents
from penstock.retry.policy import RetryPolicy
from penstock.tables.part_schema import PartSchema
from penstock.tables.row_group_run import (
    Peers,
    RowGroupResult,
    RowGroupRun,
    RowGroupSite,
    TableDefinition,
)
from penstock.tables.seeds import SeedReader
from penstock.testing import RecordingSink, VirtualClock, run_virtual
from penstock.worker.graph_run import EarlyStop
from penstock.worker.scheduler import AsyncTaskScheduler
from penstock.worker.thread_executor import InlineRunner


def made(
    table: Table,
    count: int = 4,
    *,
    first_row: int = 0,
    slots: int = 4,
    kept: dict[str, dict[int, Any]] | None = None,
    early_stop: EarlyStop | None = None,
) -> RowGroupResult:
    """One row group of a table, made alone."""

    async def main() -> RowGroupResult:
        clock = VirtualClock()
        loop = asyncio.get_running_loop()
        turns: list[asyncio.Handle] = []
        controller = TaskAdmissionController(
            TaskAdmissionConfig(1_000, {"async": slots, "thread": slots}), monotonic=clock.monotonic
        )
        scheduler = AsyncTaskScheduler(
            controller,
            SchedulerEvents(clock, [RecordingSink()]),
            Correlation("run-1"),
            clock.monotonic,
            lambda: turns.append(loop.call_soon(lambda: scheduler.turn())),
        )
        readers = {
            name: SeedReader(column, table.options.seed)
            for name, column in table.columns.items()
            if isinstance(column, SeedColumn)
        }
        table.validate()
        definition = TableDefinition(table, PartSchema(table, readers).types, readers)
        site = RowGroupSite(
            scheduler, "run-1", clock, InlineRunner(loop), RetryPolicy(), lambda: 0.5
        )
        run = RowGroupRun(
            definition, site, "g", first_row, count, kept=kept, peers=Peers(early_stop)
        )
        try:
            return await run.run()
        finally:
            assert controller.leases == 0
            assert not len(scheduler.queue)

    return run_virtual(main())


def column(result: RowGroupResult, name: str) -> list[Any]:
    return [row[name] for row in result.values]


class Numbered:
    """A function column that counts its calls by row, and does what a test says for one."""

    def __init__(self, table: Table, say: Callable[[int, int], Any], **options: Any) -> None:
        self.calls: Counter[int] = Counter()

        @table.column(name="made", **options)
        async def make(n: int) -> int:
            self.calls[n] += 1
            await asyncio.sleep(1)
            found = say(n, self.calls[n])
            if isinstance(found, Exception):
                raise found
            return int(found)


def numbered(**options: Any) -> Table:
    table = Table("numbers", TableOptions(**options))
    table.seed("n", source=list(range(1_000)))
    return table


def test_local_columns_need_no_task() -> None:
    table = numbered()
    table.expression("twice", "{{ n * 2 }}", type=int)
    table.check("small", lambda row: row["twice"] < 10)
    result = made(table, 8)
    assert column(result, "twice") == [0, 2, 4, 6, 8]
    assert column(result, "small") == [True] * 5
    assert [(one.row, one.column, one.reason) for one in result.dropped] == [
        (row, "small", "check: it is not true") for row in (5, 6, 7)
    ]
    assert result.dropped[0].values == {"n": 5, "twice": 10}


def test_cells_and_what_follows_from_them_are_made_in_any_row_group() -> None:
    table = numbered()
    cells = Numbered(table, lambda n, _: n * n)
    table.expression("told", "{{ n }} squared is {{ made }}")

    @table.column()
    def length(told: str) -> int:
        return len(told)

    result = made(table, 3, first_row=20)
    assert result.rows == [20, 21, 22]
    assert column(result, "told") == ["20 squared is 400", "21 squared is 441", "22 squared is 484"]
    assert column(result, "length") == [17, 17, 17]
    assert set(cells.calls.values()) == {1}


def test_one_failed_cell_drops_its_row_and_no_other() -> None:
    table = numbered()
    Numbered(table, lambda n, _: KeyError("title") if n == 1 else n)

    @table.column(batch=True)
    def share(made: list[int]) -> list[float]:
        return [one / sum(made) for one in made]

    table.expression("percent", "{{ share * 100 }}", type=float)
    result = made(table)
    assert result.rows == [0, 2, 3]
    assert column(result, "percent") == [0.0, 40.0, 60.0]
    (dropped,) = result.dropped
    assert (dropped.row, dropped.column) == (1, "made")
    assert "KeyError" in dropped.reason


def test_an_error_that_may_pass_is_tried_again_and_a_refusal_costs_nothing() -> None:
    table = numbered()
    errors: dict[int, Exception] = {
        0: ProviderThrottled("slow down", status_code=429, retry_after=30.0),
        1: ValueError("odd"),
        2: KeyError("mistake"),
    }
    cells = Numbered(table, lambda n, call: errors[n] if n in errors and call < 3 else n)
    result = made(table)
    assert result.rows == [0, 1, 3]
    assert cells.calls == {0: 3, 1: 3, 2: 1, 3: 1}


def test_a_cell_that_fails_for_good_may_be_empty_or_end_the_run() -> None:
    def failing(on_fail: str) -> Table:
        table = numbered()
        Numbered(table, lambda n, _: KeyError() if n == 1 else n, on_fail=on_fail)
        table.expression("told", "made {{ made }}")
        return table

    result = made(failing("null"))
    assert column(result, "made") == [0, None, 2, 3]
    assert column(result, "told") == ["made 0", "made ", "made 2", "made 3"]
    assert result.errors[1, "made"].kind == "KeyError"
    with pytest.raises(TableStopped, match=r"column 'made' of table 'numbers' has failed in row 1"):
        made(failing("stop"))


def test_a_check_lets_what_it_read_be_made_anew_until_it_is_passed() -> None:
    table = numbered()
    cells = Numbered(table, lambda n, call: n if n < 2 else call)
    table.expression("shown", "{{ made }}", type=int)
    table.check("large", lambda row: row["shown"] >= 2 or row["n"] < 2, on_fail="again", attempts=3)
    result = made(table)
    assert column(result, "shown") == [0, 1, 2, 2]
    assert cells.calls == {0: 1, 1: 1, 2: 2, 3: 2}
    assert column(result, "large") == [True] * 4


def test_a_check_that_is_never_passed_drops_the_row_after_its_attempts() -> None:
    table = numbered()
    cells = Numbered(table, lambda n, _: n)
    table.check("never", lambda row: row["made"] != 1, on_fail="again", attempts=3)
    result = made(table)
    assert result.rows == [0, 2, 3]
    assert cells.calls[1] == 3
    assert [one.column for one in result.dropped] == ["never"]


@pytest.mark.parametrize(
    ("on_fail", "values", "verdicts"),
    [("keep", [0, 1, 2, 3], [True, False, True, True]),
     ("null", [0, None, 2, 3], [True, False, True, True])],
)  # fmt: skip
def test_a_check_may_mark_a_row_or_empty_what_it_read(
    on_fail: str, values: list[int | None], verdicts: list[bool]
) -> None:
    table = numbered()
    Numbered(table, lambda n, _: n)
    table.check("fine", lambda row: row["made"] != 1, on_fail=on_fail)
    result = made(table)
    assert column(result, "made") == values
    assert column(result, "fine") == verdicts
    assert result.errors[1, "fine"].message == "it is not true"


def test_a_check_that_raises_drops_the_row_without_another_try() -> None:
    table = numbered()
    cells = Numbered(table, lambda n, _: n)

    def odd(made: int) -> bool:
        raise RuntimeError(f"SECRET {made}")

    table.check("odd", odd, on_fail="again", attempts=3)
    result = made(table, 2)
    assert result.rows == []
    assert set(cells.calls.values()) == {1}
    assert all(
        "RuntimeError" in one.reason and "SECRET" not in one.reason for one in result.dropped
    )


def test_what_two_columns_made_is_made_anew_together_and_what_read_it_too() -> None:
    table = numbered()
    calls: Counter[str] = Counter()

    @table.column()
    async def first(n: int) -> int:
        calls["first"] += 1
        await asyncio.sleep(1)
        return calls["first"]

    @table.column()
    async def second(n: int) -> int:
        calls["second"] += 1
        await asyncio.sleep(3)
        return calls["second"]

    @table.column()
    async def reads(first: int) -> int:
        calls["reads"] += 1
        await asyncio.sleep(1)
        return first

    table.check("later", lambda row: row["first"] + row["second"] >= 4, on_fail="again", attempts=5)
    result = made(table, 1)
    (row,) = result.values
    assert (row["first"], row["second"], row["reads"], row["later"]) == (2, 2, 2, True)
    assert calls == {"first": 2, "second": 2, "reads": 2}


def test_sql_looks_at_the_whole_group_and_lets_rows_be_made_anew() -> None:
    table = numbered()
    cells = Numbered(table, lambda n, call: call if n < 2 else n * 10 + call)
    table.check(
        "unique",
        sql="count(*) OVER (PARTITION BY made) = 1 OR n = 0",
        needs=["made", "n"],
        on_fail="again",
        attempts=3,
    )
    result = made(table, 3)
    assert column(result, "made") == [1, 2, 21]
    assert cells.calls == {0: 1, 1: 2, 2: 1}


def test_a_refusal_while_a_group_is_made_anew_costs_no_row() -> None:
    table = numbered()

    def say(n: int, call: int) -> int | Exception:
        if n == 1 and call in (2, 3, 4, 5):
            return ProviderThrottled("slow down", status_code=429, retry_after=30.0)
        return call if n < 2 else n * 10 + call

    cells = Numbered(table, say)
    table.check(
        "unique",
        sql="count(*) OVER (PARTITION BY made) = 1 OR n = 0",
        needs=["made", "n"],
        on_fail="again",
        attempts=3,
    )
    result = made(table, 3)
    assert result.dropped == []
    assert column(result, "made") == [1, 6, 21]
    assert cells.calls == {0: 1, 1: 6, 2: 1}


def test_a_cell_that_is_skipped_has_the_value_instead_and_so_may_what_needs_it() -> None:
    table = numbered()
    cells = Numbered(
        table, lambda n, _: n, skip_when="{{ n < 2 }}", skip_value=-1, skip_dependants=True
    )

    @table.column()
    async def after(made: int) -> int:
        return made + 1

    result = made(table)
    assert column(result, "made") == [-1, -1, 2, 3]
    assert column(result, "after") == [None, None, 3, 4]
    assert set(cells.calls) == {2, 3}


def test_kept_values_are_not_made_again() -> None:
    table = numbered()
    cells = Numbered(table, lambda n, _: n)
    table.expression("told", "made {{ made }}")

    @table.column()
    async def after(told: str) -> str:
        return told.upper()

    result = made(table, kept={"made": {0: 70, 2: 72}})
    assert column(result, "after") == ["MADE 70", "MADE 1", "MADE 72", "MADE 3"]
    assert set(cells.calls) == {1, 3}


def test_too_many_failures_end_the_run_and_say_the_arithmetic() -> None:
    table = numbered()
    Numbered(table, lambda n, _: KeyError("title"))
    with pytest.raises(TooManyFailures, match=r"of the last 10 cells of column 'made' failed"):
        made(table, 40, early_stop=EarlyStop(10, 0.5))


def test_columns_on_one_slot_are_fair_to_each_other() -> None:
    table = numbered()
    ends: list[str] = []

    def note(n: int, _: int) -> int:
        ends.append("made")
        return n

    Numbered(table, note)

    @table.column()
    async def judge(made: int) -> int:
        await asyncio.sleep(1)
        ends.append("judge")
        return made

    made(table, 40, slots=4)
    assert ends.index("judge") <= 8


@given(
    failing=st.sets(st.integers(0, 11)),
    unmade=st.sets(st.integers(0, 11)),
    skipping=st.sets(st.integers(0, 11)),
    slots=st.integers(1, 5),
    size=st.integers(1, 12),
)
def test_any_row_group_size_makes_the_rows_of_a_sequential_oracle(
    failing: set[int], unmade: set[int], skipping: set[int], slots: int, size: int
) -> None:
    def build() -> Table:
        table = numbered()
        table.sample("drawn", uniform=(0, 1))
        table.expression("skips", "{{ n in " + str(sorted(skipping) or [-1]) + " }}", type=bool)

        @table.column(skip_when="{{ skips }}", skip_value=0)
        async def first(n: int) -> int:
            await asyncio.sleep(n % 3)
            if n in failing:
                raise KeyError(n)
            return n + 1

        table.check("fine", lambda row: row["first"] - 1 not in unmade)

        @table.column()
        def second(first: int, drawn: float) -> float:
            return first + drawn

        return table

    rows: list[dict[str, Any]] = []
    for start in range(0, 12, size):
        part = made(build(), min(size, 12 - start), first_row=start, slots=slots)
        rows += part.values
        assert sorted([*part.rows, *(one.row for one in part.dropped)]) == list(
            range(start, min(start + size, 12))
        )
    wanted = []
    for n in range(12):
        if n in skipping:
            first = 0
        elif n in failing:
            continue
        else:
            first = n + 1
        if first - 1 not in unmade:
            wanted.append((n, first))
    assert [(row["n"], row["first"]) for row in rows] == wanted
    assert all(row["second"] == row["first"] + row["drawn"] for row in rows)
