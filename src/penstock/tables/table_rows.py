# SPDX-License-Identifier: Apache-2.0
"""Reads the committed parts of a table: rows, dropped rows, and what columns have cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.errors import DatasetDamaged, OutputFailed
from penstock.model.dataset import SliceOutput, root_of
from penstock.model.table import ColumnFigures
from penstock.outputs.parquet import arrow
from penstock.outputs.paths import SliceNames
from penstock.outputs.root import OutputRoot
from penstock.stores.protocol import ManifestStore
from penstock.tables.part_schema import PartSchema
from penstock.tables.parts import read_cells, read_dropped, read_rows

if TYPE_CHECKING:
    import pyarrow as pa

PAGE = 500  # parts whose manifests are read at once

_output = msgspec.json.Decoder(SliceOutput).decode


class TableRows:
    """What is there of one table, part by part, in the order of its rows."""

    def __init__(
        self,
        named: SliceNames,
        schema: PartSchema,
        store: ManifestStore,
        root: OutputRoot | None,
        until: int,
    ) -> None:
        """Nothing is read yet.

        Args:
            named: how people call the table.
            schema: of its parts.
            store: that names them.
            root: where they lie; None: nothing was ever made.
            until: rows from this one on are not wanted.
        """
        self._named = named
        self._schema = schema
        self._store = store
        self._root = root
        self._until = until

    def __repr__(self) -> str:
        return f"<TableRows of {self._named.dataset!r}>"

    def parts(self) -> Iterator[SliceOutput]:
        """The manifests of all parts that lie in the root."""
        start = 0
        while start < self._until:
            rows = self._store.manifests(self._named.dataset, start, self._until, PAGE).result()
            for row in rows.rows:
                if self._root is None or root_of(row.built) == self._root.id:
                    yield _output(row.document)
            if len(rows.rows) < PAGE:
                return
            start = rows.rows[-1].at + 1

    def tables(self) -> Iterator[pa.Table]:
        """The rows of each part, in the types of today's columns where they fit."""
        for output in self.parts():
            yield self._read(output)

    def table(self) -> pa.Table:
        """All rows at once."""
        found = [*self.tables()]
        if not found:
            return self._schema.arrow.empty_table()
        return arrow().concat_tables(found, promote_options="permissive")

    def rows(self) -> Iterator[dict[str, Any]]:
        """All rows, one part in memory at a time."""
        for table in self.tables():
            yield from self._schema.rows(table)

    def dropped(self) -> Iterator[dict[str, Any]]:
        """The rows that were not made, each with the column, the reason and its values."""
        for output in self.parts():
            if output.part is not None and output.part.dropped is not None:
                yield from read_dropped(self._found(), self._named, output.part.dropped)

    def cells(self) -> Iterator[dict[str, Any]]:
        """What each cell was made of and what it has cost."""
        for output in self.parts():
            if output.part is not None:
                yield from read_cells(self._found(), self._named, output.part.cells)

    def figures(self) -> TableFigures:
        """What is there, summed up."""
        asked = made = dropped = 0
        columns: dict[str, ColumnFigures] = {}
        for output in self.parts():
            part = output.part
            if part is None:
                continue
            asked += part.asked
            made += output.rows or 0
            dropped += part.dropped_count
            for name, figures in part.columns.items():
                columns[name] = columns.get(name, ColumnFigures()).plus(figures)
        return TableFigures(asked=asked, made=made, dropped=dropped, columns=columns)

    def _read(self, output: SliceOutput) -> pa.Table:
        try:
            return read_rows(self._found(), self._named, output)
        except DatasetDamaged as damaged:
            if not damaged.missing:
                raise
            name, at = self._named.dataset, output.at
            newer = self._store.manifests(name, at, at + 1, 1).result().rows
            if not newer or _output(newer[0].document).path == output.path:
                raise
            return read_rows(self._found(), self._named, _output(newer[0].document))

    def _found(self) -> OutputRoot:
        if self._root is None:
            raise OutputFailed(
                f"Parts of table {self._named.dataset!r} are committed, but there is no output "
                "root; set datasets.root to the folder that they were made in."
            )
        return self._root


class TableFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What is there of a table, summed up."""

    asked: int  # rows
    made: int
    dropped: int
    columns: dict[str, ColumnFigures]  # in order of declaration

    @property
    def micros(self) -> int | None:
        """The money that its rows have cost; None: of some of it nobody knows."""
        known = [one.micros for one in self.columns.values() if one.calls or one.micros is None]
        return None if None in known else sum(one for one in known if one is not None)
