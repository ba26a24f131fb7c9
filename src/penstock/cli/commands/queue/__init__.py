# SPDX-License-Identifier: Apache-2.0
"""The commands of `penstock queue`; each stands in a file of its own."""

from __future__ import annotations

import typer

from penstock.cli.lazy_command import CommandTable, LazyGroup

COMMANDS: CommandTable = {
    "enqueue": (
        "penstock.cli.commands.queue.enqueue:enqueue",
        "Accept one job; says whether it was new.",
    ),
    "import": (
        "penstock.cli.commands.queue.import_jobs:import_jobs",
        "Accept the jobs of a file; the same command again goes on where it stopped.",
    ),
    "run": (
        "penstock.cli.commands.queue.run:run_queue",
        "Work on the queue, until it is stopped, empty (--drain) or has started N (--max-jobs).",
    ),
    "stats": (
        "penstock.cli.commands.queue.stats:stats",
        "Show how many jobs are in which state, by task and by group.",
    ),
    "list": ("penstock.cli.commands.queue.list:list_jobs", "List jobs, oldest first, one a line."),
    "show": (
        "penstock.cli.commands.queue.show:show",
        "Show everything about one job, its history included.",
    ),
    "cancel": (
        "penstock.cli.commands.queue.cancel:cancel",
        "Cancel jobs that have not ended, also while they run; their dependants are skipped.",
    ),
    "retry": (
        "penstock.cli.commands.queue.retry:retry_keys",
        "Put these failed jobs back, with what was skipped because of them.",
    ),
    "rerun": (
        "penstock.cli.commands.queue.rerun:rerun",
        "Run done jobs again; their results stay until they end, and dependants are not touched.",
    ),
    "retry-failed": (
        "penstock.cli.commands.queue.retry:retry_failed",
        "Put failed jobs back, with what was skipped because of them.",
    ),
    "purge": (
        "penstock.cli.commands.queue.purge:purge",
        "Forget ended jobs, with results and history; their keys may be used again.",
    ),
    "limit": (
        "penstock.cli.commands.queue.limit:limit",
        "Change a keyed limit while workers run; without arguments, show all of them.",
    ),
    "pause": (
        "penstock.cli.commands.queue.pause:pause",
        "Let no worker take further jobs; what has begun goes on to its end.",
    ),
    "resume": ("penstock.cli.commands.queue.pause:resume", "Let workers take jobs again."),
}


class _Commands(LazyGroup):
    table = COMMANDS


commands = typer.Typer(
    cls=_Commands,
    help="Accept jobs, work on them, look at them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
