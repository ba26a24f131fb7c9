# SPDX-License-Identifier: Apache-2.0
"""Columns that are computed here: seeds, samples and expressions, for a whole row group at once.

A cell whose value cannot be made is a `CellError` in its place; the others of its column are made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from penstock.definitions.column import Column, ExpressionColumn, SampleColumn, SeedColumn
from penstock.definitions.template import TemplateFailed
from penstock.model import strict_json
from penstock.model.table import CellError, Row
from penstock.sentences import counted
from penstock.tables.sampling import NoChoice, sampler_of
from penstock.tables.seeds import SeedReader
from penstock.tables.value_types import ValueType


def compute(
    column: Column, seed: int, first_row: int, rows: Sequence[Row], reader: SeedReader | None = None
) -> list[Any]:
    """The values of a column for the rows of a group, or why one has none.

    Args:
        column: a seed, a sample or an expression.
        seed: of the table.
        first_row: the number of the first of the rows.
        rows: with the values of the columns that this one needs.
        reader: of a seed.
    """
    match column:
        case SeedColumn() if reader is not None:
            return reader.rows(first_row, len(rows))
        case SampleColumn():
            draw = sampler_of(column, seed)
            made = [_made(column, draw, first_row + n, row) for n, row in enumerate(rows)]
        case ExpressionColumn():
            read = _READERS[column.type]

            def write(number: int, row: Row) -> Any:  # noqa: ANN401
                return read(column.template.render(row))

            made = [_made(column, write, first_row + n, row) for n, row in enumerate(rows)]
        case _:
            raise TypeError(f"column {column.name!r} is not computed here")
    return made


def skipped(column: Column, row: Row) -> bool | CellError:
    """Whether a cell is not made, because of the column's own condition."""
    if column.skip is None:
        return False
    try:
        return column.skip.when.holds(row)
    except TemplateFailed as error:
        return CellError(column.name, "template", f"skip_when=: {error}")


def plain_value(column: str, kind: ValueType, value: Any) -> Any:  # noqa: ANN401
    """What a function or a model has given, as plain data of the type of its column.

    It is as it will be when it is read again from a part: what a record lacks is None, and what its
    type does not know is left out.
    """
    try:
        made = _plain(value)
    except Exception as error:  # of classes of the user
        return CellError(column, "type", f"it cannot become plain data ({type(error).__name__})")
    problem = kind.problem(made)
    if problem is not None:
        return CellError(column, "type", f"the value {problem}")
    return kind.canonical(made)


def plain_values(column: str, kind: ValueType, values: Any, count: int) -> list[Any]:  # noqa: ANN401
    """The same for a function of a whole row group, which returns a value for each row."""
    if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
        problem = f"a function of a row group returns a list, got a {type(values).__name__}"
        return [CellError(column, "type", problem)] * count
    found = list(values)
    if len(found) != count:
        problem = f"it returned {counted(len(found), 'value')} for {counted(count, 'row')}"
        return [CellError(column, "type", problem)] * count
    return [plain_value(column, kind, value) for value in found]


def _plain(value: Any) -> Any:  # noqa: ANN401
    """Models, data classes and enums as what they hold; all else as it is."""
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return _plain(dump())
    if isinstance(value, Enum):
        return _plain(value.value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value


def _made(column: Column, make: Callable[[int, Row], Any], number: int, row: Row) -> Any:  # noqa: ANN401
    try:
        return make(number, row)
    except TemplateFailed as error:
        return CellError(column.name, "template", str(error))
    except NoChoice as error:
        return CellError(column.name, "choices", str(error))
    except (ValueError, LookupError):
        wanted = column.type.__name__ if isinstance(column, ExpressionColumn) else "value"
        return CellError(column.name, "type", f"its text is no {wanted}")


def _truth(text: str) -> bool:
    return _TRUTHS[text.strip().lower()]


def _number(text: str) -> float:
    found = float(text)
    if not math.isfinite(found):
        raise ValueError(text)
    return found


def _whole(text: str) -> int:
    found = int(text)
    if not strict_json.INTEGER_MIN <= found <= strict_json.INTEGER_MAX:
        raise ValueError(text)
    return found


_TRUTHS = {"true": True, "false": False}
_READERS: dict[type, Callable[[str], Any]] = {
    str: str,
    int: _whole,
    float: _number,
    bool: _truth,
}
