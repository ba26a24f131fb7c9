# SPDX-License-Identifier: Apache-2.0
"""Starts a supervisor for a command, and reports how its run ended."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from penstock.cli.lazy_command import Invocation
from penstock.cli.live.display import make_display
from penstock.cli.target import Target
from penstock.errors import PenstockError
from penstock.stores.open import open_store
from penstock.stores.protocol import Store
from penstock.supervisor.protocol import BuildSpec, Hello, RunSpec
from penstock.supervisor.sd_notify import Announcer
from penstock.supervisor.supervisor import Supervisor
from penstock.supervisor.worker_handle import EXIT_OVER_BUDGET
from penstock.terminal_text import one_line, queue_output, warn, warn_of_traceback
from penstock.worker.signals import ignore_late_signals
from penstock.worker.start_budget import JOBS_MAX

ProcessesOption = Annotated[
    int, typer.Option("--processes", min=1, max=1_000, help="Worker processes.")
]
SlotsOption = Annotated[
    int | None, typer.Option("--slots", help="Running tasks of all kinds per process.")
]
ThreadsOption = Annotated[
    int | None, typer.Option("--threads", help="Running tasks in threads per process.")
]
ProcessSlotsOption = Annotated[
    int | None,
    typer.Option("--process-slots", help="Running tasks in processes of their own, per process."),
]
MaxJobsOption = Annotated[
    int | None,
    typer.Option(
        "--max-jobs",
        metavar="N",
        min=1,
        max=JOBS_MAX,
        help="End when so many jobs were started; a retry counts as one, ticks do not.",
    ),
]

FILES_MIN = 256  # a worker without slots: store, log, task processes, what libraries keep open


def target_of(
    app: str | None,
    store: str | None,
    slots: int | None,
    threads: int | None,
    process_slots: int | None,
) -> Target:
    """The app and store of a run; wrong settings are refused before a process is started."""
    target = Target.named(app=app, store=store, slots=slots, threads=threads)
    if process_slots is not None:
        target.flags["--process-slots"] = process_slots
    return target


def spec_of(
    context: typer.Context,
    target: Target,
    app: str | None,
    *,
    processes: int,
    drain: bool,
    max_jobs: int | None = None,
    daemon: bool = False,
    check: bool = False,
    build: BuildSpec | None = None,
) -> RunSpec:
    """The specification of a run, from the options that were typed."""
    settings = target.configured().settings
    target.warn_of_surroundings(settings.app)
    allow_open_files(settings.runtime.async_slots)
    invocation = context.obj if isinstance(context.obj, Invocation) else Invocation()
    return RunSpec(
        app=app,
        flags=target.flags,
        folder=str(target.folder),
        processes=processes,
        drain=drain,
        max_jobs=max_jobs,
        daemon=daemon,
        check=check,
        build=build,
        debug=invocation.debug,
        log_level=invocation.log_level,
        log_format=invocation.log_format,
    )


def allow_open_files(slots: int) -> None:
    """Raise the limit on open files to what a worker of so many slots may use, where allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    ours = FILES_MIN + 2 * slots  # of a slot: a connection, and a file that its body reads
    allowed = ours if hard == resource.RLIM_INFINITY else min(ours, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < FILES_MIN:
        raise PenstockError(
            f"This shell allows a process {allowed} open files, and a worker needs at least "
            f"{FILES_MIN}. Raise the limit first, for example with 'ulimit -n 1024'."
        )


def supervise(spec: RunSpec, target: Target, announcer: Announcer) -> tuple[int, Supervisor]:
    """Run to the end and print errors; returns the exit code and the supervisor."""
    queue_output()
    display = make_display(spec.log_format, daemon=spec.daemon, build=spec.build is not None)

    def opened(hello: Hello) -> Store:
        return _open(hello, target)

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
        for sentence in supervisor.stops.sentences():
            warn(one_line(sentence))
    return code, supervisor


def _open(hello: Hello, target: Target) -> Store:
    """The store of a worker's app, which has taken over what is its own."""
    return open_store(
        hello.store_url, app=hello.app, durability=hello.durability, folder=target.folder
    )


@contextmanager
def store_of(supervisor: Supervisor, target: Target) -> Iterator[Store | None]:
    """The store of a run that is over, opened again; None if the run never came to one."""
    hello = supervisor.hello
    if hello is None:
        yield None
        return
    store = _open(hello, target)
    try:
        yield store
    finally:
        store.close()
