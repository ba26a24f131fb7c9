# SPDX-License-Identifier: Apache-2.0
"""Results as users read them: the view of a job, and how JSON becomes the type of a task again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from penstock.clock import Duration, to_datetime
from penstock.errors import (
    JobCancelled,
    JobFailed,
    JobNotEnded,
    JobSkipped,
    PayloadError,
    UsageError,
)
from penstock.model.job import Job, JobState
from penstock.sentences import command

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it was when it was looked at; `app.job(key)` gives one."""

    key: str
    task: str
    group: str
    partition: str | None
    priority: int
    state: JobState
    result: Any  # the JSON value that it returned last; None: nothing
    error: str | None  # why its last attempt failed, or why it was skipped
    attempts: int  # that were its own fault, so far
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @property
    def ended(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self.state.ended


def view_of(job: Job) -> JobView:
    """What users see of a job."""
    return JobView(
        key=job.key,
        task=job.task,
        group=job.group,
        partition=job.partition,
        priority=job.priority,
        state=job.state,
        result=None if job.result is None else msgspec.json.decode(job.result),
        error=None if job.last_error is None else _reason(job),
        attempts=job.attempts,
        created_at=to_datetime(job.created_at),
        started_at=None if job.started_at is None else to_datetime(job.started_at),
        finished_at=None if job.finished_at is None else to_datetime(job.finished_at),
    )


def check_done(job: Job) -> None:
    """Raise what a job without a result has come to."""
    what = f"Job {job.key!r} of task {job.task!r}"
    if job.state is JobState.DONE:
        return
    if job.state is JobState.ERROR:
        raise JobFailed(
            f"{what} has failed: {_reason(job)}", job.key, job.state, _reason(job), job.attempts
        )
    if job.state is JobState.SKIPPED:
        raise JobSkipped(f"{what} was skipped: {_reason(job)}", job.key, job.state, _reason(job))
    if job.state is JobState.CANCELLED:
        raise JobCancelled(f"{what} was cancelled.", job.key, job.state, "")
    raise JobNotEnded(
        f"{what} has not ended: it is {job.state}. Wait for it with timeout=, or see what it waits "
        f"for: {command('why', job.key)}",
        job.key,
        job.state,
        "",
    )


def _reason(job: Job) -> str:
    error = job.last_error
    if error is None:
        return ""
    says_itself = job.state is JobState.SKIPPED or error.message.startswith(f"{error.kind} ")
    return error.message if says_itself else f"{error.kind}: {error.message}"


class ResultReader(Protocol):
    """Reads results of jobs; what an app is to its tasks."""

    def ended_job(self, key: str, timeout: Duration | None) -> Job:
        """The job of a key once it has ended, or as it is when time is up."""
        ...

    async def ended_job_async(self, key: str, timeout: Duration | None) -> Job:
        """The same on an event loop."""
        ...

    def results_of(self, task: str, since: datetime | None) -> Iterator[tuple[str, str | None]]:
        """Key and JSON text of every done job of a task, by end, from a moment on."""
        ...

    def results_of_async(
        self, task: str, since: datetime | None
    ) -> AsyncIterator[tuple[str, str | None]]:
        """The same on an event loop."""
        ...


class Returning(Protocol[R_co]):
    """A task, as far as its results are concerned."""

    @property
    def name(self) -> str: ...

    def read_result(self, key: str, text: str | None) -> R_co:
        """The value that a job of this key returned, from its JSON text."""
        ...


class ResultCodec(Generic[R]):
    """Owns the type that a task returns, as its signature says; made when it is first needed."""

    def __init__(self, task: str, kind: Any, hook: Callable[[Any, Any], Any]) -> None:  # noqa: ANN401
        """Read an annotation.

        Args:
            task: the name of the task.
            kind: what it returns; Any where nothing is said.
            hook: makes an object of a foreign class from its JSON value.
        """
        self._task, self._kind = task, kind
        try:
            self._decoder: msgspec.json.Decoder[R] = msgspec.json.Decoder(kind, dec_hook=hook)
        except (TypeError, ValueError, NotImplementedError) as error:
            raise UsageError(
                f"Results of task {task!r} cannot become {_shown(kind)} again: {error}. Annotate "
                "a type that JSON can become, or read `app.job(key).result`."
            ) from None

    def decode(self, key: str, text: str | None) -> R:
        try:
            return self._decoder.decode("null" if text is None else text)
        except (msgspec.ValidationError, ValueError) as error:
            raise PayloadError(
                f"The result of job {key!r} is not the {_shown(self._kind)} that task "
                f"{self._task!r} is annotated with: {error}. It may have been made by an earlier "
                "version of the task; `app.job(key).result` is what it returned."
            ) from None


def _shown(kind: object) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)[:100]
