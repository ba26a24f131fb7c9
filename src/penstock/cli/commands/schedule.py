# SPDX-License-Identifier: Apache-2.0
"""`penstock schedule`: units of schedules, their pauses, early ticks and cursors."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from penstock.cli.app_command import AppCommand
from penstock.cli.target import AppOption, JsonOption, StoreOption, Target, only_utf8
from penstock.model.job import SCHEDULE, JobState
from penstock.model.plan import KeptEnd
from penstock.model.schedule import UnitView
from penstock.operate import schedules
from penstock.sentences import command, counted
from penstock.stores.protocol import Store
from penstock.terminal_text import escaped, format_table, iso_time, print_document, say

NamesArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="UNIT…", help="A unit, or a schedule for all its units.", callback=only_utf8
    ),
]
NameArgument = Annotated[
    str, typer.Argument(metavar="UNIT", help="A unit of a schedule.", callback=only_utf8)
]

commands = typer.Typer(
    help="Look at units of schedules, pause and resume them, let them tick now, reset cursors.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@commands.command("list", cls=AppCommand)
def list_units(
    degraded: Annotated[
        bool, typer.Option("--degraded", help="Only units whose last try failed.")
    ] = False,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the units of all schedules: how each is, when it ticks next, and how ticks went."""
    with Target.named(app=app, store=store).opened_store() as opened:
        units = [unit for unit in schedules.all_units(opened) if unit.is_failing or not degraded]
        plans = {unit.key: end for unit in units if (end := schedules.kept_end(opened, unit))}
    if as_json:
        print_document({"units": [_document(unit, plans.get(unit.key)) for unit in units]})
        return
    head = ["unit", "timing", "is", "next try", "ticks", "missed", "failed"]
    rows: list[list[str | int]] = [
        [
            escaped(unit.key.removeprefix(SCHEDULE)),
            unit.timing,
            _word(unit) + _failures(plans.get(unit.key)),
            _next_try(unit) or "-",
            unit.ticks,
            unit.missed,
            unit.failed,
        ]
        for unit in units
    ]
    for line in format_table(head, rows, left=4):
        say(line)


@commands.command("tick", cls=AppCommand)
def tick(
    names: NamesArgument,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Let units that wait for their time, or for another try, tick now; a daemon must run."""
    target = Target.named(app=app, store=store)
    with target.opened_store() as opened:
        _mean(target, opened, names)
        units = {unit.key: unit for name in names for unit in schedules.units_named(opened, name)}
        found = schedules.tick_now(opened, [*units.values()])
    if as_json:
        print_document({"ticking": [*found.now], "left": [unit.key for unit in found.left]})
        return 1 if found.left else 0
    for key in found.now:
        say(f"{escaped(key)!r} ticks now.")
    for unit in found.left:
        say(f"{escaped(unit.key)!r} is left as it is: {_word(unit)}.")
    return 1 if found.left else 0


@commands.command("pause", cls=AppCommand)
def pause(
    names: NamesArgument,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let units tick no more until they are resumed; a tick that runs goes on to its end."""
    target = Target.named(app=app, store=store)
    with target.opened_store() as opened:
        _mean(target, opened, names)
        changed = {name: schedules.pause(opened, name) for name in names}
    if as_json:
        print_document({"paused": True, "changed": changed})
        return
    for name, is_new in changed.items():
        say(f"{escaped(name)!r} is paused{'' if is_new else ' already'}.")


@commands.command("resume", cls=AppCommand)
def resume(
    names: NamesArgument,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Let paused units tick again: at once for the occurrence that they have waited for."""
    target = Target.named(app=app, store=store)
    with target.opened_store() as opened:
        _mean(target, opened, names)
        found = {name: schedules.resume(opened, name) for name in names}
    left = {unit.key: unit for one in found.values() for unit in one.left}
    if as_json:
        changed = {name: one.changed for name, one in found.items()}
        print_document({"paused": False, "changed": changed, "still_paused": [*left]})
        return 1 if left else 0
    for name, one in found.items():
        if one.changed or not one.left:
            say(f"{escaped(name)!r} {'is resumed' if one.changed else 'was not paused'}.")
    for unit in left.values():
        again = command("schedule", "resume", unit.paused_by or unit.key)
        whole = "" if unit.paused_by == unit.key else f" with {escaped(unit.paused_by or '')!r}"
        say(f"{escaped(unit.key)!r} is still paused{whole}; '{again}' resumes it.")
    return 1 if left else 0


@commands.command("cursor", cls=AppCommand)
def cursor(
    name: NameArgument,
    reset: Annotated[
        bool, typer.Option("--reset", help="Let it begin anew: the next tick finds None.")
    ] = False,
    app: AppOption = None,
    store: StoreOption = None,
) -> None:
    """Print the cursor of a unit as a JSON document; or let it begin anew."""
    target = Target.named(app=app, store=store)
    with target.opened_store() as opened:
        _mean(target, opened, [name])
        unit = schedules.unit_named(opened, name)
        if not reset:
            text = schedules.cursor_of(opened, unit)
            value = None if text is None else msgspec.json.decode(text)
            print_document({"unit": unit.key, "cursor": value})
            return
        had = schedules.reset_cursor(opened, unit)
    say(f"The cursor of {escaped(unit.key)!r} {'begins anew' if had else 'was not set'}.")


def _mean(target: Target, store: Store, names: list[str]) -> None:
    """Be about the app whose units are named."""
    keys = (name if name.startswith(SCHEDULE) else f"{SCHEDULE}{name}" for name in names)
    target.mean(store, *keys)


def _word(unit: UnitView) -> str:
    """How a unit is, in a word or two."""
    if unit.retired_at is not None:
        return "retired"
    if unit.rests:
        return "paused"
    if unit.is_failing:
        return "waits for others" if unit.by_others else "degraded"
    words = {JobState.IN_PROGRESS: "ticks", JobState.QUEUED: "waits", JobState.ERROR: "failed"}
    return words.get(unit.state, str(unit.state))


def _failures(end: KeptEnd | None) -> str:
    """What the last plan of a schedule of datasets has not built."""
    return f", {counted(end.failed, 'job')} failed" if end is not None and end.failed else ""


def _next_try(unit: UnitView) -> str | None:
    waits = unit.state is JobState.QUEUED and not unit.rests
    return iso_time(unit.available_at) if waits else None


def _document(unit: UnitView, end: KeptEnd | None) -> dict[str, object]:
    plan = {} if end is None else {"last_plan": msgspec.to_builtins(end)}
    return plan | {
        "unit": unit.key,
        "app": unit.app,
        "partition": unit.partition,
        "timing": unit.timing,
        "state": unit.state,
        "is": _word(unit),
        "due_at": iso_time(unit.due_at),
        "next_try_at": _next_try(unit),
        "error": None
        if unit.last_error is None or not unit.is_failing
        else unit.last_error.format(),
        "ticks": unit.ticks,
        "missed": unit.missed,
        "failed": unit.failed,
        "last_tick_at": iso_time(unit.last_tick_at),
        "paused_by": unit.paused_by,
        "paused_at": iso_time(unit.paused_at),
    }
