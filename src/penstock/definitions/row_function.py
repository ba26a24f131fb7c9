# SPDX-License-Identifier: Apache-2.0
"""A function over the columns of a row: which columns its parameters, or its code, ask for.

Its parameters are columns, by name. One that is called `row` is given the row: then it needs what
its code takes of it by name, such as `row["review"]`, or what its author names. One that is called
`rows`, for a whole row group, is given a list of rows. A parameter with a default is no column.
"""

from __future__ import annotations

import dis
import inspect
import re
import typing
from collections.abc import Callable, Iterable, Iterator
from types import CodeType
from typing import Any

import msgspec

from penstock.definitions.code_identity import identity_of_code
from penstock.definitions.context import Context
from penstock.definitions.task import hints_of, parameters_of
from penstock.errors import UsageError
from penstock.model.table import Row

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")  # of a column
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class UnnamedColumn(KeyError):
    """A function takes a column of a row that it was not known to need."""

    def __str__(self) -> str:
        return f"it takes {self.args[0]!r} of the row and does not say so; name it with needs=[...]"


class _Values(dict[str, Any]):
    """The values that a function needs, and no others."""

    def __missing__(self, name: object) -> Any:  # noqa: ANN401 (never returns)
        raise UnnamedColumn(name) if isinstance(name, str) and _NAME.fullmatch(name) else KeyError


class RowFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A function of the user, and how it is called."""

    function: Callable[..., Any]
    columns: tuple[str, ...]  # that it needs, in order
    parameter: str | None  # the one that is given the row or the rows; None: one for each column
    context: str | None  # the one that is given the context
    is_async: bool
    returns: Any  # as annotated; None: it is not
    code: str  # what it is identified by

    def arguments(self, row: Row) -> dict[str, Any]:
        """Of a call for one row."""
        values = _Values((name, row[name]) for name in self.columns)
        return values if self.parameter is None else {self.parameter: values}

    def group_arguments(self, rows: Iterable[Row]) -> dict[str, Any]:
        """Of one call for a whole row group: a list for each column, or one of rows."""
        values = [_Values((name, row[name]) for name in self.columns) for row in rows]
        if self.parameter is not None:
            return {self.parameter: values}
        return {name: [row[name] for row in values] for name in self.columns}


def row_function(
    what: str, function: Callable[..., Any], needs: tuple[str, ...] = (), *, batch: bool = False
) -> RowFunction:
    """Read a function's signature.

    Args:
        what: what a refusal begins with.
        function: of the user.
        needs: columns that the author names; else its code says what it takes of a row.
        batch: it is called once for a whole row group.
    """
    if not callable(function):
        raise UsageError(f"{what} takes a function, got {function!r:.100}.")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(f"{what} is a generator; it returns its value.")
    parameters = parameters_of(what, function)
    hints = hints_of(what, function) if hasattr(function, "__annotations__") else {}
    context = _context_of(parameters, hints)
    named = [name for name in _column_names(what, parameters) if name != context]
    whole = "rows" if batch else "row"
    parameter = whole if whole in named else None
    if parameter is not None and len(named) > 1:
        raise UsageError(
            f"{what} takes `{whole}` and {_listed(set(named) - {whole})}: take the row, or columns."
        )
    if parameter is None:
        columns = tuple(named)
    else:
        columns = needs or _read_columns(what, function, parameter)
    return RowFunction(
        function=function,
        columns=columns,
        parameter=parameter,
        context=context,
        is_async=inspect.iscoroutinefunction(function),
        returns=_value_type(hints.get("return"), batch=batch),
        code=identity_of_code(function),
    )


def _context_of(parameters: list[inspect.Parameter], hints: dict[str, Any]) -> str | None:
    first = parameters[0].name if parameters else None
    kind = hints.get(first) if first is not None else None
    is_context = first == "ctx" or (isinstance(kind, type) and issubclass(kind, Context))
    return first if is_context else None


def _column_names(what: str, parameters: list[inspect.Parameter]) -> list[str]:
    for parameter in parameters:
        if parameter.kind not in _NAMED and parameter.default is inspect.Parameter.empty:
            raise UsageError(
                f"{what} has the parameter {str(parameter)!r:.100}; its parameters are columns, so "
                "write them out one by one."
            )
    return [one.name for one in parameters if one.default is inspect.Parameter.empty]


def _read_columns(what: str, function: Callable[..., Any], parameter: str) -> tuple[str, ...]:
    code = getattr(inspect.unwrap(function), "__code__", None)
    found = tuple(dict.fromkeys(_reads(code, parameter))) if isinstance(code, CodeType) else ()
    if not found:
        raise UsageError(
            f"{what} does not say which columns it takes of the {parameter}; name them with "
            "needs=[...]."
        )
    return found


def _reads(code: CodeType, parameter: str) -> Iterator[str]:
    """The names in `row["name"]` and `row.get("name")`, also in functions inside."""
    steps = [one for one in dis.get_instructions(code) if one.opname not in _SILENT]
    for place, step in enumerate(steps):
        if not _loads(step, parameter):
            continue
        key, then = (*steps[place + 1 : place + 3], None, None)[:2]
        if key is not None and key.argval == "get":
            key, then = then, None
        elif then is None or not _is_subscript(then):
            continue
        if key is not None and key.opname == "LOAD_CONST" and isinstance(key.argval, str):
            yield key.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _reads(constant, parameter)


_SILENT = frozenset({"CACHE", "EXTENDED_ARG", "PRECALL", "PUSH_NULL"})


def _loads(step: dis.Instruction, parameter: str) -> bool:
    """Whether it is the last to be loaded: some Pythons load two variables in one step."""
    last = step.argval[-1] if isinstance(step.argval, tuple) and step.argval else step.argval
    return step.opname.startswith(("LOAD_FAST", "LOAD_DEREF")) and last == parameter


def _is_subscript(step: dis.Instruction) -> bool:
    return step.opname == "BINARY_SUBSCR" or step.argrepr == "[]"


def _value_type(kind: Any, *, batch: bool) -> Any:  # noqa: ANN401 (annotations)
    """The type of one value: that of an element, where a list for a whole row group returns."""
    if not batch:
        return kind
    parts = typing.get_args(kind)
    return parts[0] if len(parts) == 1 else None


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(names)))
