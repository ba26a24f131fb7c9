# SPDX-License-Identifier: Apache-2.0
"""Starts a supervisor for a command, and reports how its run ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from penstock.cli.lazy_command import Invocation
from penstock.cli.live.display import make_display
from penstock.cli.target import Target
from penstock.errors import UsageError
from penstock.stores.open import open_store
from penstock.stores.protocol import Store
from penstock.supervisor.protocol import BuildSpec, RunSpec
from penstock.supervisor.sd_notify import Announcer
from penstock.supervisor.supervisor import Supervisor
from penstock.supervisor.worker_handle import EXIT_OVER_BUDGET
from penstock.terminal_text import one_line, warn, warn_of_traceback
from penstock.worker.signals import ignore_late_signals

AppArgument = Annotated[
    str | None, typer.Argument(metavar="[APP]", help="The app: a file, or module:attribute.")
]
ProcessesOption = Annotated[
    int, typer.Option("--processes", min=1, max=1_000, help="Worker processes.")
]
SlotsOption = Annotated[
    int | None, typer.Option("--slots", help="Running async tasks per process.")
]


def target_of(
    app_argument: str | None, app: str | None, store: str | None, slots: int | None
) -> Target:
    """The app and store of a run; wrong settings are refused before a process is started."""
    if app is not None and app_argument is not None:
        raise UsageError(f"The app is named twice: {app_argument!r} and --app {app!r}.")
    return Target.named(app=app_argument or app, store=store, slots=slots)


def spec_of(
    context: typer.Context,
    target: Target,
    app: str | None,
    *,
    processes: int,
    drain: bool,
    daemon: bool = False,
    check: bool = False,
    build: BuildSpec | None = None,
) -> RunSpec:
    """The specification of a run, from the options that were typed."""
    target.warn_of_unused_settings(target.configured().settings.app)
    invocation = context.obj if isinstance(context.obj, Invocation) else Invocation()
    return RunSpec(
        app=app,
        flags=target.flags,
        folder=str(target.folder),
        processes=processes,
        drain=drain,
        daemon=daemon,
        check=check,
        build=build,
        debug=invocation.debug,
        log_level=invocation.log_level,
        log_format=invocation.log_format,
    )


def supervise(spec: RunSpec, target: Target, announcer: Announcer) -> tuple[int, Supervisor]:
    """Run to the end and print errors; returns the exit code and the supervisor."""
    display = make_display(spec.log_format, daemon=spec.daemon, build=spec.build is not None)

    def opened(url: str, durability: str) -> Store:
        return open_store(url, durability=durability, folder=target.folder)

    supervisor = Supervisor(spec, opened, display, announcer=announcer)
    try:
        code = supervisor.run()
    finally:
        display.restore()
    ignore_late_signals()
    if supervisor.failure is not None:
        if supervisor.failure.details:
            warn_of_traceback(supervisor.failure.details)
        warn(one_line(supervisor.failure.message))
    if code == EXIT_OVER_BUDGET:
        for stop in supervisor.stops.all():
            warn(one_line(stop.sentence))
    return code, supervisor


@contextmanager
def store_of(supervisor: Supervisor, target: Target) -> Iterator[Store | None]:
    """The store of a run that is over, opened again; None if the run never came to one."""
    hello = supervisor.hello
    if hello is None:
        yield None
        return
    store = open_store(hello.store_url, durability=hello.durability, folder=target.folder)
    try:
        yield store
    finally:
        store.close()
