# SPDX-License-Identifier: Apache-2.0
"""How are failed jobs put back?"""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.completion import complete_task
from penstock.cli.operator_actions import (
    COUNTED_MAX,
    answer,
    audit,
    jobs_counted,
    only_utf8,
    settle,
    stored_tasks,
    warn_of_unknown_task,
)
from penstock.cli.target import AppOption, JsonOption, StoreOption, Target
from penstock.model.dataset import SLICE
from penstock.model.job import JobId, JobState
from penstock.model.views import RetryCounts
from penstock.stores.protocol import Store
from penstock.terminal_text import print_document, say, warn


def retry_failed(
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            metavar="TASK",
            help="Only jobs of this task.",
            autocompletion=complete_task,
            callback=only_utf8,
        ),
    ] = None,
    max_attempts: Annotated[
        int | None,
        typer.Option(
            "--max-attempts",
            min=0,
            max=COUNTED_MAX,
            metavar="N",
            help="Only jobs that failed at most so often.",
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
        if dry_run:
            counts = opened.would_retry(task, max_attempts).result()
        else:
            counts = _retry(opened, task, max_attempts)
        built = _of_builds(opened, task)
    if as_json:
        print_document(
            {
                "failed": counts.failed,
                "skipped": counts.dependants,
                "of_builds": built,
                "dry_run": dry_run,
            },
        )
        return
    if built:
        warn(
            f"{jobs_counted(built)} of builds that failed {'is' if built == 1 else 'are'} left "
            "alone: the same 'penstock build' command tries again what is not there."
        )
    if not counts.failed:
        say("No failed job is to be put back.")
        return
    be = "would be" if dry_run else "is" if counts.failed == 1 else "are"
    say(
        f"{jobs_counted(counts.failed)} that failed, and {jobs_counted(counts.dependants)} skipped "
        f"because of that, {be} put back."
    )


def _of_builds(store: Store, task: str | None) -> int:
    """Failed jobs of builds among those that were meant."""
    tasks = store.stats().result().tasks
    named = [name for name in stored_tasks(store, task) if name is not None] or list(tasks)
    return sum(tasks.get(x, {}).get(JobState.ERROR, 0) for x in named if x.startswith(SLICE))


def _retry(store: Store, task: str | None, max_attempts: int | None) -> RetryCounts:
    before = settle(store)
    failed, last = 0, JobId(0)
    while True:
        step = answer(store.retry_failed(task, max_attempts, last), store)
        failed, last = failed + step.failed, step.last
        if not step.more:
            break
    counts = RetryCounts(failed, settle(store) - before)
    if failed:
        audit(
            store,
            "Put back %s that failed and %s skipped because of that",
            jobs_counted(counts.failed),
            jobs_counted(counts.dependants),
        )
    return counts
