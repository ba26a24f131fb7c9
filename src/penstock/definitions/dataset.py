# SPDX-License-Identifier: Apache-2.0
"""A dataset as declared: its function, calendar, dependencies, version and batch size."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
import typing
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, timedelta
from functools import cached_property
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NoReturn, Protocol

from penstock.definitions.context import Context
from penstock.definitions.task import P, R, Task, TaskOptions, hints_of, parameters_of
from penstock.errors import UsageError
from penstock.model.dataset import (
    Calendar,
    DatasetSpec,
    Need,
    check_dataset_name,
    exact,
    latest,
    lookback,
    window,
)
from penstock.model.job import SLICE

if TYPE_CHECKING:
    import pyarrow

#: A time, a date (its midnight), or a text of either; what names no zone is local to a calendar.
Moment = datetime | date | str

BATCH_MAX = 10_000  # slices of one job
VERSION_LENGTH_MAX = 100

_CALENDAR_PARTS = ("text", "tz", "daily", "between", "before")
_MISSING = object()
_ONE = (datetime,)
_MANY = (
    Sequence[datetime],
    typing.Sequence[datetime],
    list[datetime],
    tuple[datetime, ...],
    Iterable[datetime],
)


class SliceSource(Protocol):
    """Whoever knows where the slices of an app are."""

    def read_slices(
        self, dataset: Dataset[..., Any], start: Moment | None, end: Moment | None
    ) -> pyarrow.Table: ...

    def slice_files(
        self, dataset: Dataset[..., Any], start: Moment | None, end: Moment | None
    ) -> list[Path]: ...


class Dataset(Generic[P, R]):
    """A named output with one slice for each moment of its calendar."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        calendar: Calendar,
        needs: Iterable[Dataset[..., Any] | Need | str],
        version: int | str,
        batch: int,
        options: TaskOptions,
        source: SliceSource,
    ) -> None:
        what = f"Dataset {name!r}"
        check_dataset_name(name)
        _check_calendar(what, calendar)
        self.name = name
        self.function = function
        self.calendar = calendar
        self.needs = _needs(what, needs)
        self.version = _version(what, version)
        self.batch = _batch(what, batch)
        self._source = source
        _check_parameters(what, function, self.needs, self.batch)
        _check_limits(what, options)
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise UsageError(f"{what} is a generator; it returns its output.")
        self.is_async = inspect.iscoroutinefunction(function)
        shape = _async_shape if self.is_async else _shape
        #: How its jobs are scheduled; a run gives it a body.
        self.task: Task[..., Any] = Task(f"{SLICE}{name}", shape, options)

    def __repr__(self) -> str:
        return f"<Dataset {self.name}>"

    def __call__(self, ctx: Context, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself, here and now, as a test may want to."""
        result: R = self.function(ctx, *args, **kwargs)
        return result

    @property
    def spec(self) -> DatasetSpec:
        """The same, as planning sees it."""
        return DatasetSpec(
            name=self.name,
            calendar=self.calendar,
            needs=self.needs,
            version=self.version,
            batch=self.batch,
        )

    @cached_property
    def code(self) -> str | None:
        """A fingerprint of the function, the same at every start; None: it is no plain function.

        Comments, blank lines, where it stands and its decorators do not count.
        """
        return _fingerprint(self.function)

    @property
    def returns_rows(self) -> bool:
        """Whether its type says that it returns rows; what else it may return is not known."""
        kind = hints_of(f"Dataset {self.name!r}", self.function).get("return")
        if self.batch > 1:
            kind = (*typing.get_args(kind), None, None)[1]
        return typing.get_origin(kind) in (list, Sequence)

    def latest(self) -> Need:
        """The newest slice at or before each moment; the same as the dataset alone."""
        return latest(self.name)

    def exact(self) -> Need:
        """The slice at that very moment."""
        return exact(self.name)

    def lookback(self, count: int) -> Need:
        """The newest `count` slices at or before each moment."""
        return lookback(self.name, count)

    def window(self, span: timedelta) -> Need:
        """All slices of a span that ends with each moment: after `at - span`, up to `at`."""
        return window(self.name, span)

    def read(self, start: Moment | None = None, end: Moment | None = None) -> pyarrow.Table:
        """The committed slices from `start` up to, and without, `end`, as one Arrow table.

        A date is its midnight by the clocks of the calendar. Checksums are verified.
        """
        return self._source.read_slices(self, start, end)

    def files(self, start: Moment | None = None, end: Moment | None = None) -> list[Path]:
        """The files of the same slices, in order of time: for DuckDB, polars and others."""
        return self._source.slice_files(self, start, end)


class DatasetDecorator(Protocol):
    """What `@app.dataset(...)` is: keeps the parameters and the result of the function."""

    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Dataset[P, R]: ...


def _fingerprint(function: Callable[..., Any]) -> str | None:
    """Of the code that runs, not of its file, which may have been edited since."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if not isinstance(code, CodeType):
        return None
    python = f"{importlib.util.MAGIC_NUMBER.hex()}-{sys.flags.optimize}"  # what compiled it
    digest = hashlib.blake2b(constant_text(code).encode(), digest_size=8).hexdigest()
    return f"{python}:{digest}"


def constant_text(value: object) -> str:
    """A constant of compiled code, or such code, in words that are the same in every process."""
    if isinstance(value, CodeType):
        names = value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars
        constants = [constant_text(one) for one in value.co_consts]
        return repr((value.co_code, names, value.co_flags, value.co_exceptiontable, constants))
    if isinstance(value, tuple):
        return repr([constant_text(one) for one in value])
    if isinstance(value, frozenset):
        return repr(sorted(constant_text(one) for one in value))
    return f"{type(value).__name__} {value!r}"


def _shape(ctx: Context, at: list[int]) -> NoReturn:
    raise UsageError("A dataset is built by app.build(...) or `penstock build`, not as a task.")


async def _async_shape(ctx: Context, at: list[int]) -> NoReturn:
    _shape(ctx, at)


def _check_calendar(what: str, calendar: object) -> None:
    """Check that all parts are there, without calling any: an exchange would be imported."""
    parts = (inspect.getattr_static(calendar, part, _MISSING) for part in _CALENDAR_PARTS)
    if isinstance(calendar, type) or any(part is _MISSING for part in parts):
        raise UsageError(
            f"{what}: calendar= is a calendar of penstock.calendars such as Daily(), got "
            f"{calendar!r:.100}."
        )


def _needs(what: str, needs: object) -> tuple[Need, ...]:
    if isinstance(needs, str | Need | Dataset) or not isinstance(needs, Iterable):
        raise UsageError(f"{what}: needs= is a list such as [prices], got {needs!r:.100}.")
    found: dict[str, Need] = {}
    for given in needs:
        need = _need(what, given)
        parameter = need.argument
        if parameter in found:
            raise UsageError(
                f"{what} needs {need.dataset!r} and {found[parameter].dataset!r}, whose slices "
                f"would both be passed as {parameter!r}; drop one need, or rename a dataset."
            )
        found[parameter] = need
    return tuple(found.values())


def _need(what: str, given: object) -> Need:
    if isinstance(given, Need):
        return given
    if isinstance(given, Dataset):
        return given.latest()
    if isinstance(given, str):
        return latest(given)
    raise UsageError(
        f"{what}: a need is a dataset, its name, or such as prices.lookback(20), got "
        f"{given!r:.100}."
    )


def _version(what: str, version: object) -> str:
    if isinstance(version, bool) or not isinstance(version, int | str):
        raise UsageError(f"{what}: version= is a whole number or a text, got {version!r:.100}.")
    text = str(version)
    if not 1 <= len(text) <= VERSION_LENGTH_MAX or not text.isprintable():
        raise UsageError(
            f"{what}: version= has 1 to {VERSION_LENGTH_MAX} printable characters, got "
            f"{version!r:.150}."
        )
    return text


def _batch(what: str, batch: object) -> int:
    if type(batch) is not int or not 1 <= batch <= BATCH_MAX:
        raise UsageError(
            f"{what}: batch= is a whole number from 1 to {BATCH_MAX:,}, got {batch!r:.100}."
        )
    return batch


def _check_limits(what: str, options: TaskOptions) -> None:
    for dimension, value in options.limits.items():
        if not isinstance(value, str):
            raise UsageError(
                f"{what}: the limit {dimension!r} of a dataset is a text, got {value!r:.100}."
            )


def _check_parameters(
    what: str, function: Callable[..., Any], needs: tuple[Need, ...], batch: int
) -> None:
    """`(ctx, at, one parameter for each need, named like it)`."""
    parameters = parameters_of(what, function)
    wanted = ["ctx", "at", *(need.argument for need in needs)]
    wants = f"({', '.join(wanted)})"
    names = [parameter.name for parameter in parameters]
    has = f"({', '.join(map(str, parameters))})"
    named = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    if len(parameters) < 2 or parameters[1].name != "at":
        raise UsageError(f"{what} must take {wants}: a context and `at`; it takes {has:.200}.")
    for parameter in parameters[1:]:
        if parameter.kind not in named:
            raise UsageError(f"{what} must take {wants}, each by its name; it takes {has:.200}.")
    for name in wanted[2:]:
        if name not in names:
            raise UsageError(
                f"{what} needs {name!r} and has no parameter of that name; it must take {wants}."
            )
    for parameter in parameters[2:]:
        if parameter.name not in wanted and parameter.default is inspect.Parameter.empty:
            raise UsageError(
                f"{what} has the parameter {parameter.name!r}, but no need of that name; "
                f"it must take {wants}."
            )
    _check_at(what, function, batch)


def _check_at(what: str, function: Callable[..., Any], batch: int) -> None:
    kind = hints_of(what, function).get("at")
    if kind is None or kind is Any:
        return
    if batch == 1 and kind not in _ONE:
        raise UsageError(
            f"{what}: `at` is one datetime, so write `at: datetime` (or batch=N for several), got "
            f"{_shown(kind)}."
        )
    if batch > 1 and kind not in _MANY:
        raise UsageError(
            f"{what} builds up to {batch} slices at once, so write `at: Sequence[datetime]`, got "
            f"{_shown(kind)}."
        )


def _shown(kind: object) -> str:
    return kind.__name__ if type(kind) is type else str(kind)[:100]
