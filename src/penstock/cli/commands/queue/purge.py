# SPDX-License-Identifier: Apache-2.0
"""`penstock queue purge`: forgets jobs that ended long ago."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.target import AppOption, JsonOption, StoreOption, Target
from penstock.clock import SystemClock, parse_duration
from penstock.errors import UsageError
from penstock.operate import purge as operate
from penstock.sentences import counted
from penstock.terminal_text import print_document, say, warn


def purge(
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            metavar="DURATION",
            help="Ended longer ago than this: 30d, 12h, 90s; the setting `retention` otherwise.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it.")] = False,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Forget jobs that ended long ago, with their history; their keys may be used again."""
    target = Target.named(app=app, store=store)
    age = _age(older_than) if older_than is not None else target.configured().settings.retention
    with target.opened_store() as opened:
        act = operate.purge if yes else operate.count_purged
        count = act(opened, age, SystemClock())
    if as_json:
        print_document({"purged": count if yes else 0, "would_purge": count})
    if not yes:
        warn(f"{counted(count, 'job')} would be forgotten; add --yes to do it.")
        return 2
    if not as_json:
        say(f"{counted(count, 'job')} forgotten.")
    return 0


def _age(text: str) -> float:
    try:
        seconds = parse_duration(text)
        if seconds < 0:
            raise ValueError("must be at least 0")
    except ValueError as error:
        raise UsageError(f"--older-than {error}, got {text!r}.") from None
    return seconds
