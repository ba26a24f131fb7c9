# SPDX-License-Identifier: Apache-2.0
"""`penstock queue list`: lists jobs page by page, so that neither memory nor the log grows."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice
from typing import Annotated

import typer

from penstock.cli.commands.queue.show import document_of
from penstock.cli.completion import TaskOption, complete_state
from penstock.cli.target import (
    COUNTED_MAX,
    AppOption,
    JsonOption,
    StoreOption,
    Target,
    warn_of_unknown_task,
)
from penstock.model.dataset import task_name
from penstock.model.job import Job, JobId, JobKind, JobState
from penstock.operate.actions import state_named, stored_tasks
from penstock.stores.protocol import JobFilter, Store
from penstock.terminal_text import escaped, format_document, iso_time, say, write

PAGE_JOBS = 500
NOTE_LENGTH_MAX = 100  # characters of an error in a line
TASK_WIDTH_MAX = 40  # characters; a longer name moves what follows


def list_jobs(
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help="Only jobs in this state.",
            autocompletion=complete_state,
        ),
    ] = None,
    task: TaskOption = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=1, max=COUNTED_MAX, metavar="N", help="At most this many."),
    ] = None,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List jobs, oldest first, one a line."""
    asked = state_named(state)
    with Target.named(app=app, store=store).opened_store() as opened:
        warn_of_unknown_task(opened, task)
        found = [_all(opened, JobFilter(state=asked, task=x)) for x in stored_tasks(opened, task)]
        jobs = islice(heapq.merge(*found, key=lambda job: job.id), limit)
        if as_json:
            _print_document(jobs)
        else:
            _print_lines(jobs, _widths(opened))


def _all(store: Store, wanted: JobFilter) -> Iterator[Job]:
    last = JobId(0)
    while page := store.jobs(wanted, last, PAGE_JOBS).result():
        yield from page
        last = page[-1].id


def _pages(jobs: Iterator[Job]) -> Iterator[list[Job]]:
    while page := list(islice(jobs, PAGE_JOBS)):
        yield page


def _print_lines(jobs: Iterator[Job], widths: tuple[int, int]) -> None:
    empty = True
    for page in _pages(jobs):
        empty = False
        if not say("\n".join(_line(job, *widths) for job in page)):
            return  # nobody reads any more
    if empty:
        say("No jobs.")


def _print_document(jobs: Iterator[Job]) -> None:
    """One document, written as it is read."""
    write('{\n  "jobs": [')
    comma = ""
    for page in _pages(jobs):
        texts = []
        for job in page:
            document = document_of(job, ())
            del document["history"], document["calls"]  # `queue show` reads and counts them
            texts.append(f"{comma}\n    {format_document(document, indent=0)}")
            comma = ","
        if not write("".join(texts)):
            return
    write("\n  ]\n}\n" if comma else "]\n}\n")


def _widths(store: Store) -> tuple[int, int]:
    """Of the columns of apps, 0 where there is only one, and of tasks."""
    apps = [app.name for app in store.apps().result()]
    names = store.stats().result().shown_tasks
    task_width = min(max(map(len, names), default=0), TASK_WIDTH_MAX)
    return (max(map(len, apps)) if len(apps) > 1 else 0), task_width


def _line(job: Job, app_width: int, task_width: int) -> str:
    note = _note(job)
    app = f"{escaped(job.app):<{app_width}}  " if app_width else ""
    text = (
        f"{job.state.value:<11}  {app}{escaped(task_name(job.task)):<{task_width}}  "
        f"{escaped(job.key)}"
    )
    return f"{text}  ({note})" if note else text


def _note(job: Job) -> str:
    """The one thing that a reader of this line asks next."""
    if job.state is JobState.WAITING and job.kind is JobKind.TICK:
        return "is due, and paused"
    if job.state is JobState.WAITING:
        return f"waits for {job.pending:,}"
    if job.state is JobState.IN_PROGRESS:
        return f"held by {escaped(job.worker or 'nobody')}"
    if job.suspect:
        return "in quarantine"
    if job.state is JobState.QUEUED and job.available_at > job.updated_at:
        return f"due at {iso_time(job.available_at)}"
    if job.last_error is None or job.state is JobState.DONE:
        return ""
    message = escaped(job.last_error.message)
    return message if len(message) <= NOTE_LENGTH_MAX else f"{message[: NOTE_LENGTH_MAX - 1]}…"
