# SPDX-License-Identifier: Apache-2.0
"""The plain kind of job: an ordinary function, whose JSON result is kept."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Protocol

import msgspec

from penstock.definitions.context import Context, JobInfo
from penstock.definitions.task import PROCESS
from penstock.errors import EnqueueRefused, PenstockError, Skip
from penstock.model.dataset import task_name
from penstock.model.job import AttemptError, ErrorCategory, JobId, JobState, LeasedJob
from penstock.model.lease import EnqueueJobs, JobEnd, JobFailure
from penstock.model.views import UpstreamRow
from penstock.retry.policy import RetryDecision, RetryPolicy
from penstock.stores.store_future import Reply
from penstock.worker.attempt import (
    Attempt,
    AttemptEnd,
    Encoded,
    TaskLimits,
    encode,
    message_of,
    told,
)
from penstock.worker.kind import JobReader

_NO_VALUES: Mapping[str, str] = {}


class PreflightValues(Protocol):
    """What preflights have returned."""

    def of_job(self, partition: str | None) -> Mapping[str, str]: ...


class PlainKind:
    """Jobs of tasks; other kinds override what differs."""

    recurs = False
    releases_stale = False
    error_level = logging.ERROR
    holds_doubts = True
    payload_is_final = True

    def __init__(
        self,
        values: PreflightValues | None = None,
        reader: JobReader | None = None,
        upstream: Callable[[JobId], Reply[list[UpstreamRow]]] | None = None,
    ) -> None:
        """Jobs of tasks.

        Args:
            values: what preflights have returned.
            reader: prepares jobs before they enter the prefetch window.
            upstream: reads what a job was enqueued after.
        """
        self._values = values
        self.reader = reader
        self._upstream = upstream

    def named(self, job: LeasedJob) -> str:
        return f"Job {job.key!r} of task {task_name(job.task)!r}"

    def context(self, job: LeasedJob, started_at: int) -> Context:
        values = _NO_VALUES if self._values is None else self._values.of_job(job.partition)
        return Context(job_info(job), values, partial(self._read_upstream, job))

    def before(self, attempt: Attempt) -> Coroutine[Any, Any, None] | None:
        if self._upstream is None or attempt.task.slot_kind != PROCESS:
            return None  # it reads what it asks for
        return self._bring_upstream(attempt.job)

    async def _bring_upstream(self, job: LeasedJob) -> None:
        """Read what goes to another process, which has no store."""
        job.brought = await self._read_upstream(job)

    def _read_upstream(self, job: LeasedJob) -> Reply[list[UpstreamRow]]:
        if job.brought is not None or self._upstream is None:
            return Reply.of(job.brought or [])
        return self._upstream(job.id)

    def remote_order(self, context: Context) -> str | None:
        if self._upstream is None:
            return None
        return msgspec.json.encode(context._upstream_rows().result()).decode()

    def encoded(self, attempt: Attempt, value: Any, *, at_once: bool) -> Any:  # noqa: ANN401
        return encode(value, at_once=at_once)

    def returned(
        self,
        attempt: Attempt,
        value: Any,  # noqa: ANN401 (what `encoded` has made)
        now_at: int,
    ) -> JobEnd:
        job, result = attempt.job, None
        if type(value) is Encoded:
            if value.problem is not None:
                why = AttemptError(ErrorCategory.OWN, "result", told(attempt, value.problem))
                return JobEnd(job, JobState.ERROR, attempt.started_at, now_at, error=why)
            result = value.text
        enqueued = attempt.context._enqueued
        if enqueued:
            effects = (EnqueueJobs(tuple(enqueued)),)
            return JobEnd(job, JobState.DONE, attempt.started_at, now_at, result, None, effects)
        return JobEnd(job, JobState.DONE, attempt.started_at, now_at, result)

    def skipped(self, attempt: Attempt, error: Skip, now_at: int) -> JobEnd:
        reason = AttemptError(ErrorCategory.OWN, "Skip", told(attempt, message_of(error)))
        return JobEnd(attempt.job, JobState.SKIPPED, attempt.started_at, now_at, error=reason)

    def retry_rule(self, policy: RetryPolicy, limits: TaskLimits) -> Callable[..., RetryDecision]:
        return partial(policy.decide, within_seconds=limits.within_seconds)

    def refused(self, end: JobEnd, error: PenstockError) -> JobEnd | JobFailure:
        """Its own fault, and trying again cannot help."""
        why = refusal_error(error)
        return JobEnd(end.job, JobState.ERROR, end.started_at, end.ended_at, error=why)

    def ended(self, job: LeasedJob, end: AttemptEnd) -> str | None:
        return None


def job_info(job: LeasedJob) -> JobInfo:
    """What a body is told of its own job."""
    return JobInfo(job.key, job.task, job.attempts + 1, job.partition)


def refusal_error(error: PenstockError) -> AttemptError:
    """Why the effects of an end were refused."""
    kind = "enqueue" if isinstance(error, EnqueueRefused) else type(error).__name__
    return AttemptError(ErrorCategory.OWN, kind, str(error))
