# SPDX-License-Identifier: Apache-2.0
"""How are old jobs forgotten?"""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.operator_actions import answer, audit, jobs_counted
from penstock.cli.target import AppOption, JsonOption, StoreOption, Target
from penstock.clock import SystemClock, to_micros
from penstock.config.settings import parse_duration
from penstock.errors import UsageError
from penstock.model.views import FIRST_END
from penstock.stores.protocol import Store
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
    before = to_micros(SystemClock().now() - age)
    with target.opened_store() as opened:
        if not yes:
            count = answer(opened.would_purge(before), opened)
            if as_json:
                print_document({"purged": 0, "would_purge": count})
            warn(f"{jobs_counted(count)} would be forgotten; add --yes to do it.")
            return 2
        count = _purge(opened, before)
        audit(opened, "Purged %s that ended over %g s ago", jobs_counted(count), age)
    if as_json:
        print_document({"purged": count, "would_purge": count})
    else:
        say(f"{jobs_counted(count)} forgotten.")
    return 0


def _purge(store: Store, before: int) -> int:
    total, mark = 0, FIRST_END
    while True:
        progress, mark = answer(store.purge(before, mark), store)
        total += progress.count
        if not progress.more:
            return total


def _age(text: str) -> float:
    try:
        seconds = parse_duration(text)
        if seconds < 0:
            raise ValueError("must be at least 0")
    except ValueError as error:
        raise UsageError(f"--older-than {error}, got {text!r}.") from None
    return seconds
