# SPDX-License-Identifier: Apache-2.0
"""`penstock queue run`: starts a supervisor that works on the queue."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.commands.run_supervised import (
    MaxJobsOption,
    ProcessesOption,
    ProcessSlotsOption,
    SlotsOption,
    ThreadsOption,
    spec_of,
    supervise,
    target_of,
)
from penstock.cli.target import AppOption, StoreOption
from penstock.clock import SystemClock
from penstock.supervisor.sd_notify import Announcer, SdNotify


def run_queue(
    context: typer.Context,
    drain: Annotated[bool, typer.Option("--drain", help="End when nothing is left.")] = False,
    max_jobs: MaxJobsOption = None,
    processes: ProcessesOption = 1,
    slots: SlotsOption = None,
    threads: ThreadsOption = None,
    process_slots: ProcessSlotsOption = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            "--limit",
            metavar="DIMENSION=NAME:N",
            help="A keyed limit, such as resolver=unpaywall:2; may be repeated.",
        ),
    ] = None,
    max_per_host: Annotated[
        int | None, typer.Option("--max-per-host", help="The limit host=*, for every host.")
    ] = None,
    app: AppOption = None,
    store: StoreOption = None,
) -> int:
    """Work on the queue, until it is stopped, empty (--drain) or has started N (--max-jobs)."""
    target = target_of(app, store, slots, threads, process_slots)
    if limit:
        target.flags["--limit"] = limit
    if max_per_host is not None:
        target.flags["--max-per-host"] = max_per_host
    spec = spec_of(context, target, app, processes=processes, drain=drain, max_jobs=max_jobs)
    notify = SdNotify.of_this_process()
    try:
        code, _ = supervise(spec, target, Announcer(SystemClock(), notify))
    finally:
        notify.close()
    return code
