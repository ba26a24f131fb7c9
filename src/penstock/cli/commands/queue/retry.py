# SPDX-License-Identifier: Apache-2.0
"""`penstock queue retry` and `retry-failed`: put failed jobs back, some by their keys, or all."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from penstock.cli.completion import KeysArgument, TaskOption, warn_of_others
from penstock.cli.target import (
    COUNTED_MAX,
    AppOption,
    JsonOption,
    StoreOption,
    Target,
    warn_of_unknown_task,
)
from penstock.model.views import RetriedJobs
from penstock.operate import retry
from penstock.sentences import counted
from penstock.terminal_text import print_document, say, warn


def retry_failed(
    task: TaskOption = None,
    max_attempts: Annotated[
        int | None,
        typer.Option(
            "--max-attempts",
            min=0,
            max=COUNTED_MAX,
            metavar="N",
            help="Only jobs that failed at most this many times.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be put back, and change nothing.")
    ] = False,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put failed jobs back, with what was skipped because of them."""
    with Target.named(app=app, store=store).opened_store() as opened:
        warn_of_unknown_task(opened, task)
        act = retry.count_retries if dry_run else retry.retry_failed
        found = act(opened, task, max_attempts)
    if as_json:
        print_document(
            {
                "failed": found.failed,
                "skipped": found.skipped,
                "of_builds": found.of_builds,
                "dry_run": dry_run,
            },
        )
        return
    if found.of_builds:
        warn(
            f"{counted(found.of_builds, 'job')} of builds that failed "
            f"{'is' if found.of_builds == 1 else 'are'} left alone: the same 'penstock build' "
            "command builds what is missing."
        )
    if not found.failed:
        say("No failed job is to be put back.")
        return
    _say(found, "would be" if dry_run else "is" if found.failed == 1 else "are")


def retry_keys(
    keys: KeysArgument,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Put these failed jobs back, with what was skipped because of them."""
    target = Target.named(app=app, store=store)
    with target.opened_store() as opened:
        target.mean(opened, *keys)
        found = retry.retry_keys(opened, keys)
    if as_json:
        print_document(msgspec.to_builtins(found))
        return 1 if found.refused or found.unknown else 0
    if found.failed:
        _say(found, "is" if found.failed == 1 else "are")
    return warn_of_others(target, found.refused, found.unknown)


def _say(found: RetriedJobs, be: str) -> None:
    say(
        f"{counted(found.failed, 'job')} that failed, and {counted(found.skipped, 'job')} skipped "
        f"because of that, {be} put back."
    )
