# SPDX-License-Identifier: Apache-2.0
"""Writes a finished row group as a part, and reads parts: rows, cells and dropped rows.

A part is one Parquet file of the rows; beside it lie one with a row for each cell (provenance) and
the rows that were dropped, as lines of JSON. The manifest names all three: what it does not name is
not there.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from penstock.definitions.column import SeedColumn
from penstock.definitions.table import Table
from penstock.model.dataset import SliceOutput, TablePart
from penstock.model.table import CellError, CellFigures, ColumnFigures, DroppedRow
from penstock.outputs.parquet import arrow, decode_table, encode_table
from penstock.outputs.paths import CELLS, DROPPED, PARQUET, SliceNames
from penstock.outputs.read import read_content
from penstock.outputs.root import OutputRoot
from penstock.outputs.write import Encoded, write_slices
from penstock.tables.part_schema import PartSchema
from penstock.tables.row_group_run import RowGroupResult
from penstock.tables.seeds import record_digest
from penstock.tables.value_types import ValueType

if TYPE_CHECKING:
    import pyarrow as pa

RECORDS = "*records"  # in place of a column: which records of seeds a row was made of

_encode = msgspec.json.Encoder(order="deterministic").encode


def write_part(
    root: OutputRoot,
    named: SliceNames,
    table: Table,
    schema: PartSchema,
    at: int,
    asked: int,
    result: RowGroupResult,
    attempt: str,
) -> SliceOutput:
    """Write the rows of a group, their cells and what was dropped; durable when it returns."""
    content, rows = encode_table(schema.table(result.values))
    cells, _ = encode_table(_cells(table, schema, result))
    files = [
        Encoded(at=at, kind=PARQUET, rows=rows, data=content),
        Encoded(at=at, kind=CELLS, rows=None, data=cells),
    ]
    if result.dropped:
        lines = b"".join(_encode(_told(one)) + b"\n" for one in result.dropped)
        files.append(Encoded(at=at, kind=DROPPED, rows=None, data=memoryview(lines)))
    written = write_slices(root, named, files, attempt)
    part = TablePart(
        size=table.options.buffer_size,
        asked=asked,
        identities={name: table.identities[name] for name in table.columns},
        cells=written[1],
        dropped=written[2] if result.dropped else None,
        dropped_count=len(result.dropped),
        columns=_figures(table, result),
    )
    arrow().default_memory_pool().release_unused()
    return replace(written[0], part=part)


class OldPart:
    """The cells of a part that is there already, for a group that is made again."""

    def __init__(self, root: OutputRoot, named: SliceNames, output: SliceOutput) -> None:
        """Read it; what is damaged is refused as for every slice."""
        self.part = output.part
        self._rows: dict[int, dict[str, str]] = {}  # values as JSON, by row and column
        self._records: dict[int, str] = {}
        self.figures: dict[tuple[int, str], CellFigures] = {}
        if output.part is None:
            return
        for line in read_cells(root, named, output.part.cells):
            row, column = line["row"], line["column"]
            if column == RECORDS:
                self._records[row] = line["value"]
            elif line["value"] is not None:
                self._rows.setdefault(row, {})[column] = line["value"]
                self.figures[row, column] = CellFigures(
                    **{name: line[name] for name in _FIGURES if line[name] is not None}
                )

    def kept(
        self,
        table: Table,
        types: Mapping[str, ValueType],
        records: Mapping[int, str],
        wanted: Sequence[str],
    ) -> dict[str, dict[int, Any]]:
        """The values that are as good as new, by column and row.

        Args:
            table: as it is now.
            types: of its columns; a value of another type is made anew.
            records: the digest of the records of each row, as they are now.
            wanted: the columns that have tasks.
        """
        if self.part is None:
            return {}
        same = [name for name in wanted if self.part.identities.get(name) == table.identities[name]]
        if self.part.dropped_count or self._records != dict(records):  # other rows may be made
            same = [name for name in same if name not in table.group_columns]
        found: dict[str, dict[int, Any]] = {}
        for row, digest in records.items():
            if self._records.get(row) != digest:
                continue
            values = self._rows.get(row, {})
            for name in same:
                with contextlib.suppress(ValueError):
                    if name in values:
                        found.setdefault(name, {})[row] = types[name].from_json(values[name])
        return found


def read_rows(root: OutputRoot, named: SliceNames, output: SliceOutput) -> pa.Table:
    """The rows of a part."""
    return decode_table(read_content(root, named, output))


def read_cells(root: OutputRoot, named: SliceNames, cells: SliceOutput) -> list[dict[str, Any]]:
    """The cells of a part, one dict each."""
    rows: list[dict[str, Any]] = decode_table(read_content(root, named, cells)).to_pylist()
    return rows


def read_dropped(
    root: OutputRoot, named: SliceNames, dropped: SliceOutput
) -> Iterator[dict[str, Any]]:
    """The dropped rows of a part, as they are told."""
    for line in read_content(root, named, dropped).splitlines():
        yield msgspec.json.decode(line)


def digests_of(table: Table, rows: Mapping[int, Mapping[str, Any]]) -> dict[int, str]:
    """What identifies the records of each row."""
    seeds = [name for name, one in table.columns.items() if isinstance(one, SeedColumn)]
    return {
        number: record_digest({name: row.get(name) for name in seeds})
        for number, row in rows.items()
    }


def _told(one: DroppedRow) -> dict[str, Any]:
    return {
        "row": one.row,
        "column": one.column,
        "reason": one.reason,
        "values": _plain(one.values),
    }


def _plain(value: Any) -> Any:  # noqa: ANN401
    """A value as JSON has it; what it has not is written as text."""
    return json.loads(json.dumps(value, default=str, ensure_ascii=False))


_FIGURES = CellFigures.__struct_fields__


def _cells(table: Table, schema: PartSchema, result: RowGroupResult) -> pa.Table:
    """One row for each cell that was asked for or computed by a task, made or failed."""
    pa = arrow()
    lines: list[dict[str, Any]] = []
    values = dict(zip(result.rows, result.values, strict=True))
    seeds = [name for name, one in table.columns.items() if isinstance(one, SeedColumn)]
    dropped = {one.row: one.values for one in result.dropped}
    for number, row in sorted([*values.items(), *dropped.items()]):
        digest = record_digest({name: row.get(name) for name in seeds})
        lines.append({"row": number, "column": RECORDS, "value": digest})
    for place in sorted(set(result.figures) | set(result.errors), key=_order(table)):
        number, name = place
        figures = result.figures.get(place)
        error = result.errors.get(place)
        line: dict[str, Any] = {"row": number, "column": name}
        if figures is not None:
            line |= {field: getattr(figures, field) for field in _FIGURES}
        if error is not None:
            line |= {"error": error.kind, "message": error.message}
        row = values.get(number, dropped.get(number, {}))
        if error is None and name in row:
            line["value"] = schema.types[name].to_json(row[name])
        lines.append(line)
    return pa.Table.from_pylist(lines, schema=_cell_schema())


def _order(table: Table) -> Any:  # noqa: ANN401 (a key)
    places = {name: place for place, name in enumerate(table.columns)}
    return lambda cell: (cell[0], places.get(cell[1], -1))


def _cell_schema() -> pa.Schema:
    pa = arrow()
    text, whole, real = pa.string(), pa.int64(), pa.float64()
    kinds = {
        "model": text,
        "fingerprint": text,
        "attempts": whole,
        "input_tokens": whole,
        "cached_tokens": whole,
        "output_tokens": whole,
        "micros": whole,
        "calls": whole,
        "reused": whole,
        "waited_seconds": real,
        "served_seconds": real,
        "verdict": text,
    }
    return pa.schema(
        [
            ("row", whole),
            ("column", text),
            *((name, kinds[name]) for name in _FIGURES),
            ("error", text),
            ("message", text),
            ("value", text),
        ]
    )


def _figures(table: Table, result: RowGroupResult) -> dict[str, ColumnFigures]:
    """What each column has cost in this group."""
    found: dict[str, ColumnFigures] = {}
    for place in set(result.figures) | set(result.errors):
        figures, error = result.figures.get(place), result.errors.get(place)
        found[place[1]] = found.get(place[1], ColumnFigures()).plus(_one(figures, error))
    return {name: found[name] for name in table.columns if name in found}


def _one(figures: CellFigures | None, error: CellError | None) -> ColumnFigures:
    failed = int(error is not None)
    if figures is None:
        return ColumnFigures(cells=1, failed=failed)
    return ColumnFigures(
        cells=1,
        failed=failed,
        calls=figures.calls,
        reused=figures.reused,
        input_tokens=figures.input_tokens,
        cached_tokens=figures.cached_tokens,
        output_tokens=figures.output_tokens,
        micros=figures.micros,
        waited_seconds=figures.waited_seconds or 0.0,
        served_seconds=figures.served_seconds or 0.0,
    )
