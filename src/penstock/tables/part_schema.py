# SPDX-License-Identifier: Apache-2.0
"""The one Arrow schema of all parts of a table, known before its first row is made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING, Any

from penstock.definitions.column import (
    CheckColumn,
    Column,
    ExpressionColumn,
    FunctionColumn,
    JudgeColumn,
    LlmColumn,
    SampleColumn,
    SeedColumn,
)
from penstock.definitions.table import Table, fields_read
from penstock.errors import UsageError
from penstock.model.table import (
    Choices,
    ChoicesBy,
    Constant,
    Dates,
    Ids,
    Integers,
    Row,
    Sampler,
)
from penstock.outputs.parquet import arrow
from penstock.tables.checks import check_sql
from penstock.tables.seeds import SeedReader
from penstock.tables.structured import structured_type
from penstock.tables.value_types import (
    ANYTHING,
    BOOL,
    DATE,
    FLOAT,
    INT,
    TEXT,
    TIME,
    UTC_TIME,
    NoType,
    ValueType,
    joined,
    record_of,
    type_of,
    type_of_annotation,
    type_of_schema,
)

if TYPE_CHECKING:
    import pyarrow as pa


class PartSchema:
    """The types of a table's columns, and its rows as Arrow."""

    def __init__(self, table: Table, readers: Mapping[str, SeedReader]) -> None:
        """Find all types, and refuse what does not fit them.

        Args:
            table: as declared.
            readers: of its seed columns, by name.
        """
        self.types = {name: _type(table, one, readers) for name, one in table.columns.items()}
        self._kept = [name for name, column in table.columns.items() if column.keep]
        problems = [
            *self._unknown_fields(table),
            *self._odd_values(table),
            *self._odd_checks(table),
        ]
        if problems:
            raise UsageError("\n".join(problems))

    @cached_property
    def arrow(self) -> pa.Schema:
        """Of the columns that are kept, in order of declaration."""
        kinds = [(name, self.types[name]) for name in self._kept]
        return arrow().schema([(name, kind.arrow) for name, kind in kinds])

    def table(self, rows: Sequence[Row]) -> pa.Table:
        """Rows whose values fit, as a table."""
        pa = arrow()
        columns = []
        for name, field in zip(self._kept, self.arrow, strict=True):
            values, kind = [row.get(name) for row in rows], self.types[name]
            if not kind.is_stored_as_is:
                values = list(map(kind.stored, values))
            columns.append(pa.array(values, field.type))
        return pa.Table.from_arrays(columns, schema=self.arrow)

    def rows(self, table: pa.Table) -> list[dict[str, Any]]:
        """The rows of a part, with their values as they were.

        Columns of another type, of a part that is older, are as Arrow has them.
        """
        kinds = {field.name: self.types[field.name] for field in table.schema if self._has(field)}
        return [
            {
                name: kinds[name].restored(value) if name in kinds else value
                for name, value in row.items()
            }
            for row in table.to_pylist()
        ]

    @property
    def names(self) -> list[tuple[str, str]]:
        """Its columns and what their types are called."""
        return [(field.name, str(field.type)) for field in self.arrow]

    def _has(self, field: pa.Field) -> bool:
        return field.name in self.types and self.types[field.name].arrow == field.type

    def _unknown_fields(self, table: Table) -> Iterable[str]:
        """Templates that read a field which no record has."""
        for column in table.columns.values():
            for name, fields in fields_read(column):
                known = [field for field, _ in self.types[name].fields]
                for field in fields:
                    if known and field not in known:
                        near = get_close_matches(field, known, 1)
                        yield (
                            f"Column {column.name!r} of table {table.name!r} reads {name}.{field}, "
                            f"and {name!r} has the fields {', '.join(map(repr, known))}"
                            + (f"; closest: {near[0]!r}." if near else ".")
                        )

    def _odd_values(self, table: Table) -> Iterable[str]:
        for name, column in table.columns.items():
            problem = column.skip and self.types[name].problem(column.skip.value)
            if problem:
                yield f"Column {name!r} of table {table.name!r}: skip_value= {problem}."

    def _odd_checks(self, table: Table) -> Iterable[str]:
        for name, column in table.columns.items():
            if not isinstance(column, CheckColumn):
                continue
            what = f"Check {name!r} of table {table.name!r}"
            if column.schema is not None:
                _checked_schema(what, column.schema)
            if column.sql is not None:
                problem = check_sql(what, column, self.types)
                if problem is not None:
                    yield problem


def _type(table: Table, column: Column, readers: Mapping[str, SeedReader]) -> ValueType:
    match column:
        case SeedColumn():
            return readers[column.name].type
        case SampleColumn():
            return _sampled(column)
        case ExpressionColumn():
            return type_of_annotation(column.type)
        case LlmColumn():
            if column.schema is None:
                return TEXT
            what = f"Column {column.name!r} of table {table.name!r}"
            return type_of_schema(_checked_schema(what, column.schema)).settled
        case JudgeColumn():
            verdict = record_of({"score": INT, "reason": TEXT})
            return record_of({criterion.name: verdict for criterion in column.rubric})
        case CheckColumn():
            return BOOL
        case FunctionColumn():
            return _returned(table, column)
    raise AssertionError(column)  # pragma: no cover (there are no others)


def _checked_schema(what: str, schema: object) -> Mapping[str, Any]:
    try:
        return structured_type(schema).json_schema
    except UsageError as error:
        raise UsageError(f"{what}: {error}") from None


def _sampled(column: SampleColumn) -> ValueType:
    others = [] if column.otherwise is None else [_drawn(column.otherwise)]
    return joined([_drawn(column.sampler), *others]).settled


def _drawn(sampler: Sampler) -> ValueType:
    match sampler:
        case Choices():
            return joined(map(type_of, sampler.values))
        case ChoicesBy():
            return joined(type_of(one) for _, values in sampler.values for one in values)
        case Constant():
            return type_of(sampler.value)
        case Dates():
            if not isinstance(sampler.start, datetime):
                return DATE
            return TIME if sampler.start.tzinfo is None else UTC_TIME
        case Integers():
            return INT
        case Ids():
            return TEXT
    return FLOAT


def _returned(table: Table, column: FunctionColumn) -> ValueType:
    if column.function.returns is None and not column.keep:  # not annotated
        return ANYTHING
    try:
        return type_of_annotation(column.function.returns).settled
    except NoType as error:
        if not column.keep:
            return ANYTHING
        raise UsageError(
            f"Column {column.name!r} of table {table.name!r} returns {error}, which no column can "
            "hold; return plain data (texts, numbers, dates, lists, mappings, a pydantic model), "
            "or hide it with keep=False."
        ) from None
