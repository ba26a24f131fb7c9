# SPDX-License-Identifier: Apache-2.0
"""`penstock backup` copies the store to a file while it is in use; `restore` brings it back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.target import AppOption, JsonOption, StoreOption, Target
from penstock.clock import SystemClock
from penstock.errors import UsageError
from penstock.model.worker import living_workers
from penstock.operate.actions import answer
from penstock.operate.backup import Restore, back_up, refuse_file, void_leases
from penstock.process_identity import is_gone
from penstock.sentences import counted
from penstock.terminal_text import escaped, print_document, say

STANDARD_OUTPUT = "-"


def backup(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Where to; it must be new.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a consistent copy of the store to a file, while workers run."""
    if file == STANDARD_OUTPUT:
        raise UsageError("A backup cannot go to standard output; name a file.")
    target = Target.named(app=app, store=store)
    url, _ = target.store()
    report = back_up(url, Path(file), force=force, folder=target.folder)
    if as_json:
        print_document({"file": file, "store": url, "jobs": report.jobs, "bytes": report.bytes})
    else:
        say(
            f"{counted(report.jobs, 'job')} of {escaped(url)} backed up to {escaped(file)} "
            f"({report.bytes:,} bytes)."
        )


def restore(
    file: Annotated[
        str | None, typer.Argument(metavar="FILE", help="A file of `penstock backup`.")
    ] = None,
    after_pg_restore: Annotated[
        bool,
        typer.Option(
            "--after-pg-restore",
            help="The server's tools have restored it: void every lease, fence old owners.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; replaces what is there.")] = False,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put a backup in the place of the store; what was there is kept beside it."""
    target = Target.named(app=app, store=store)
    if after_pg_restore:
        if file is not None:
            raise UsageError(f"--after-pg-restore takes no file, got {file!r}.")
        _void_leases(target, yes=yes, as_json=as_json)
        return
    if file is None:
        raise UsageError("Name the file of a backup to restore.")
    _restore(target, file, yes=yes, as_json=as_json)


def _restore(target: Target, file: str, *, yes: bool, as_json: bool) -> None:
    url, _ = target.store()
    work = Restore(url, Path(file), folder=target.folder)
    plan = work.check()
    if plan.replaces and not yes:
        there = "an unreadable file" if plan.replaced is None else counted(plan.replaced, "job")
        raise UsageError(
            f"The store {url} ({there}) would be replaced by {file!r} "
            f"({counted(plan.jobs, 'job')}); "
            "add --yes to do it. What is there now is kept beside it."
        )
    report = work.run()
    if as_json:
        print_document(
            {
                "file": file,
                "store": url,
                "jobs": report.jobs,
                "bytes": report.bytes,
                "voided_leases": report.voided,
                "kept": None if report.kept is None else str(report.kept),
            }
        )
        return
    say(f"{counted(report.jobs, 'job')} of {escaped(file)} restored to {escaped(url)}.")
    if report.voided:
        say(f"{counted(report.voided, 'job')} in progress in the backup: ready again, uncharged.")
    if report.kept is not None:
        say(f"What was there before is kept as {escaped(str(report.kept))}.")


def _void_leases(target: Target, *, yes: bool, as_json: bool) -> None:
    url, _ = target.store()
    refuse_file(url)
    with target.opened_store() as opened:
        if not yes:
            views = answer(opened.workers(), opened)
            workers = len(living_workers(views, is_gone))
            raise UsageError(
                f"Every lease of the store {escaped(opened.url)} would be voided; workers alive: "
                f"{workers}. Stop them, then add --yes to do it."
            )
        voided = void_leases(opened, SystemClock())
        shown = opened.url
    if as_json:
        print_document({"store": shown, "voided_leases": voided})
        return
    say(
        f"{voided:,} leases of {escaped(shown)} were voided: those jobs are ready again, "
        "uncharged, and their former holders are refused."
    )
