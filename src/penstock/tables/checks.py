# SPDX-License-Identifier: Apache-2.0
"""Checks: whether a row is as it should be, by a function, a JSON schema or SQL over its group.

A row that does not pass has a reason, a text. A check that cannot decide, because its own code
raises, is a `CellError`: it is no fault of the row, and to make the row anew would not help.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.definitions.column import CheckColumn
from penstock.definitions.row_function import RowFunction, UnnamedColumn
from penstock.errors import UsageError
from penstock.model.table import CellError, Row
from penstock.outputs.parquet import arrow
from penstock.tables.chat import AnswerRejected
from penstock.tables.structured import structured_type
from penstock.tables.value_types import INT, ValueType
from penstock.worker.user_frames import where_of

if TYPE_CHECKING:
    import duckdb

REASON_LENGTH_MAX = 500

#: None: the row passes. A text: why it does not. An error: the check cannot decide.
Verdict = str | CellError | None

_NUMBER = "penstock_row"  # of the relation that SQL sees
_RELATION = "rows"


def row_check(column: CheckColumn) -> Callable[[Row], Verdict]:
    """What decides about one row after the other, by a function or a schema."""
    if column.predicate is not None:
        return _by_function(column.name, column.predicate)
    if column.of is None:
        raise TypeError(f"check {column.name!r} looks at whole row groups")
    return _by_schema(column.of, column.schema)


def group_verdicts(
    column: CheckColumn, rows: Sequence[Row], types: Mapping[str, ValueType]
) -> list[Verdict]:
    """What SQL says of each row of a group.

    Args:
        column: a check by SQL.
        rows: with the values of the columns that it needs.
        types: of the columns, by name.
    """
    if not rows:
        return []
    try:
        found = dict(_ask(column, rows, types))
    except Exception as error:  # of DuckDB; it may quote values
        broken = CellError(column.name, "sql", f"the SQL failed ({type(error).__name__})")
        return [broken] * len(rows)
    return [None if found[number] else "the SQL is not true" for number in range(len(rows))]


def check_sql(what: str, column: CheckColumn, types: Mapping[str, ValueType]) -> str | None:
    """Why the SQL of a check cannot be run over columns of these types."""
    try:
        _ask(column, [], types)
    except Exception as error:  # of DuckDB; there are no values that it could quote
        line = str(error).strip().split("\n", 1)[0].rstrip(".")
        return f"{what}: its SQL cannot be run: {line:.300}."
    return None


def _by_function(name: str, predicate: RowFunction) -> Callable[[Row], Verdict]:
    def decide(row: Row) -> Verdict:
        try:
            found = predicate.function(**predicate.arguments(row))
            passes = bool(found)
        except Exception as error:  # code of the user
            return CellError(name, "raised", _raised(error))
        if found is None:
            return CellError(name, "raised", "it returned None, which is neither true nor false")
        if isinstance(found, str):
            return found[:REASON_LENGTH_MAX] or "it returned an empty text"
        return None if passes else "it is not true"

    return decide


def _raised(error: Exception) -> str:
    """What was raised and where; its text may quote the row, so it is left out."""
    if isinstance(error, UnnamedColumn):
        return str(error)
    where = where_of(error)
    place = "" if where is None else f" at {where}"
    return f"it raised {type(error).__name__}{place}"


def _by_schema(of: str, schema: Any) -> Callable[[Row], Verdict]:  # noqa: ANN401 (JSON)
    wanted = structured_type(schema)

    def decide(row: Row) -> Verdict:
        try:
            wanted.parse(json.dumps(row[of], default=str))
        except AnswerRejected as error:
            return f"{of!r}: {error.reason}"
        return None

    return decide


def _ask(
    column: CheckColumn, rows: Sequence[Row], types: Mapping[str, ValueType]
) -> list[tuple[int, bool]]:
    """The number of each row, and whether the expression is true of it."""
    pa = arrow()
    kinds = {name: types[name] for name in column.needs}
    schema = pa.schema([(_NUMBER, INT.arrow), *((n, kind.arrow) for n, kind in kinds.items())])
    stored = [
        {_NUMBER: number, **{name: kind.stored(row.get(name)) for name, kind in kinds.items()}}
        for number, row in enumerate(rows)
    ]
    with _database() as database:
        database.register(_RELATION, pa.Table.from_pylist(stored, schema=schema))
        relation = database.table(_RELATION)
        found: list[tuple[int, bool]] = relation.project(
            f"{_NUMBER}, coalesce(({column.sql})::BOOLEAN, false)"
        ).fetchall()
    return found


def _database() -> duckdb.DuckDBPyConnection:
    try:
        import duckdb
    except ImportError:
        raise UsageError(
            "Checks by SQL need duckdb, which is not installed; install it with `pip install "
            "duckdb`."
        ) from None
    config: dict[str, Any] = {"threads": 1, "enable_external_access": False}
    return duckdb.connect(":memory:", config=config)
