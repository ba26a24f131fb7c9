# SPDX-License-Identifier: Apache-2.0
"""`penstock dataset`: list datasets, show committed slices, and print their rows."""

from __future__ import annotations

import csv
import io
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import date, datetime
from enum import StrEnum
from typing import Annotated, Any

import msgspec
import typer

from penstock.app.app import Penstock
from penstock.app.build import kept_datasets
from penstock.cli.app_command import AppCommand
from penstock.cli.completion import complete_dataset
from penstock.cli.target import AppOption, JsonOption, StoreOption, Target
from penstock.clock import SystemClock, to_micros
from penstock.definitions.dataset import Dataset
from penstock.errors import UsageError
from penstock.model.dataset import Calendar, SliceOutput, moment_name
from penstock.model.job import JobState
from penstock.operate.schedules import kept_end
from penstock.planning.calendars.timestamps import parse_moment
from penstock.planning.graph import closure
from penstock.sentences import counted
from penstock.stores.protocol import DatasetView, SliceRow
from penstock.terminal_text import (
    escaped,
    escaped_lines,
    iso_time,
    print_document,
    safe_json,
    say,
    write,
)

commands = typer.Typer(help="Look at what has been built.", no_args_is_help=True)

PAGE = 1_000  # slices that are read at once
EVER = 1 << 62  # microseconds; before and after everything
ROWS_BETWEEN = ",\n  "

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The dataset.", autocompletion=complete_dataset)
]
FromOption = Annotated[str | None, typer.Option("--from", metavar="D", help="From this moment on.")]
ToOption = Annotated[str | None, typer.Option("--to", metavar="D", help="Up to this moment.")]

_output = msgspec.json.Decoder(SliceOutput).decode


class RowFormat(StrEnum):
    """How rows are printed."""

    CSV = "csv"
    JSON = "json"


@commands.command("list", cls=AppCommand)
def list_datasets(
    app: AppOption = None, store: StoreOption = None, as_json: JsonOption = False
) -> None:
    """List the datasets of the app, and what is committed of each."""
    with Target.named(app=app, store=store).app_for_reading() as opened:
        views = {view.name: view for view in opened.store.datasets().result()}
        if as_json:
            listed = [_listed(opened, name, views.get(name)) for name in _names(opened)]
            for one in listed:
                one["kept_by"] = [*keepers(opened, str(one["name"]))]
            print_document({"datasets": listed})
            return
        if not opened.datasets:
            say("The app has no datasets.")
        width = max(map(len, opened.datasets), default=0)
        for name in _names(opened):
            say(f"{name:<{width}}  {_committed(opened, name, views.get(name))}")
            for unit in keepers(opened, name):
                say(f"{'':<{width}}  {_kept(opened, unit)}")


@commands.command("show", cls=AppCommand)
def show(
    name: NameArgument,
    start: FromOption = None,
    end: ToOption = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most this many slices.")] = 20,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one dataset: its calendar, what it needs, its newest slices and their files."""
    with Target.named(app=app, store=store).app_for_reading() as opened:
        dataset = opened.registry.find_dataset(name)
        now = to_micros(SystemClock().now())
        rows = _newest(opened, dataset.name, *_range(dataset, start, end, now), limit)
        view = next((x for x in opened.store.datasets().result() if x.name == dataset.name), None)
        if as_json:
            newest = [_row_document(row, dataset.calendar) for row in rows]
            print_document({**_listed(opened, dataset.name, view), "newest": newest})
            return
        say(f"{dataset.name}: {escaped(dataset.calendar.text)}, version {dataset.spec.version}")
        needs = ", ".join(need.text for need in dataset.spec.needs) or "nothing"
        say(f"needs: {escaped(needs)}")
        say(f"committed: {_committed(opened, dataset.name, view)}")
        for row in rows:
            output = _output(row.document)
            size = "bytes" if output.rows is None else counted(output.rows, "row")
            say(
                f"  {moment_name(row.at, dataset.calendar)}  {size}, {output.bytes:,} bytes, "
                f"version {escaped(row.version)}  {escaped(output.path)}"
            )
        if view is not None and len(rows) == limit and view.slices > limit:
            say("  … older ones with --limit, or --from and --to")


@commands.command("read", cls=AppCommand)
def read(
    name: NameArgument,
    start: FromOption = None,
    end: ToOption = None,
    form: Annotated[
        RowFormat, typer.Option("--format", help="How rows are printed.")
    ] = RowFormat.CSV,
    app: AppOption = None,
    store: StoreOption = None,
) -> None:
    """Print the rows that are committed, by time; their files are verified."""
    with Target.named(app=app, store=store).app_for_reading() as opened:
        dataset = opened.registry.find_dataset(name)
        now = to_micros(SystemClock().now())
        table = opened.read_range(dataset, *_range(dataset, start, end, now))
        if form is RowFormat.CSV:
            write(_csv_line(table.column_names))
        lead = "[\n  "
        for batch in table.to_batches(max_chunksize=PAGE):
            rows = batch.to_pylist()
            if form is RowFormat.CSV:
                text = "".join(_csv_line(map(_cell, row.values())) for row in rows)
            else:
                text = lead + ROWS_BETWEEN.join(map(_json, rows))
                lead = ROWS_BETWEEN
            if not write(text):
                return
        if form is RowFormat.JSON:
            write("\n]\n" if table.num_rows else "[]\n")


def _range(
    dataset: Dataset[..., Any], start: str | None, end: str | None, now: int
) -> tuple[int, int]:
    """From when to when, as it was typed."""
    first = -EVER if start is None else parse_moment(start, dataset.calendar, now)
    last = EVER if end is None else parse_moment(end, dataset.calendar, now)
    if first > last:
        raise UsageError(f"The start {start} lies after the end {end}; swap them.")
    return first, last


def _names(app: Penstock) -> list[str]:
    return sorted(app.datasets)


def keepers(app: Penstock, name: str) -> Iterator[str]:
    """The schedules that keep a dataset current, or something that needs it."""
    specs = app.registry.dataset_specs
    for unit, keeps in kept_datasets(app.registry).items():
        if set(keeps.targets) <= specs.keys() and name in closure(specs, keeps.targets):
            yield unit


def _kept(app: Penstock, name: str) -> str:
    """How a schedule keeps a dataset current."""
    unit = app.store.unit(name).result()
    if unit is None:
        return f"to be kept current by {name}, which no daemon has armed yet"
    ticks = f", next try {iso_time(unit.available_at)}" if unit.state is JobState.QUEUED else ""
    ticks = ", paused" if unit.rests else ticks
    end = kept_end(app.store, unit)
    failed = ""
    if end is not None and end.failed:
        failed = f"; {counted(end.failed, 'job')} failed in its last plan: {end.failures[0]}"
    return f"kept current by {name} ({unit.timing}){ticks}{failed}"


def _committed(app: Penstock, name: str, view: DatasetView | None) -> str:
    if view is None:
        return "nothing yet"
    calendar = app.datasets[name].calendar
    first, last = (moment_name(at, calendar) for at in (view.first_at, view.last_at))
    return f"{counted(view.slices, 'slice')}, {first if first == last else f'{first} to {last}'}"


def _listed(app: Penstock, name: str, view: DatasetView | None) -> dict[str, object]:
    spec = app.datasets[name].spec
    return {
        "name": name,
        "calendar": spec.calendar.text,
        "version": spec.version,
        "needs": [need.text for need in spec.needs],
        "slices": 0 if view is None else view.slices,
        "first_at": None if view is None else iso_time(view.first_at),
        "last_at": None if view is None else iso_time(view.last_at),
    }


def _row_document(row: SliceRow, calendar: Calendar) -> dict[str, object]:
    output = _output(row.document)
    return {
        "at": iso_time(row.at),
        "name": moment_name(row.at, calendar),
        "version": row.version,
        "plan_id": row.plan_id,
        "path": output.path,
        "kind": output.kind,
        "rows": output.rows,
        "bytes": output.bytes,
        "checksum": output.checksum,
    }


def _newest(app: Penstock, name: str, first: int, last: int, limit: int) -> list[SliceRow]:
    """The newest slices of a range, the oldest of them first."""
    rows: deque[SliceRow] = deque(maxlen=limit)
    while page := app.store.manifests(name, first, last, PAGE).result().rows:
        rows.extend(page)
        first = page[-1].at + 1
    return list(rows)


def _csv_line(cells: Iterable[object]) -> str:
    """One line of CSV; control characters are escaped for a terminal only."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    line = text.getvalue()
    return escaped_lines(line) + "\n" if sys.stdout.isatty() else line


def _cell(value: object) -> object:
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, dict | list):
        return _json(value)
    if isinstance(value, bytes):
        return value.hex()
    return value


def _json(value: object) -> str:
    return safe_json(msgspec.json.encode(value, enc_hook=str).decode())
