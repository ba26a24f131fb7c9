# SPDX-License-Identifier: Apache-2.0
"""`penstock app`: the apps that share a store, their names, and what belongs to none of them."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.app_command import AppCommand
from penstock.cli.target import AppOption, JsonOption, StoreOption, Target, only_utf8
from penstock.model.job import JobState
from penstock.operate import apps
from penstock.sentences import counted
from penstock.terminal_text import escaped, format_table, iso_time, print_document, say

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The app's name.", callback=only_utf8)
]

commands = typer.Typer(
    help="Look at the apps that share a store, and rename them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@commands.command("list", cls=AppCommand)
def list_apps(
    app: AppOption = None, store: StoreOption = None, as_json: JsonOption = False
) -> None:
    """List the apps of the store: their jobs by state, their workers, when each was last seen."""
    with Target.named(app=app, store=store).opened_store() as opened:
        found = opened.apps().result()
    if as_json:
        print_document(
            {
                "apps": [
                    {
                        "app": one.name,
                        "states": {state.value: n for state, n in one.states.items()},
                        "workers": one.workers,
                        "last_seen": iso_time(one.seen_at),
                    }
                    for one in found
                ]
            }
        )
        return
    head = ["app", *(state.value for state in JobState), "workers", "last seen"]
    rows: list[list[str | int]] = [
        [
            escaped(one.name) or "(no owner)",
            *one.states.values(),
            one.workers,
            iso_time(one.seen_at) or "-",
        ]
        for one in found
    ]
    for line in format_table(head, rows):
        say(line)


@commands.command("rename", cls=AppCommand)
def rename(
    old: Annotated[str, typer.Argument(metavar="OLD", help="The app's name.", callback=only_utf8)],
    new: Annotated[
        str,
        typer.Argument(
            metavar="NEW",
            help="Its new name; an app that has it already gets all its jobs.",
            callback=only_utf8,
        ),
    ],
    app: AppOption = None,
    store: StoreOption = None,
) -> None:
    """Give an app another name, with its jobs, schedules and datasets; no worker may be alive."""
    with Target.named(app=app, store=store).opened_store() as opened:
        moved = apps.rename(opened, old, new)
    count = f" {counted(moved, 'job')} went to it." if moved else ""
    say(f"The app {escaped(old)!r} is called {escaped(new)!r} now.{count}")


@commands.command("adopt", cls=AppCommand)
def adopt(
    name: NameArgument,
    task: Annotated[
        list[str] | None,
        typer.Option(
            "--task", metavar="TASK", help="Only jobs of this task; repeat it.", callback=only_utf8
        ),
    ] = None,
    app: AppOption = None,
    store: StoreOption = None,
) -> None:
    """Give an app jobs that belong to no app, since they are older than the apps of the store."""
    with Target.named(app=app, store=store).opened_store() as opened:
        count = apps.adopt(opened, name, task or ())
    say(f"{counted(count, 'job')} without an owner went to the app {escaped(name)!r}.")
