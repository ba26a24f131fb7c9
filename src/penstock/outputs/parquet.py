# SPDX-License-Identifier: Apache-2.0
"""Tables as Parquet bytes and back, from Arrow, pandas and polars.

The only module that imports pyarrow, which is installed with the extra `data`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cache
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any

from penstock.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

THREADED_BYTES = 1 << 23  # a file from here on is decoded by several threads
PLAIN_ROWS_MAX = 100  # up to here a dictionary of values costs more than it saves: a quarter


class TableError(Exception):
    """A value cannot become a table, or tables cannot be joined; the text says why."""


@cache
def arrow() -> ModuleType:
    """pyarrow, with its Parquet part."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError(
            "Parquet files need pyarrow, which is not installed; install it with `pip install "
            "pyarrow`. Without it datasets keep raw bytes, and results are exported as CSV."
        ) from error
    return pyarrow  # type: ignore[no-any-return]


def load_arrow() -> None:
    """Import it now, if it is installed: later it would hold up whoever needs it first."""
    with contextlib.suppress(UsageError):
        arrow()


def to_table(value: object) -> pa.Table | None:
    """An Arrow table, record batch, pandas or polars frame as a table; None: it is none of them.

    What nobody has imported nobody can have returned, so nothing is imported to find out.
    """
    if sys.modules.get("pyarrow") is not None:
        pa = arrow()
        if isinstance(value, pa.Table):
            return value
        if isinstance(value, pa.RecordBatch):
            return pa.Table.from_batches([value])
    polars = sys.modules.get("polars")
    if polars is not None and isinstance(value, getattr(polars, "DataFrame", ())):
        return _from_polars(value, polars)
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(value, getattr(pandas, "DataFrame", ())):
        return _from_pandas(value)
    return None


def _from_polars(frame: Any, polars: ModuleType) -> pa.Table:  # noqa: ANN401 (polars is a guest)
    arrow()
    for name, kind in frame.schema.items():
        if kind == polars.Object:  # Arrow would be given their addresses
            raise TableError(f"column {name!r} has Python objects, which cannot be kept")
    return frame.to_arrow(compat_level=polars.CompatLevel.oldest())


def _from_pandas(frame: Any) -> pa.Table:  # noqa: ANN401 (pandas has no types)
    """Named indexes are columns, and row numbers are not; anything else would be lost or odd."""
    pa = arrow()
    index = frame.index
    named = all(name is not None for name in index.names)
    if not named and not (index.nlevels == 1 and index.dtype.kind in "iu"):
        raise TableError("its index has no name; name it, or call reset_index(drop=True)")
    if not all(isinstance(name, str) for name in frame.columns):
        raise TableError("a column's name is not a str")
    try:
        table = pa.Table.from_pandas(frame, preserve_index=named)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise TableError(_odd_column(frame.reset_index() if named else frame)) from error
    return table.replace_schema_metadata(None)


def _odd_column(frame: Any) -> str:  # noqa: ANN401 (pandas has no types)
    """Why a frame is no table. Arrow would say so with a value, and values are never shown."""
    pa = arrow()
    names = list(frame.columns)
    for place, name in enumerate(names):
        if name in names[:place]:
            return f"column {name!r} is there twice"
        try:
            pa.Array.from_pandas(frame.iloc[:, place])
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            return f"column {name!r} has values that no column of one type can hold"
    return "Arrow cannot keep it"


def encode_table(table: pa.Table) -> tuple[memoryview, int]:
    """A table as the bytes of a Parquet file, and how many rows it has."""
    pa = arrow()
    names = table.column_names
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise TableError(f"column {twice!r} is there twice")
    if not names and table.num_rows:
        raise TableError("it has rows but no columns")
    stream = pa.BufferOutputStream()
    try:
        pa.parquet.write_table(
            table, stream, compression="zstd", use_dictionary=table.num_rows > PLAIN_ROWS_MAX
        )
    except (pa.ArrowException, TypeError, ValueError, NotImplementedError) as error:
        raise TableError(_first_line(error)) from error
    return memoryview(stream.getvalue()), table.num_rows


class ColumnType(StrEnum):
    """What the values of a column of results are; each may be missing."""

    TRUTH = "bool"
    WHOLE = "int64"
    NUMBER = "float64"
    TEXT = "string"


def write_rows(
    file: IO[bytes], columns: Mapping[str, ColumnType], batches: Iterable[list[dict[str, Any]]]
) -> None:
    """Write a Parquet file a batch of rows at a time; every row has every column."""
    pa = arrow()
    kinds = {kind: pa.type_for_alias(kind.value) for kind in ColumnType}
    schema = pa.schema([(name, kinds[kind]) for name, kind in columns.items()])
    with pa.parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for rows in batches:
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))


def write_tables(file: IO[bytes], schema: pa.Schema, tables: Iterable[pa.Table]) -> None:
    """Write a Parquet file a table at a time; columns that one lacks are empty there."""
    pa = arrow()
    with pa.parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for table in tables:
            writer.write_table(table)


def decode_table(data: bytes) -> pa.Table:
    """The table in the bytes of a Parquet file."""
    pa = arrow()
    try:
        with pa.parquet.ParquetFile(pa.BufferReader(data)) as file:
            return file.read(use_threads=len(data) >= THREADED_BYTES)
    except (pa.ArrowException, OSError) as error:
        raise TableError(_first_line(error)) from error


def concat_tables(tables: Sequence[pa.Table]) -> pa.Table:
    """Tables one after the other, columns by name: a column that one lacks is null there.

    Whole numbers and fractions join to fractions; other types do not meet.
    """
    pa = arrow()
    if not tables:
        return pa.table({})
    if len(tables) == 1:
        return tables[0]
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise TableError(_first_line(error)) from error


def find_type_conflict(tables: Sequence[pa.Table]) -> tuple[str, int, int] | None:
    """The first column, and the first two tables, whose types do not join."""
    pa = arrow()
    kept: dict[str, list[tuple[Any, int]]] = {}  # its distinct types, and where each was first
    for index, table in enumerate(tables):
        for field in table.schema:
            seen = kept.setdefault(field.name, [])
            if any(field.type == before for before, _ in seen):
                continue
            for before, where in seen:
                pair = [pa.schema([(field.name, which)]) for which in (before, field.type)]
                try:
                    pa.unify_schemas(pair, promote_options="permissive")
                except pa.ArrowException:
                    return field.name, where, index
            seen.append((field.type, index))
    return None


def column_type(table: pa.Table, column: str) -> str:
    """What a column's type is called."""
    return str(table.schema.field(column).type)


def _first_line(error: Exception) -> str:
    """The first line of what a library says, short."""
    line = str(error).strip().split("\n", 1)[0].rstrip(".")
    return line if len(line) <= 120 else f"{line[:120]}…"
