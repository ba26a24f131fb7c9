# SPDX-License-Identifier: Apache-2.0
"""Which commands does `penstock queue` have? Each stands in a file of its own."""

from __future__ import annotations

import typer

from penstock.cli.queue_enqueue import enqueue
from penstock.cli.queue_import import import_jobs
from penstock.cli.queue_run import run_queue
from penstock.cli.queue_show import show
from penstock.cli.queue_stats import stats

commands = typer.Typer(
    help="Accept jobs, work on them, look at them.", no_args_is_help=True, rich_markup_mode=None
)
commands.command("enqueue")(enqueue)
commands.command("import")(import_jobs)
commands.command("run")(run_queue)
commands.command("show")(show)
commands.command("stats")(stats)
