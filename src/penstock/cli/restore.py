# SPDX-License-Identifier: Apache-2.0
"""How does a backup become the store again?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock import wiring
from penstock.cli.operator import audit_at, jobs_counted
from penstock.cli.target import AppOption, JsonOption, StoreOption, Target
from penstock.cli.text import escaped, print_document, say
from penstock.errors import UsageError


def restore(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A file of `penstock backup`.")],
    yes: Annotated[bool, typer.Option("--yes", help="Replace the store that is there.")] = False,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put a backup in the place of the store; what was there is kept beside it."""
    target = Target.named(app=app, store=store)
    url, _ = target.store()
    work = wiring.restore_of_store(url, Path(file), folder=target.folder)
    plan = work.check()
    if work.replaces and not yes:
        there = "an unreadable file" if plan.replaced is None else jobs_counted(plan.replaced)
        raise UsageError(
            f"The store {url} ({there}) would be replaced by {file!r} ({jobs_counted(plan.jobs)}); "
            "add --yes to do it. What is there now is kept beside it."
        )
    report = work.run()
    audit_at(url, "Restored %s from %r", jobs_counted(report.jobs), file)
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
    say(f"{jobs_counted(report.jobs)} of {escaped(file)} restored to {escaped(url)}.")
    if report.voided:
        say(f"{jobs_counted(report.voided)} in progress in the backup: ready again, uncharged.")
    if report.kept is not None:
        say(f"What was there before is kept as {escaped(str(report.kept))}.")
