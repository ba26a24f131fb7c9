# SPDX-License-Identifier: Apache-2.0
"""How does `penstock queue run` start a supervisor?"""

from __future__ import annotations

from typing import Annotated

import typer

from penstock import wiring
from penstock.cli.display import make_display
from penstock.cli.invocation import Invocation
from penstock.cli.target import AppOption, StoreOption, Target
from penstock.cli.text import one_sentence, warn, warn_of_traceback
from penstock.errors import UsageError
from penstock.runtime.exits import EXIT_OVER_BUDGET
from penstock.runtime.messages import RunSpec
from penstock.runtime.stop_signals import ignore_late_signals
from penstock.runtime.supervisor import Supervisor
from penstock.stores.store import Store


def run_queue(
    context: typer.Context,
    app_argument: Annotated[
        str | None, typer.Argument(metavar="[APP]", help="The app: a file, or module:attribute.")
    ] = None,
    drain: Annotated[bool, typer.Option("--drain", help="End when nothing is left.")] = False,
    processes: Annotated[
        int, typer.Option("--processes", min=1, max=1_000, help="Worker processes.")
    ] = 1,
    slots: Annotated[
        int | None, typer.Option("--slots", help="Running async tasks per process.")
    ] = None,
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
    """Work on the queue, until it is stopped or (--drain) empty."""
    if app is not None and app_argument is not None:
        raise UsageError(f"The app is named twice: {app_argument!r} and --app {app!r}.")
    target = Target.named(app=app_argument or app, store=store, slots=slots)
    if limit:
        target.flags["--limit"] = limit
    if max_per_host is not None:
        target.flags["--max-per-host"] = max_per_host
    # Wrong settings are refused before a process is started.
    target.warn_of_unused_settings(target.configured().settings.app)
    invocation = context.obj if isinstance(context.obj, Invocation) else Invocation()
    spec = RunSpec(
        app=app_argument or app,
        flags=target.flags,
        folder=str(target.folder),
        processes=processes,
        drain=drain,
        debug=invocation.debug,
        log_level=invocation.log_level,
        log_format=invocation.log_format,
    )
    display = make_display(spec.log_format)

    def open_store(url: str, durability: str) -> Store:
        return wiring.open_store(url, durability=durability, folder=target.folder)

    supervisor = Supervisor(spec, open_store, display)
    try:
        code = supervisor.run()
    finally:
        display.restore()
    ignore_late_signals()
    if supervisor.failure is not None:
        if supervisor.failure.details:
            warn_of_traceback(supervisor.failure.details)
        warn(one_sentence(supervisor.failure.message))
    if code == EXIT_OVER_BUDGET:
        for stop in supervisor.stops.all():
            warn(one_sentence(stop.sentence))
    return code
