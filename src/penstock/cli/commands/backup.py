# SPDX-License-Identifier: Apache-2.0
"""`penstock backup`: copies the store to a file while it is in use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.target import AppOption, JsonOption, StoreOption, Target
from penstock.errors import UsageError
from penstock.operate.actions import jobs_counted
from penstock.operate.backup import back_up
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
            f"{jobs_counted(report.jobs)} of {escaped(url)} backed up to {escaped(file)} "
            f"({report.bytes:,} bytes)."
        )
