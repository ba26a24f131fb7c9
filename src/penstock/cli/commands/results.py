# SPDX-License-Identifier: Apache-2.0
"""`penstock results`: exports what jobs of a task returned, streamed from the store."""

from __future__ import annotations

import csv
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from itertools import chain, islice
from pathlib import Path
from typing import IO, Annotated, Any

import msgspec
import typer

from penstock.cli.target import AppOption, StoreOption, Target
from penstock.errors import UnknownTask, UsageError
from penstock.model.views import FIRST_END
from penstock.operate.actions import unknown_task
from penstock.outputs.parquet import ColumnType, write_rows
from penstock.sentences import counted
from penstock.stores.protocol import Store
from penstock.terminal_text import escaped, escaped_lines, safe_json, warn, write

PAGE_RESULTS = 1_000  # of one read
ROW_GROUP = 50_000  # rows of a Parquet file that are in memory at a time

Row = dict[str, Any]


class ResultFormat(StrEnum):
    """How results are written."""

    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"


def results(
    task: Annotated[str, typer.Argument(metavar="TASK", help="The task.")],
    form: Annotated[
        ResultFormat, typer.Option("--to", help="How they are written.")
    ] = ResultFormat.JSONL,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Where to; standard output otherwise."),
    ] = None,
    app: AppOption = None,
    store: StoreOption = None,
) -> None:
    """Export what the done jobs of a task returned, in the order of their ends.

    As JSON lines each is {"key": …, "result": …}. In CSV and Parquet the fields of an object are
    columns beside the key; what is nested in them is JSON text.
    """
    if form is ResultFormat.PARQUET and out is None:
        raise UsageError(
            "A Parquet file cannot be written to standard output; name it with --out FILE.parquet."
        )
    target = Target.named(app=app, store=store)
    with target.opened_store() as opened:
        _mean_app_of(target, opened, task)
        _check_task(opened, task)
        export = Export(lambda: _results(opened, task))
        if out is None:
            _print(export, form)
            return
        with replaced(out) as file:
            _write(export, form, file)
        warn(f"Wrote {counted(export.count, 'result')} of {escaped(task)} to {escaped(str(out))}.")


def _mean_app_of(target: Target, store: Store, task: str) -> None:
    """Let the store be about the app that has jobs of the task."""
    owners = [app.name for app in store.apps().result() if task in app.tasks]
    if len(owners) > 1 and "--app" not in target.flags:
        names = ", ".join(repr(escaped(name)) for name in owners)
        raise UsageError(
            f"Several apps of this store have a task {escaped(task)!r} ({names}); say which is "
            f"meant with --app {escaped(owners[-1])}."
        )
    named = str(target.flags.get("--app", ""))
    if len(owners) > 1:
        store.look_as(named if named in owners else target.app().name).result()


def _check_task(store: Store, task: str) -> None:
    unknown = unknown_task(store, task)
    if unknown is not None:
        known = sorted(store.stats().result().shown_tasks)
        near = f" The nearest is {escaped(unknown.nearest)!r}." if unknown.nearest else ""
        listed = ", ".join(map(escaped, islice(known, 10))) or "none"
        raise UnknownTask(
            f"The store has no job of a task named {escaped(task)!r}.{near} Tasks with jobs: "
            f"{listed}."
        )


def _results(store: Store, task: str) -> Iterator[tuple[str, str | None]]:
    mark, more = FIRST_END, True
    while more:
        page = store.results(task, mark, PAGE_RESULTS).result()
        yield from ((row.key, row.result) for row in page.rows)
        mark, more = page.last, page.more


class Export:
    """Owns one pass or two over the results of a task: which columns there are, then the rows."""

    def __init__(self, read: Callable[[], Iterator[tuple[str, str | None]]]) -> None:
        self._read = read
        self.count = 0  # of what the last pass has read

    def lines(self) -> Iterator[str]:
        """A JSON document a line."""
        for key, text in self._counted():
            yield f'{{"key": {msgspec.json.encode(key).decode()}, "result": {text or "null"}}}\n'

    def columns(self) -> dict[str, ColumnType]:
        """What the rows have, in the order in which it is first seen."""
        found: dict[str, set[type]] = {"key": {str}}
        for row in self._rows():
            for name, value in row.items():
                found.setdefault(name, set()).add(type(value))
        return {name: _column_type(kinds) for name, kinds in found.items()}

    def rows(self, columns: dict[str, ColumnType]) -> Iterator[Row]:
        """Every row, with each of these columns."""
        for row in self._rows():
            yield {name: _cell(row.get(name), kind) for name, kind in columns.items()}

    def _rows(self) -> Iterator[Row]:
        for key, text in self._counted():
            value = None if text is None else msgspec.json.decode(text)
            if not isinstance(value, dict):
                yield {"key": key, "result": value}
                continue
            fields = (("result.key" if name == "key" else name, one) for name, one in value.items())
            yield {"key": key, **dict(fields)}

    def _counted(self) -> Iterator[tuple[str, str | None]]:
        self.count = 0
        for one in self._read():
            self.count += 1
            yield one


def _column_type(kinds: set[type]) -> ColumnType:
    """The narrowest type that holds all values of a column."""
    kinds = kinds - {type(None)}
    for kind, members in (
        (ColumnType.TRUTH, {bool}),
        (ColumnType.WHOLE, {int}),
        (ColumnType.NUMBER, {int, float}),
    ):
        if kinds and kinds <= members:
            return kind
    return ColumnType.TEXT


def _cell(value: object, kind: ColumnType) -> object:
    if kind is not ColumnType.TEXT or value is None or isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()


def _print(export: Export, form: ResultFormat) -> None:
    """To a pipe as it is; on a terminal control characters are escaped."""
    shown = (lambda text: escaped_lines(text) + "\n") if sys.stdout.isatty() else None
    texts = export.lines() if form is ResultFormat.JSONL else _csv_lines(export)
    for text in texts:
        line = safe_json(text) if form is ResultFormat.JSONL else text
        if not write(line if shown is None else shown(line.rstrip("\n"))):
            return  # nobody reads any more


def _csv_lines(export: Export) -> Iterator[str]:
    columns = export.columns()
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    rows: Iterable[Iterable[object]] = (row.values() for row in export.rows(columns))
    for cells in chain([columns], rows):
        writer.writerow(cells)
        yield text.getvalue()
        text.seek(0)
        text.truncate()


def _write(export: Export, form: ResultFormat, file: IO[bytes]) -> None:
    if form is ResultFormat.PARQUET:
        columns = export.columns()
        write_rows(file, columns, _batches(export.rows(columns)))
        return
    texts = export.lines() if form is ResultFormat.JSONL else _csv_lines(export)
    for text in texts:
        file.write(text.encode())


def _batches(rows: Iterator[Row]) -> Iterator[list[Row]]:
    while batch := list(islice(rows, ROW_GROUP)):
        yield batch


@contextmanager
def replaced(out: Path, option: str = "--out") -> Iterator[IO[bytes]]:
    """A file that takes the place of another once it is complete; an option names it."""
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        with part.open("xb") as file:
            yield file
        part.replace(out)
    except OSError as error:
        raise UsageError(
            f"{escaped(str(out))} cannot be written: {error.strerror or error}. Name another file "
            f"with {option}."
        ) from None
    finally:
        part.unlink(missing_ok=True)
