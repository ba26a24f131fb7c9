# SPDX-License-Identifier: Apache-2.0
"""What is told about the ends of attempts, to listeners and in the log?"""

from __future__ import annotations

import logging

from penstock.events.kinds import Correlation, SchedulerEventKind
from penstock.events.sink import SchedulerEvents
from penstock.model.dataset import task_name
from penstock.model.job import PREFLIGHT, SCHEDULE, AttemptError, JobState, LeasedJob
from penstock.model.lease import JobEnd, JobFailure, JobRef, Verdict
from penstock.worker.attempt import UNLIMITED, Attempt, AttemptEnd, TaskLimits
from penstock.worker.observer import WorkerObserver

MESSAGE_MAX = 500  # characters of an error in a log line

log = logging.getLogger("penstock.worker")

_SPAWNED = SchedulerEventKind.WORKER_SPAWNED
_COMPLETED = SchedulerEventKind.TASK_COMPLETED
_DROPPED = SchedulerEventKind.NON_RETRYABLE_DROPPED


class AttemptLog(WorkerObserver):
    """Turns ends into events and log lines. Decides nothing."""

    def __init__(self, events: SchedulerEvents, run_id: str) -> None:
        self._events = events
        self._run_id = run_id

    def started(self, attempt: Attempt) -> None:
        self._events.emit(_SPAWNED, attempt.correlation)

    def ended(self, attempt: Attempt, verdict: AttemptEnd) -> None:
        if type(verdict) is JobEnd and verdict.state is not JobState.ERROR:
            self._events.emit(_COMPLETED, attempt.correlation, verdict.state)
            if attempt.limits.recurring is not None:
                self._recovered(attempt.job)
        elif verdict is None:
            self._events.emit(SchedulerEventKind.CANCELLED, attempt.correlation, "lease lost")
        elif isinstance(verdict, JobRef):
            self._events.emit(SchedulerEventKind.CANCELLED, attempt.correlation, "released")
        else:
            self._went_wrong(attempt, verdict)

    def _went_wrong(self, attempt: Attempt, verdict: JobEnd | JobFailure) -> None:
        emit, correlation = self._events.emit, attempt.correlation
        category = verdict.error.category if verdict.error else None
        emit(_COMPLETED, correlation, category)
        goes_on = isinstance(verdict, JobFailure) and not verdict.ends
        kind = SchedulerEventKind.RETRY_DEFERRED if goes_on else _DROPPED
        emit(kind, correlation, category)
        self._log(attempt.job, verdict, attempt.limits)

    def spoilt(
        self, job: LeasedJob, verdict: JobEnd | JobFailure, limits: TaskLimits | None
    ) -> None:
        """The store has refused what an end was to bring."""
        self._log(job, verdict, limits)

    def _log(self, job: LeasedJob, verdict: JobEnd | JobFailure, limits: TaskLimits | None) -> None:
        shown = _shown(verdict.error)
        if not isinstance(verdict, JobFailure) or verdict.ends:
            level = logging.DEBUG if job.task.startswith(PREFLIGHT) else logging.ERROR
            log.log(level, "%s ended in error: %s", _name(job), shown)
            return
        if verdict.refused_by is not None:
            log.info(
                "%s was refused by %s and comes back in %.1f s; no attempt is spent.",
                _name(job),
                verdict.refused_by,
                verdict.delay_seconds,
            )
            return
        degraded = verdict.charge and job.task.startswith(SCHEDULE)
        log.log(
            logging.ERROR if degraded else logging.WARNING,
            "%s %s and is tried again in %.1f s (%s): %s",
            _name(job),
            "is degraded" if degraded else "failed",
            verdict.delay_seconds,
            _cost(job, verdict, limits),
            shown,
        )

    @staticmethod
    def _recovered(job: LeasedJob) -> None:
        if job.task.startswith(SCHEDULE) and (job.attempts or job.deferred_since is not None):
            log.info("%s is well again.", _name(job))

    def refused(self, end: JobEnd | JobFailure, verdict: Verdict) -> None:
        """The store did not take an end."""
        ref, key, task = named(end)
        if verdict is Verdict.STALE:
            log.warning(
                "Job %r is no longer held by this worker; what its attempt %d did was discarded.",
                key,
                ref.token,
            )
        self._events.emit(
            SchedulerEventKind.RELEASE_DIAGNOSTIC,
            Correlation(self._run_id, task, job_id=ref.id),
            verdict,
        )


def named(end: JobEnd | JobFailure) -> tuple[JobRef, str, str]:
    """The lease, the key and the task of an end."""
    if isinstance(end, JobFailure):
        return end.ref, end.key, end.task
    return JobRef(end.job.id, end.job.token), end.job.key, end.job.task


def _cost(job: LeasedJob, failure: JobFailure, limits: TaskLimits | None) -> str:
    """What a failure costs, in words."""
    if failure.crashed:
        return f"crash {job.crashes + 1}" + (f" of {limits.max_crashes}" if limits else "")
    if not failure.charge:
        return "not charged"
    if limits is None or limits.max_attempts == UNLIMITED:
        return f"try {job.attempts + 1}"
    return f"attempt {job.attempts + 1} of {limits.max_attempts}"


def _name(job: LeasedJob) -> str:
    """What people call it."""
    if job.task.startswith(SCHEDULE):
        return f"The schedule {job.key!r}"
    if job.task.startswith(PREFLIGHT):
        return f"The preflight {job.key!r}"
    return f"Job {job.key!r} of task {task_name(job.task)!r}"


def _shown(error: AttemptError | None) -> str:
    if error is None:
        return ""
    where = f" ({error.where})" if error.where else ""
    return f"{error.kind}: {error.message[:MESSAGE_MAX]}{where}"
