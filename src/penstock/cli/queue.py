# SPDX-License-Identifier: Apache-2.0
"""Which commands does `penstock queue` have? Each stands in a file of its own."""

from __future__ import annotations

import typer

from penstock.cli.queue_cancel import cancel
from penstock.cli.queue_enqueue import enqueue
from penstock.cli.queue_import import import_jobs
from penstock.cli.queue_limit import limit
from penstock.cli.queue_list import list_jobs
from penstock.cli.queue_pause import pause, resume
from penstock.cli.queue_purge import purge
from penstock.cli.queue_retry import retry_failed
from penstock.cli.queue_run import run_queue
from penstock.cli.queue_show import show
from penstock.cli.queue_stats import stats

commands = typer.Typer(
    help="Accept jobs, work on them, look at them.", no_args_is_help=True, rich_markup_mode=None
)
commands.command("enqueue")(enqueue)
commands.command("import")(import_jobs)
commands.command("run")(run_queue)
commands.command("stats")(stats)
commands.command("list")(list_jobs)
commands.command("show")(show)
commands.command("cancel")(cancel)
commands.command("retry-failed")(retry_failed)
commands.command("purge")(purge)
commands.command("limit")(limit)
commands.command("pause")(pause)
commands.command("resume")(resume)
