# SPDX-License-Identifier: Apache-2.0
"""A table as a dataset of row groups, and the task whose jobs make them.

A row group is a slice: its lease covers its cells, and its acknowledgement stages and commits its
part. It holds no slot that its cells could need, and lends its submission to them, so that it takes
no room from them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from penstock.builds.slice import SliceOrder, SliceSite, SliceTask, order_of
from penstock.definitions.column import SeedColumn, digest
from penstock.definitions.context import Context
from penstock.definitions.dataset import Dataset, SliceSource
from penstock.definitions.table import Table
from penstock.definitions.task import ROW_GROUP, TaskOptions
from penstock.errors import DatasetDamaged, InternalError
from penstock.events.kinds import current as current_correlation
from penstock.model.dataset import ROWS, SliceOutput
from penstock.model.task import SUBMISSION
from penstock.outputs.garbage import remove_attempt_files
from penstock.outputs.paths import SliceNames, attempt_mark, slice_names
from penstock.tables.part_schema import PartSchema
from penstock.tables.parts import OldPart, digests_of, write_part
from penstock.tables.row_group_run import (
    Peers,
    RowGroupResult,
    RowGroupRun,
    RowGroupSite,
    TableDefinition,
)
from penstock.tables.seeds import SeedReader
from penstock.worker.graph_run import EarlyStop

log = logging.getLogger("penstock.table")

TABLE = "table"  # the dimension of the limit that counts the row groups of a table


class RowGroups:
    """The calendar of a table: its moments are the numbers of the first rows of its groups."""

    tz = ROWS
    daily = False

    def __init__(self, size: int) -> None:
        self.size = size

    def __repr__(self) -> str:
        return f"<RowGroups of {self.size}>"

    @property
    def text(self) -> str:
        return f"row groups of {self.size}"

    def between(self, start: int, end: int) -> Sequence[int]:
        first = max(0, -(-start // self.size) * self.size)
        return range(first, max(first, end), self.size)

    def before(self, at: int, count: int) -> Sequence[int]:
        last = at // self.size * self.size
        return range(max(0, last - (count - 1) * self.size), last + 1, self.size)


class TableDataset(Dataset[..., Any]):
    """The dataset whose slices are the parts of a table."""

    def __init__(self, table: Table, source: SliceSource, name: str | None = None) -> None:
        """Read what must be known before the first row: types, and what the seeds hold.

        Args:
            table: as declared.
            source: whoever reads slices.
            name: of the dataset; the table's otherwise.

        Raises:
            UsageError: the table has a mistake, or a seed cannot be read.
        """
        table.validate()
        self.table = table
        seed = table.options.seed
        self.readers = {
            name: SeedReader(column, seed)
            for name, column in table.columns.items()
            if isinstance(column, SeedColumn)
        }
        self.schema = PartSchema(table, self.readers)
        self.definition = TableDefinition(table, self.schema.types, self.readers)
        options = TaskOptions(group=self.definition.group.key, limits={TABLE: table.name})
        records = [reader.fingerprint for reader in self.readers.values()]
        super().__init__(
            name or table.name,
            _shape,
            RowGroups(table.options.buffer_size),
            (),
            digest(table.version, records, self.schema.names),
            1,
            options,
            source,
        )


async def _shape(ctx: Context, at: datetime) -> None:
    raise InternalError("A row group is made by its task.")


class RowGroupTask(SliceTask):
    """The task of the jobs that make the row groups of one table in one root."""

    reads_old = True
    own_slot_kind = ROW_GROUP  # a slot that its cells need could be held by none of its groups

    def __init__(self, site: SliceSite, dataset: TableDataset) -> None:
        self._own = dataset
        super().__init__(site, dataset, self._body)
        share, window = dataset.table.options.early_stop, dataset.table.options.early_stop_window
        self._peers = Peers(None if share is None else EarlyStop(window, share))

    @property
    def caps(self) -> Mapping[str, int]:
        return {f"{TABLE}:{self._own.name}": self._own.table.options.max_row_groups}

    async def _body(
        self,
        ctx: Context,
        at: list[int],
        eager: bool = False,
        built: dict[str, list[tuple[int, int]]] | None = None,
    ) -> list[SliceOutput]:
        """Make one row group, and write its part."""
        order, dataset, first = order_of(ctx), self._own, at[0]
        until = order.inputs.until
        if until is None:
            raise InternalError(f"Nobody has said how many rows {dataset!r} is to have.")
        size, replaced = dataset.table.options.buffer_size, order.inputs.old
        count = min(size, until - first)
        if replaced is not None and replaced.part is not None:  # rows that are there stay
            count = max(count, min(size, replaced.part.asked))
        named = slice_names(dataset.spec)
        old = await self.site.aside(partial(self._old_part, order, named))
        kept = {}
        if old is not None:
            kept = await self.site.aside(partial(self._kept, old, first, count))
        run = RowGroupRun(
            dataset.definition,
            self._row_group_site(),
            (order.job_id, order.token),
            first,
            count,
            context=ctx,
            kept=kept,
            peers=self._peers,
        )
        result = await run.run()
        if old is not None:
            _carry_over(result, kept, old)
        return [await self.site.aside(partial(self._written, order, named, first, count, result))]

    def _row_group_site(self) -> RowGroupSite:
        parts = self.site.parts
        if parts is None or parts.loop.scheduler is None:
            raise InternalError("A row group runs in a worker, and there is none.")
        correlation = current_correlation.get()
        return RowGroupSite(
            scheduler=parts.loop.scheduler,
            run_id="" if correlation is None else correlation.run_id,
            clock=parts.clock,
            threads=parts.threads,
            policy=parts.policy,
            rand=parts.ids.random,
            pressure=None if parts.providers is None else parts.providers.pressure,
            lends={SUBMISSION: 1},
        )

    def _old_part(self, order: SliceOrder, named: SliceNames) -> OldPart | None:
        """The cells of the part that this one replaces."""
        output = order.inputs.old
        if output is None or output.part is None:
            return None
        try:
            return OldPart(self.site.root, named, output)
        except DatasetDamaged as damaged:
            log.info(
                "What %r has kept of rows from %d on cannot be read, so they are made anew: %s",
                self._own.name,
                output.at,
                damaged,
            )
            return None

    def _kept(self, old: OldPart, first: int, count: int) -> dict[str, dict[int, Any]]:
        rows: dict[int, dict[str, Any]] = {number: {} for number in range(first, first + count)}
        for name, reader in self._own.readers.items():
            for number, record in zip(rows, reader.rows(first, count), strict=True):
                rows[number][name] = record
        table = self._own.table
        wanted = [name for name, one in table.columns.items() if one.slot is not None]
        return old.kept(table, self._own.schema.types, digests_of(table, rows), wanted)

    def _written(
        self,
        order: SliceOrder,
        named: SliceNames,
        first: int,
        count: int,
        result: RowGroupResult,
    ) -> SliceOutput:
        root, dataset = self.site.root, self._own
        if order.token > 1:
            marks = {attempt_mark(one) for one in order.earlier}
            remove_attempt_files(root, dataset.name, [first], marks)
        return write_part(
            root, named, dataset.table, dataset.schema, first, count, result, order.attempt
        )


def slice_task_of(site: SliceSite, dataset: Dataset[..., Any]) -> SliceTask:
    """The task that builds the slices of a dataset, or the row groups of a table."""
    if isinstance(dataset, TableDataset):
        return RowGroupTask(site, dataset)
    return SliceTask(site, dataset)


def _carry_over(result: RowGroupResult, kept: dict[str, dict[int, Any]], old: OldPart) -> None:
    """Let the provenance of values that were kept be that of when they were made."""
    for name, values in kept.items():
        for number in values:
            figures = old.figures.get((number, name))
            if figures is not None and (number, name) not in result.figures:
                result.figures[number, name] = figures
