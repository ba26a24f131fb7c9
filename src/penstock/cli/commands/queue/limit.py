# SPDX-License-Identifier: Apache-2.0
"""`penstock queue limit`: shows and changes keyed limits while workers run."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.target import AppOption, JsonOption, StoreOption, Target, only_utf8
from penstock.errors import PenstockError
from penstock.operate.limits import (
    LimitView,
    check_limit_key,
    format_cap,
    limits,
    parse_override,
    set_limit,
    used_dimensions,
)
from penstock.terminal_text import escaped, format_table, print_document, say, warn


def limit(
    key: Annotated[
        str | None,
        typer.Argument(
            metavar="[KEY]",
            help="A limit key: dimension:value; dimension:* for the rest.",
            callback=only_utf8,
        ),
    ] = None,
    count: Annotated[
        str | None,
        typer.Argument(metavar="[N]", help="How many at once; 0: none; default: as configured."),
    ] = None,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change a keyed limit while workers run; without arguments, show all of them."""
    target = Target.named(app=app, store=store)
    configured = target.configured().settings.caps()
    if key is not None:
        check_limit_key(key)
    override = None if count is None else parse_override(count)
    with target.opened_store() as opened:
        if key is None or count is None:
            _show(limits(opened, configured, key), as_json=as_json)
            return
        _warn_of_unknown_dimension(target, used_dimensions(opened, configured), key)
        change = set_limit(opened, configured, key, override)
    if as_json:
        print_document(
            {"key": key, "before": change.before, "cap": change.cap, "override": override}
        )
    else:
        say(f"{escaped(key)}: {format_cap(change.before)} → {format_cap(change.cap)}")


def _show(found: dict[str, LimitView], *, as_json: bool) -> None:
    if as_json:
        print_document({"limits": found})
        return
    if not found:
        say("No limit is configured or changed, and no limit key is held.")
        return
    head = ["key", "configured", "changed to", "held by"]
    rows = [
        [
            name,
            format_cap(entry.configured),
            "" if entry.override is None else f"{entry.override:,}",
            f"{entry.holders:,}",
        ]
        for name, entry in found.items()
    ]
    for line in format_table(head, rows):
        say(line)


def _warn_of_unknown_dimension(target: Target, known: set[str], key: str) -> None:
    """A slip of the pen would limit nothing; say so, if that can be known."""
    dimension = key.partition(":")[0]
    if dimension in known:
        return
    try:
        tasks = target.app().tasks.values()
    except PenstockError:
        return  # without the app nobody knows
    known = known | {name for task in tasks for name in task.options.limits}
    if dimension not in known:
        names = ", ".join(sorted(known)) or "none"
        warn(
            f"No setting and no task knows the dimension {escaped(dimension)!r} (known: "
            f"{escaped(names)}); the limit holds as soon as a job uses it."
        )
