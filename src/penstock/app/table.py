# SPDX-License-Identifier: Apache-2.0
"""A table as its author holds it: columns are declared on it, rows are generated and read."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from penstock.definitions.table import Table, TableOptions
from penstock.errors import UsageError
from penstock.model.plan import BuildReport
from penstock.model.run import OnProgress
from penstock.outputs.paths import slice_names

if TYPE_CHECKING:
    import polars
    import pyarrow

    from penstock.app.app import Penstock
    from penstock.model.table import ColumnFigures
    from penstock.tables.row_group import TableDataset
    from penstock.tables.table_rows import TableFigures, TableRows

PREVIEW = ".preview"  # after the name of a table: its preview
ROWS_MAX = 1_000_000_000


class AppTable(Table):
    """A table of an app: its columns are declared here, and its rows generated."""

    def __init__(self, name: str, options: TableOptions, app: Penstock) -> None:
        super().__init__(name, options)
        self._app = app
        self._made: tuple[str, TableDataset] | None = None  # and the version that it is of

    @property
    def dataset(self) -> TableDataset:
        """The dataset whose slices are its row groups; made anew when a column was added.

        Raises:
            UsageError: the table has a mistake, or a seed cannot be read.
        """
        from penstock.tables.row_group import TableDataset  # not there unless there is a table

        version = self.version
        if self._made is None or self._made[0] != version:
            self._made = version, TableDataset(self, self._app)
        return self._made[1]

    def generate(
        self,
        rows: int | None = None,
        *,
        out: str | os.PathLike[str] | None = None,
        slots: int | None = None,
        thread_slots: int | None = None,
        on_progress: OnProgress | None = None,
        retry_dropped: bool = False,
    ) -> TableResult:
        """Make the rows that are not there yet, inside this program.

        Rows that are there and whose columns have not changed are left as they are; of others what
        has not changed is kept. The same call goes on where a killed one was.

        Args:
            rows: how many; None: one for each record of the longest seed.
            out: the folder of the parts; else that of the settings (`datasets.root`).
            slots: how many tasks may run at once, of all kinds together.
            thread_slots: how many of them in threads.
            on_progress: see `app.build`.
            retry_dropped: rows that were dropped are made once more; what they have is kept.
        """
        return self._generate(
            self.dataset,
            self.row_count(rows),
            out,
            table_flags(out, slots, thread_slots),
            on_progress,
            retry_dropped=retry_dropped,
        )

    def preview(self, rows: int = 5, *, out: str | os.PathLike[str] | None = None) -> TableResult:
        """Make a few rows apart from the table, to look at: the first ones, as they will be made.

        They are kept as a small table of their own (`NAME.preview`), so that a second preview buys
        only what has changed. Budgets count what it costs.

        Args:
            rows: how many.
            out: as for `generate`.
        """
        dataset, count = self._preview_dataset(), self.row_count(rows)
        return self._generate(dataset, count, out, table_flags(out, None, None), None)

    def _preview_dataset(self) -> TableDataset:
        from penstock.tables.row_group import TableDataset

        return TableDataset(self, self._app, f"{self.name}{PREVIEW}")

    def _generate(
        self,
        dataset: TableDataset,
        count: int,
        out: str | os.PathLike[str] | None,
        flags: dict[str, object],
        on_progress: OnProgress | None,
        *,
        retry_dropped: bool = False,
    ) -> TableResult:
        runner = self._app.runner
        report = runner.wait(
            lambda: runner.generate(
                dataset,
                count,
                flags,
                signals=True,
                on_progress=on_progress,
                retry_dropped=retry_dropped,
            )
        )
        return self._result(dataset, count, out, report)

    async def generate_async(
        self,
        rows: int | None = None,
        *,
        out: str | os.PathLike[str] | None = None,
        slots: int | None = None,
        thread_slots: int | None = None,
        on_progress: OnProgress | None = None,
        retry_dropped: bool = False,
    ) -> TableResult:
        """The same on an event loop, whose host keeps its signals; cancelling stops gracefully."""
        count = await asyncio.to_thread(self.row_count, rows)  # seeds are read
        runner = await self._app.runner_async()
        report = await runner.generate(
            self.dataset,
            count,
            table_flags(out, slots, thread_slots),
            signals=False,
            on_progress=on_progress,
            retry_dropped=retry_dropped,
        )
        return self._result(self.dataset, count, out, report)

    def row_count(self, rows: int | None) -> int:
        """How many rows are wanted; UsageError if that is no count."""
        given: object = rows
        if given is None:
            counts = [reader.count for reader in self.dataset.readers.values()]
            if not counts:
                raise UsageError(
                    f"Table {self.name!r} has no seed that says how many rows it has; give rows=."
                )
            return max(counts)
        if type(given) is not int or not 1 <= given <= ROWS_MAX:
            raise UsageError(f"rows= is a whole number from 1 to {ROWS_MAX:,}, got {given!r:.100}.")
        return given

    def result(
        self,
        rows: int | None = None,
        out: str | os.PathLike[str] | None = None,
        report: BuildReport | None = None,
    ) -> TableResult:
        """What is there of the first so many rows; None: of all."""
        return self._result(self.dataset, rows, out, report)

    def _result(
        self,
        dataset: TableDataset,
        rows: int | None,
        out: str | os.PathLike[str] | None,
        report: BuildReport | None,
    ) -> TableResult:
        from penstock.tables.table_rows import TableRows

        app = self._app
        loaded = app.load(table_flags(out, None, None))
        found = TableRows(
            slice_names(dataset.spec),
            dataset.schema,
            app.store,
            app.found_root(loaded),
            ROWS_MAX if rows is None else rows,
        )
        return TableResult(self, rows, found, report)


class TableResult:
    """The rows of a table that are there, and what they have cost."""

    def __init__(
        self, table: AppTable, asked: int | None, found: TableRows, report: BuildReport | None
    ) -> None:
        self.table = table
        self.asked = asked  # None: whatever is there
        self.report = report  # of the run that made rows; None: none did
        self._found = found
        self._figures: TableFigures | None = None

    def __repr__(self) -> str:
        return f"<TableResult of {self.table.name!r}: {self.made:,} rows>"

    @property
    def made(self) -> int:
        """How many rows were made."""
        return self._summed.made

    @property
    def dropped(self) -> list[dict[str, Any]]:
        """The rows that were not made, each with `row`, `column`, `reason` and `values`."""
        return [*self._found.dropped()]

    def each_dropped(self) -> Iterator[dict[str, Any]]:
        """The same one by one."""
        return self._found.dropped()

    @property
    def dropped_count(self) -> int:
        """How many rows were not made, for good."""
        return self._summed.dropped

    @property
    def missing(self) -> int:
        """How many rows were asked for, and neither made nor dropped yet."""
        return 0 if self.asked is None else max(0, self.asked - self._summed.asked)

    @property
    def is_whole(self) -> bool:
        """Whether all parts are there that were asked for."""
        return not self.missing

    @property
    def reasons(self) -> dict[str, int]:
        """How many rows were dropped by each column and for which reason, the most first."""
        counts = Counter(f"{one['column']}: {one['reason']}" for one in self._found.dropped())
        return dict(counts.most_common())

    @property
    def columns(self) -> dict[str, ColumnFigures]:
        """What the cells of each column have cost, over all runs that made them."""
        return self._summed.columns

    @property
    def usd(self) -> float | None:
        """What the rows have cost in dollars; None: of some of it nobody knows."""
        micros = self._summed.micros
        return None if micros is None else micros / 1e6

    @property
    def _summed(self) -> TableFigures:
        if self._figures is None:
            self._figures = self._found.figures()
        return self._figures

    def rows(self) -> Iterator[dict[str, Any]]:
        """All rows in order, with one row group in memory at a time."""
        return self._found.rows()

    def cells(self) -> Iterator[dict[str, Any]]:
        """The provenance of each cell."""
        return self._found.cells()

    @property
    def schema(self) -> pyarrow.Schema:
        """The types of its columns."""
        return self.table.dataset.schema.arrow

    def tables(self) -> Iterator[pyarrow.Table]:
        """All rows in order, as one Arrow table a row group."""
        return self._found.tables()

    def to_arrow(self) -> pyarrow.Table:
        """All rows as an Arrow table."""
        return self._found.table()

    def to_polars(self) -> polars.DataFrame:
        """All rows as a polars frame."""
        import polars

        frame = polars.from_arrow(self.to_arrow())
        if not isinstance(frame, polars.DataFrame):
            raise TypeError("polars has made a series of a table")
        return frame

    def to_pandas(self) -> Any:  # noqa: ANN401 (pandas has no types)
        """All rows as a pandas frame."""
        return self.to_arrow().to_pandas()


def table_flags(
    out: str | os.PathLike[str] | None, slots: int | None, thread_slots: int | None
) -> dict[str, object]:
    """What a call says, as a command line would."""
    folder = None if out is None else os.fspath(out)
    return {"--out": folder, "--slots": slots, "--threads": thread_slots}
