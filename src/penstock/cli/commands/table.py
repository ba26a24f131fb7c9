# SPDX-License-Identifier: Apache-2.0
"""`penstock table`: list tables, generate their rows, show what is there, and export it."""

from __future__ import annotations

import csv
import json
import os
import shutil
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from penstock.app.app import Penstock
from penstock.cli.app_command import AppCommand
from penstock.cli.commands.build import ended_report
from penstock.cli.commands.results import replaced
from penstock.cli.commands.run_supervised import (
    ProcessesOption,
    ProcessSlotsOption,
    SlotsOption,
    ThreadsOption,
    spec_of,
    store_of,
    supervise,
    target_of,
)
from penstock.cli.target import AppOption, JsonOption, StoreOption, Target
from penstock.clock import SystemClock
from penstock.errors import UsageError
from penstock.model.plan import JobResult
from penstock.model.spending import format_usd
from penstock.process_identity import own_identity
from penstock.sentences import command, counted
from penstock.supervisor.protocol import BuildSpec
from penstock.supervisor.sd_notify import Announcer
from penstock.terminal_text import escaped, format_table, print_document, safe_json, say, warn

if TYPE_CHECKING:
    from penstock.app.table import AppTable, TableResult

commands = typer.Typer(help="Generate tables and look at them.", no_args_is_help=True)

REASONS_MAX = 10  # of dropped rows that are shown
REASON_WIDTH = 90

NameArgument = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="The table; the only one otherwise.")
]
OutOption = Annotated[str | None, typer.Option("--out", metavar="DIR", help="Where its parts lie.")]


class ExportFormat(StrEnum):
    """How rows are written."""

    PARQUET = "parquet"
    JSONL = "jsonl"
    CSV = "csv"
    HF = "hf"


@commands.command("list", cls=AppCommand)
def list_tables(
    out: OutOption = None,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the tables of the app, and how many rows of each are there."""
    with Target.named(app=app, store=store, out=out).app_for_reading() as opened:
        listed = [_listed(table, out) for table in opened.tables.values()]
        if as_json:
            print_document({"tables": listed})
            return
        if not listed:
            say("The app has no tables.")
            return
        names = ("name", "columns", "rows", "dropped")
        for line in format_table(names, [[one[name] for name in names] for one in listed]):
            say(line)


@commands.command("generate", cls=AppCommand)
def generate(
    context: typer.Context,
    name: NameArgument = None,
    rows: Annotated[
        int | None,
        typer.Option(
            "--rows", metavar="N", min=1, help="How many; each record of the seed otherwise."
        ),
    ] = None,
    out: OutOption = None,
    limit_usd: Annotated[
        str | None,
        typer.Option(
            "--limit-usd", metavar="X", help="Spend no more dollars than that in this run."
        ),
    ] = None,
    retry_dropped: Annotated[
        bool, typer.Option("--retry-dropped", help="Make rows that were dropped once more.")
    ] = False,
    processes: ProcessesOption = 1,
    slots: SlotsOption = None,
    threads: ThreadsOption = None,
    process_slots: ProcessSlotsOption = None,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Make the rows of a table that are not there; the same command goes on after a crash."""
    target = target_of(app, store, slots, threads, process_slots)
    for flag, value in (("--out", out), ("--limit-usd", limit_usd)):
        if value is not None:
            target.flags[flag] = value
    loaded = target.app()
    found = _table(loaded, name)
    count = found.row_count(rows)
    spec = BuildSpec(
        targets=(found.name,),
        start="",
        end="",
        eager=True,
        yes=True,
        rows=count,
        retry_dropped=retry_dropped,
        mark=own_identity(),
    )
    run = spec_of(context, target, app, processes=processes, drain=False, build=spec)
    code, supervisor = supervise(run, target, Announcer(SystemClock()))
    report = ended_report(supervisor, target)
    if supervisor.phases.planned is None:
        return code  # it did not come that far; why was said
    with store_of(supervisor, target) as opened:
        if opened is None:
            return code or 1
        loaded.use_store(opened)
        result = found.result(count, out)
        if as_json:
            print_document(_document(result))
        else:
            _tell(result)
        if report is not None and report.failed:
            _warn_of(report.failed)
            return code or 1
        if not code and not result.made:
            _warn_of_nothing(result)
        return code or int(not result.made)


@commands.command("preview", cls=AppCommand)
def preview(
    name: NameArgument = None,
    rows: Annotated[int, typer.Option("--rows", metavar="N", min=1, help="How many.")] = 5,
    out: OutOption = None,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Make a few rows apart from the table and print them, the first one with what it has cost."""
    with Target.named(app=app, store=store, out=out).opened_app() as opened:
        result = _table(opened, name).preview(rows, out=out)
        if as_json:
            print_document({**_document(result), "preview": [*map(_shown, result.rows())]})
        else:
            _tell_record(result)
            _tell(result)
        report = result.report
        if report is not None and report.failed:
            _warn_of(report.failed)
            return 1
        if not result.made:
            _warn_of_nothing(result)
        return int(not result.made)


@commands.command("show", cls=AppCommand)
def show(
    name: NameArgument = None,
    out: OutOption = None,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what is there of a table: rows, why others were dropped, and what columns have cost."""
    with Target.named(app=app, store=store, out=out).app_for_reading() as opened:
        result = _table(opened, name).result(None, out)
        if as_json:
            print_document(_document(result))
        else:
            _tell(result)


@commands.command("dropped", cls=AppCommand)
def dropped(
    name: NameArgument = None,
    out: OutOption = None,
    app: AppOption = None,
    store: StoreOption = None,
) -> None:
    """Print the rows that were dropped, as lines of JSON: row, column, reason, values so far."""
    with Target.named(app=app, store=store, out=out).app_for_reading() as opened:
        for one in _table(opened, name).result(None, out).each_dropped():
            if not say(safe_json(json.dumps(one, ensure_ascii=False))):
                return


@commands.command("export", cls=AppCommand)
def export(
    name: NameArgument = None,
    form: Annotated[
        ExportFormat, typer.Option("--to", help="How rows are written; hf: a folder for a hub.")
    ] = ExportFormat.PARQUET,
    file: Annotated[
        Path | None,
        typer.Option("--file", metavar="PATH", help="Where to; NAME.FORM otherwise."),
    ] = None,
    out: OutOption = None,
    app: AppOption = None,
    store: StoreOption = None,
) -> None:
    """Write the rows of a table to one file, or to a folder as dataset hubs expect it."""
    with Target.named(app=app, store=store, out=out).app_for_reading() as opened:
        table = _table(opened, name)
        result = table.result(None, out)
        if not result.made:
            raise UsageError(
                f"Table {escaped(table.name)!r} has no rows yet; make some with "
                f"'{command('table', 'generate', table.name)}'."
            )
        ending = "" if form is ExportFormat.HF else f".{form.value}"
        place = file or Path(f"{table.name}{ending}")
        if form is ExportFormat.HF:
            _write_folder(result, place)
        else:
            with replaced(place, "--file") as opened_file:
                _WRITERS[form](result, opened_file)
        warn(
            f"Wrote {counted(result.made, 'row')} of {escaped(table.name)} to "
            f"{escaped(str(place))}."
        )


def _table(app: Penstock, name: str | None) -> AppTable:
    """The table that is meant."""
    if name is not None:
        return app.registry.find_table(name)
    if len(app.tables) == 1:
        return next(iter(app.tables.values()))
    if not app.tables:
        raise UsageError(f"The app {app.name!r} has no tables; define one with app.table(...).")
    names = ", ".join(map(escaped, app.tables))
    raise UsageError(f"The app {app.name!r} has several tables ({names}); say which one is meant.")


def _listed(table: AppTable, out: str | None) -> dict[str, str | int]:
    result = table.result(None, out)
    return {
        "name": table.name,
        "columns": len(table.columns),
        "rows": result.made,
        "dropped": result.dropped_count,
    }


def _warn_of(failed: Sequence[JobResult]) -> None:
    """Say how many row groups have failed, and why the first one has."""
    error = failed[0].error
    why = "" if error is None else f" {escaped(error.kind)}: {escaped(error.message)}"
    warn(
        f"{counted(len(failed), 'row group')} failed, and the same command retries what is "
        f"missing; the first cause:{why}"
    )


def _warn_of_nothing(result: TableResult) -> None:
    """Say that there are no rows, and why the first one was dropped."""
    first = next(result.each_dropped(), None)
    why = "" if first is None else f": {escaped(first['column'])}: {escaped(first['reason'])}"
    warn(f"No rows of {escaped(result.table.name)} were made; the first one was dropped{why}.")


# ── What is told ──────────────────────────────────────────────────────────────────────────────────


def _tell(result: TableResult) -> None:
    rows = f"{counted(result.made, 'row')} of {escaped(result.table.name)}"
    lost = f", {result.dropped_count:,} dropped" if result.dropped_count else ""
    missing = "" if result.is_whole else f", {result.missing:,} not made yet"
    say(f"{rows}{lost}{missing}")
    for reason, count in [*result.reasons.items()][:REASONS_MAX]:
        say(f"  {count:>7,}  {escaped(reason)[:REASON_WIDTH]}")
    if len(result.reasons) > REASONS_MAX:
        more = command("table", "dropped", result.table.name)
        say(f"  … and {len(result.reasons) - REASONS_MAX:,} more reasons: '{more}'")
    head = ("column", "cells", "failed", "calls", "reused", "tokens in", "out", "spent")
    lines = [_column_line(name, one) for name, one in result.columns.items()]
    for line in format_table(head, lines) if lines else ():
        say(line)


def _tell_record(result: TableResult) -> None:
    """Each row as lines of column and value; below the first one what its cells have cost."""
    cells = {(cell["row"], cell["column"]): cell for cell in result.cells()}
    for number, row in enumerate(result.rows()):
        say(f"row {number}")
        for column, value in row.items():
            text = value if isinstance(value, str) else json.dumps(_shown(value), default=str)
            cell = cells.get((number, column))
            cost = "" if cell is None or number else f"  [{_cost(cell)}]"
            say(f"  {column}: {escaped(text)}{cost}")


def _cost(cell: dict[str, Any]) -> str:
    money = "cost unknown" if cell["micros"] is None else f"${format_usd(cell['micros'])}"
    waited, served = cell["waited_seconds"] or 0.0, cell["served_seconds"] or 0.0
    return f"{money}, waited {waited:.1f} s, served {served:.1f} s"


def _shown(value: Any) -> Any:  # noqa: ANN401
    """A value as JSON has it."""
    return json.loads(json.dumps(value, default=str))


def _column_line(name: str, one: Any) -> tuple[str, ...]:  # noqa: ANN401 (ColumnFigures)
    return (
        name,
        f"{one.cells:,}",
        f"{one.failed:,}",
        f"{one.calls:,}",
        f"{one.reused:,}",
        _known(one.input_tokens),
        _known(one.output_tokens),
        "unknown" if one.micros is None else f"${format_usd(one.micros)}",
    )


def _known(count: int | None) -> str:
    return "unknown" if count is None else f"{count:,}"


def _document(result: TableResult) -> dict[str, object]:
    return {
        "table": result.table.name,
        "rows": result.made,
        "dropped": result.dropped_count,
        "missing": result.missing,
        "reasons": result.reasons,
        "usd": result.usd,
        "columns": {
            name: {field: getattr(one, field) for field in one.__struct_fields__}
            for name, one in result.columns.items()
        },
    }


# ── Files ─────────────────────────────────────────────────────────────────────────────────────────


def _write_parquet(result: TableResult, file: IO[bytes]) -> None:
    from penstock.outputs.parquet import write_tables

    write_tables(file, result.schema, result.tables())


def _write_lines(result: TableResult, file: IO[bytes]) -> None:
    for row in result.rows():
        file.write(json.dumps(row, ensure_ascii=False, default=str).encode() + b"\n")


def _write_csv(result: TableResult, file: IO[bytes]) -> None:
    names = result.schema.names
    writer = csv.writer(_Encoded(file), lineterminator="\n")
    writer.writerow(names)
    for row in result.rows():
        writer.writerow([_cell(row.get(name)) for name in names])


class _Encoded:
    """What the csv module writes to."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, text: str) -> None:
        self._file.write(text.encode())


def _cell(value: object) -> object:
    """What is nested, as JSON."""
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, default=str)
    return value


_WRITERS = {
    ExportFormat.PARQUET: _write_parquet,
    ExportFormat.JSONL: _write_lines,
    ExportFormat.CSV: _write_csv,
}


def _write_folder(result: TableResult, place: Path) -> None:
    """A folder with a card and `data/*.parquet`; it is there whole, or not at all."""
    if place.exists():
        raise UsageError(
            f"{escaped(str(place))} is there already; name another folder with --file, or remove "
            "it."
        )
    part = place.with_name(f".{place.name}.{os.getpid()}.part")
    try:
        (part / "data").mkdir(parents=True)
        with (part / "data" / "train-00000-of-00001.parquet").open("xb") as file:
            _write_parquet(result, file)
        (part / "README.md").write_text(_card(result), encoding="utf-8")
        part.rename(place)
    except OSError as error:
        raise UsageError(
            f"{escaped(str(place))} cannot be written: {error.strerror or error}. Name another "
            "folder with --file."
        ) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _card(result: TableResult) -> str:
    """The card of a dataset hub."""
    columns = "\n".join(
        f"| `{name}` | {column.kind} |"
        for name, column in result.table.columns.items()
        if column.keep
    )
    return (
        "---\n"
        "configs:\n- config_name: default\n  data_files:\n  - split: train\n"
        "    path: data/train-*.parquet\n"
        f"size_categories:\n- {_size_category(result.made)}\n"
        "---\n\n"
        f"# {result.table.name}\n\n"
        f"{counted(result.made, 'row')}, generated by Penstock.\n\n"
        f"| column | made by |\n| --- | --- |\n{columns}\n"
    )


def _size_category(rows: int) -> str:
    """As hubs name sizes."""
    return next((name for most, name in _SIZES if rows < most), "n>10M")


_SIZES = (
    (1_000, "n<1K"),
    (10_000, "1K<n<10K"),
    (100_000, "10K<n<100K"),
    (1_000_000, "100K<n<1M"),
    (10_000_000, "1M<n<10M"),
)
