# SPDX-License-Identifier: Apache-2.0
"""`penstock queue rerun`: lets done jobs run again."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from penstock.cli.completion import OptionalKeys, TaskOption, warn_of_others
from penstock.cli.target import AppOption, JsonOption, StoreOption, Target, warn_of_unknown_task
from penstock.errors import UsageError
from penstock.model.views import RerunJobs
from penstock.operate import rerun as operate
from penstock.sentences import counted
from penstock.stores.protocol import Store
from penstock.terminal_text import print_document, say


def rerun(
    keys: OptionalKeys = None,
    task: TaskOption = None,
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Forget what they have bought: paid calls are sent anew."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would run again, and change nothing.")
    ] = False,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Run done jobs again; their results stay until they end, and dependants are not touched.

    Paid calls that have not changed are answered from the journal, unless --fresh buys them anew.
    """
    if bool(keys) == (task is not None):
        raise UsageError("Name jobs by their keys, or all done ones of a task by --task.")
    target = Target.named(app=app, store=store)
    with target.opened_store() as opened:
        warn_of_unknown_task(opened, task)
        target.mean(opened, *(keys or ()))
        found = _run(opened, keys or [], task, fresh=fresh, dry_run=dry_run)
    if as_json:
        print_document({**msgspec.to_builtins(found), "fresh": fresh, "dry_run": dry_run})
        return 1 if found.refused or found.unknown else 0
    if found.rerun or task is not None:
        would = "would run again" if dry_run else "runs again" if found.rerun == 1 else "run again"
        bought = ", and what was bought is bought anew" if fresh else ""
        say(f"{counted(found.rerun, 'job')} {would}{bought}.")
    return warn_of_others(target, found.refused, found.unknown)


def _run(
    store: Store, keys: list[str], task: str | None, *, fresh: bool, dry_run: bool
) -> RerunJobs:
    if dry_run:
        return operate.count_reruns(store, keys, task)
    return operate.rerun(store, keys, task, fresh=fresh)
