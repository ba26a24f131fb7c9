# SPDX-License-Identifier: Apache-2.0
"""How does a list of dicts become a table?

A column has one type. Arrow would take more (text among bytes becomes bytes, a time without a zone
among times of a zone becomes one of UTC): what comes back would not be what went in, so it is
refused, and the sentence names the column.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain
from typing import TYPE_CHECKING, Any

from penstock.outputs.parquet import NoTable, arrow

if TYPE_CHECKING:
    import pyarrow as pa

DEPTH_MAX = 32  # of lists and dicts in each other

#: What a value may be, and what it is called; the first that fits.
_FAMILIES: tuple[tuple[type, str], ...] = (
    (bool, "bool"),
    (int, "int"),
    (float, "float"),
    (str, "str"),
    (bytes, "bytes"),
    (bytearray, "bytes"),
    (datetime, "datetime"),
    (date, "date"),
    (time, "time"),
    (timedelta, "timedelta"),
    (Decimal, "Decimal"),
    (dict, "dict"),
    (list, "list"),
    (tuple, "list"),
)
_NUMBERS = {"int", "float"}
_ALLOWED = "bool, int, float, str, bytes, datetime, date, time, timedelta, Decimal, list and dict"


def table_of_rows(rows: Sequence[object]) -> pa.Table:
    """A table with the columns in the order in which the rows first name them; `NoTable` if not."""
    pa = arrow()
    columns = {name: _array(name, values) for name, values in _columns(rows).items()}
    if rows and not columns:
        raise NoTable("its rows have no columns")
    return pa.table(columns)


def _columns(rows: Sequence[object]) -> dict[str, list[object]]:
    """The values of each column; None where a row lacks it."""
    names: dict[str, None] = {}
    before: object = None
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise NoTable(f"row {number} is not a dict but of type {type(row).__name__}")
        keys = row.keys()
        if keys == before:  # most rows are like the last
            continue
        before = keys
        for name in keys:
            if not isinstance(name, str):
                kind = type(name).__name__
                raise NoTable(f"row {number} has a column name that is not a str but a {kind}")
            if not _is_unicode(name):
                raise NoTable(f"row {number} has a column name that is not Unicode text")
            names[name] = None
    return {name: [row.get(name) for row in rows] for name in names}  # type: ignore[attr-defined]


def _array(name: str, values: list[object]) -> pa.Array:
    pa = arrow()
    kind = _one_family(name, values, DEPTH_MAX)
    asked = None
    if kind == "datetime" and _zone_count(values) > 1:
        asked = pa.timestamp("us", "UTC")
    try:
        return pa.array(values, asked)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise NoTable(f"column {name!r}: {_why(values, kind, error)}") from error


def _one_family(name: str, values: Iterable[object], depth: int) -> str | None:
    """What all the values of a column are; None if there are none."""
    values = list(values)
    kinds = {type(value) for value in values} - {type(None)}
    families = {_family(name, kind) for kind in kinds}
    if len(families) > 1 and families != _NUMBERS:
        told = " and ".join(sorted(families))
        raise NoTable(f"column {name!r} has values of several types, {told}")
    family = next(iter(families), None)
    if family == "datetime":
        _one_sort_of_time(name, values)
    elif family == "time" and any(_has_zone(value) for value in values):
        raise NoTable(f"column {name!r} has a time of day with a zone, which cannot be kept")
    elif family in ("list", "dict"):
        _look_inside(name, values, family, depth)
    return family


def _look_inside(name: str, values: list[Any], family: str, depth: int) -> None:
    if depth == 0:
        raise NoTable(f"column {name!r} is nested more than {DEPTH_MAX} deep")
    there = [value for value in values if value is not None]
    if family == "list":
        _one_family(f"{name}[]", chain.from_iterable(there), depth - 1)
        return
    inner: dict[str, list[object]] = {}
    for value in there:
        for key, part in value.items():
            if not isinstance(key, str):
                kind = type(key).__name__
                raise NoTable(f"column {name!r} has a key that is not a str but a {kind}")
            if not _is_unicode(key):
                raise NoTable(f"column {name!r} has a key that is not Unicode text")
            inner.setdefault(key, []).append(part)
    if not inner:
        raise NoTable(f"column {name!r} has only empty dicts, and no column can be of those")
    for key, parts in inner.items():
        _one_family(f"{name}.{key}", parts, depth - 1)


def _family(name: str, kind: type) -> str:
    for known, family in _FAMILIES:
        if issubclass(kind, known):
            return family
    raise NoTable(f"column {name!r} has a value of type {kind.__name__}; allowed are {_ALLOWED}")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _has_zone(value: object) -> bool:
    return getattr(value, "tzinfo", None) is not None


def _one_sort_of_time(name: str, values: list[object]) -> None:
    if len({_has_zone(value) for value in values if value is not None}) > 1:
        raise NoTable(f"column {name!r} has times with and without a zone")


def _zone_count(values: list[object]) -> int:
    """How many zones a column's times are in; several are kept as times of UTC."""
    return len({getattr(value, "tzinfo", None) for value in values if value is not None})


def _why(values: list[object], kind: str | None, error: Exception) -> str:
    """In our words where we know it; values are never shown."""
    if isinstance(error, UnicodeError):
        return "a str that is not Unicode text"
    if isinstance(error, OverflowError) or kind == "int":
        return f"a value of type {kind} is out of range (whole numbers have 64 bits)"
    if kind == "float":
        return "whole numbers beyond 2**53 among fractions"
    if kind == "Decimal":
        return "a Decimal that is not finite, or has more than 76 digits"
    return f"Arrow cannot keep its values of type {kind}"
