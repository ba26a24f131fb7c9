# SPDX-License-Identifier: Apache-2.0
"""`penstock queue cancel`: cancels jobs by key, or all of a task or a state."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.completion import OptionalKeys, complete_state, complete_task
from penstock.cli.target import (
    AppOption,
    JsonOption,
    StoreOption,
    Target,
    only_utf8,
    warn_of_unknown_task,
)
from penstock.errors import UsageError
from penstock.operate.actions import state_named
from penstock.operate.cancel import BulkCancel, cancel_keys
from penstock.sentences import counted
from penstock.stores.protocol import Store
from penstock.terminal_text import escaped, print_document, say, warn


def cancel(
    keys: OptionalKeys = None,
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            metavar="TASK",
            help="All jobs of this task.",
            autocompletion=complete_task,
            callback=only_utf8,
        ),
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help="All jobs: waiting, queued or in_progress.",
            autocompletion=complete_state,
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; needed for --task, --state.")] = False,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Cancel jobs that have not ended, also while they run; their dependants are skipped."""
    wanted = BulkCancel(task, state_named(state))
    is_bulk = task is not None or state is not None
    if is_bulk == bool(keys):
        raise UsageError("Name jobs by their keys, or all of a kind by --task and --state.")
    target = Target.named(app=app, store=store)
    with target.opened_store() as opened:
        if is_bulk:
            warn_of_unknown_task(opened, task)
            return _cancel_all(opened, wanted, yes=yes, as_json=as_json)
        target.mean(opened, *(keys or ()))
        return _cancel_keys(opened, keys or [], as_json=as_json)


def _cancel_keys(store: Store, keys: list[str], *, as_json: bool) -> int:
    found = cancel_keys(store, keys)
    if as_json:
        print_document(
            {"cancelled": found.cancelled, "ended": found.ended, "unknown": found.unknown}
        )
    else:
        for key in found.cancelled:
            say(f"Job {escaped(key)!r} is cancelled.")
        for key, state in found.ended.items():
            say(f"Job {escaped(key)!r} had ended already: {state}.")
        for key in found.unknown:
            warn(f"No job has the key {escaped(key)!r}.")
    return 1 if found.unknown else 0


def _cancel_all(store: Store, wanted: BulkCancel, *, yes: bool, as_json: bool) -> int:
    count = wanted.run(store) if yes else wanted.count(store)
    if as_json:
        print_document({"cancelled": count if yes else 0, "would_cancel": count})
    if not yes:
        warn(f"{counted(count, 'job')} would be cancelled; add --yes to do it.")
        return 2
    if not as_json:
        say(f"{counted(count, 'job')} cancelled.")
    return 0
