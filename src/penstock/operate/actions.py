# SPDX-License-Identifier: Apache-2.0
"""Shared steps of operator actions: find the named jobs, wait for the store, leave an audit line.

Nothing here prints or knows a command: the command line and others that act for a person call the
same functions, and show what they return in their own way.
"""

from __future__ import annotations

import difflib
import getpass
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from penstock.errors import UsageError
from penstock.model.dataset import task_name
from penstock.model.job import Job, JobKind, JobState, kind_of_name
from penstock.model.views import Settled
from penstock.sentences import command
from penstock.stores.protocol import Store
from penstock.stores.retry import wait_for
from penstock.stores.store_future import Reply

T = TypeVar("T")

SLICE_JOBS = 100  # changed by name in one transaction

log = logging.getLogger("penstock.operator")


#: What other tools call a state.
_OTHER_STATES = {
    "active": JobState.IN_PROGRESS,
    "aborted": JobState.CANCELLED,
    "blocked": JobState.WAITING,
    "canceled": JobState.CANCELLED,
    "complete": JobState.DONE,
    "completed": JobState.DONE,
    "dead": JobState.ERROR,
    "deferred": JobState.WAITING,
    "delayed": JobState.QUEUED,
    "doing": JobState.IN_PROGRESS,
    "errored": JobState.ERROR,
    "fail": JobState.ERROR,
    "failed": JobState.ERROR,
    "failure": JobState.ERROR,
    "finished": JobState.DONE,
    "new": JobState.QUEUED,
    "ok": JobState.DONE,
    "open": JobState.QUEUED,
    "pending": JobState.QUEUED,
    "processing": JobState.IN_PROGRESS,
    "ready": JobState.QUEUED,
    "retry": JobState.QUEUED,
    "revoked": JobState.CANCELLED,
    "running": JobState.IN_PROGRESS,
    "scheduled": JobState.QUEUED,
    "started": JobState.IN_PROGRESS,
    "stopped": JobState.CANCELLED,
    "succeeded": JobState.DONE,
    "success": JobState.DONE,
    "todo": JobState.QUEUED,
}


def state_named(name: str | None) -> JobState | None:
    """The state of this name, None if none was named; UsageError with the nearest one."""
    if name is None:
        return None
    try:
        return JobState(name)
    except ValueError:
        near = difflib.get_close_matches(name, [state.value for state in JobState], 1, 0.5)
        known = _OTHER_STATES.get(name.lower()) or next(iter(near), None)
        hint = "" if known is None else f"; the nearest is {str(known)!r}"
        raise UsageError(
            f"No state is called {name!r}{hint}. There are {', '.join(JobState)}."
        ) from None


@dataclass(frozen=True, slots=True)
class UnknownTaskName:
    """A task of which the store has no job: its name may be wrong."""

    task: str
    nearest: str | None  # that has jobs
    known: tuple[str, ...] = ()  # all that have some, by name


def unknown_task(store: Store, task: str | None) -> UnknownTaskName | None:
    """Compare the name of a task with those that have jobs; None if nothing is wrong with it."""
    if task is None:
        return None
    stats = store.stats().result()
    known = {*stats.shown_tasks, *stats.schedules}
    if task in known or task in stats.tasks:
        return None
    near = difflib.get_close_matches(task, known, 1)
    return UnknownTaskName(task, near[0] if near else None, tuple(sorted(known)))


def stored_tasks(store: Store, task: str | None) -> list[str | None]:
    """The names of a task in the store; a dataset has one for each root that it was built in."""
    if task is None or kind_of_name(task) is not JobKind.SLICE or "#" in task:
        return [task]
    known = [name for name in store.stats().result().tasks if task_name(name) == task]
    return [*known] or [task]


def named_jobs(store: Store, keys: Iterable[str]) -> tuple[list[Job], tuple[str, ...]]:
    """The jobs of these keys, each once, and the keys that no job has."""
    found = {key: store.job(key).result() for key in dict.fromkeys(keys)}
    unknown = tuple(key for key, job in found.items() if job is None)
    return [job for job in found.values() if job is not None], unknown


def what_fits(job: Job) -> str:
    """Why a job is neither tried again nor run again as it was asked for, and what fits instead."""
    key = job.key
    what = f"Job {key!r}"
    if job.kind is JobKind.TICK:
        return f"{what} is a unit of a schedule, {job.state}: it runs again by itself."
    if job.plan_id is not None or job.kind is not JobKind.JOB:
        return (
            f"{what} belongs to a build: the same 'penstock build' command builds what is missing, "
            "and with --force what is there."
        )
    match job.state:
        case JobState.DONE:
            return f"{what} is done: '{command('queue', 'rerun', key)}' runs it again."
        case JobState.ERROR:
            return f"{what} has failed: '{command('queue', 'retry', key)}' puts it back."
        case JobState.CANCELLED:
            anew = command("queue", "purge", key, "--yes")
            return f"{what} was cancelled: enqueue it anew after '{anew}'."
        case JobState.SKIPPED:
            return _skipped(job)
    why = f": '{command('why', key)}' says what it waits for" if job.state in _QUEUED else ""
    return f"{what} is {job.state}, it has not ended{why}."


_QUEUED = (JobState.WAITING, JobState.QUEUED)


def _skipped(job: Job) -> str:
    upstream = job.last_error is not None and job.last_error.kind == "upstream"
    if upstream:
        return (
            f"Job {job.key!r} was skipped because of another one: it follows when that one is put "
            f"back; '{command('why', job.key)}' names it."
        )
    anew = command("queue", "purge", job.key, "--yes")
    return f"Job {job.key!r} was skipped by its task: enqueue it anew after '{anew}'."


def answer(reply: Reply[T], store: Store) -> T:
    """Wait for a store that another process may hold, but not for ever."""
    return wait_for(
        reply, store, "this step changed nothing. Try again, or find what it waits for."
    )


def settle(store: Store) -> Settled:
    """Settle all dependants of ended jobs, and retries; what was put back by those, ever."""
    while (settled := answer(store.settle(), store)).more:
        continue
    return settled


def audit(url: str, text: str, *values: object) -> None:
    """Log who changed what by hand, in the store of this URL."""
    log.info(f"{text} (by %s, store %s)", *values, _user(), url)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return "an unnamed user"
