# SPDX-License-Identifier: Apache-2.0
"""Log lines and events about attempts: started, retried, ended in error, recovered.

Refused connections are told of once for each address, when it has refused for as long as a minute:
nothing listens there, or the address is wrong, and no retry will mend that.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from penstock.clock import Clock
from penstock.events.kinds import Correlation, SchedulerEventKind
from penstock.events.sink import SchedulerEvents
from penstock.model.job import JobId, JobKind, JobState, LeasedJob
from penstock.model.lease import JobEnd, JobFailure, JobRef, Verdict
from penstock.retry.policy import RetryPolicy
from penstock.terminal_text import format_duration
from penstock.worker.attempt import UNLIMITED, Attempt, AttemptEnd, TaskLimits
from penstock.worker.kind import ServedTask
from penstock.worker.observer import Tick, WorkerObserver
from penstock.worker.parts import SupervisorLink

REFUSED_SECONDS = 60.0  # so long a refused connection may be a restart

log = logging.getLogger("penstock.worker")

_SPAWNED = SchedulerEventKind.WORKER_SPAWNED
_COMPLETED = SchedulerEventKind.TASK_COMPLETED
_DROPPED = SchedulerEventKind.NON_RETRYABLE_DROPPED


class AttemptLog(WorkerObserver):
    """Turns ends into events and log lines. Decides nothing."""

    def __init__(
        self, events: SchedulerEvents, run_id: str, tasks: Mapping[str, ServedTask]
    ) -> None:
        self._events = events
        self._tasks = tasks
        self._run_id = run_id

    def started(self, attempt: Attempt) -> None:
        self._events.emit(_SPAWNED, attempt.correlation)

    def ended(self, attempt: Attempt, verdict: AttemptEnd) -> None:
        if type(verdict) is JobEnd and verdict.state is not JobState.ERROR:
            self._events.emit(_COMPLETED, attempt.correlation, verdict.state)
            if attempt.job.attempts or attempt.job.deferred_since is not None:
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
        self._log(attempt.job, verdict)

    def effects_refused(self, job: LeasedJob, verdict: JobEnd | JobFailure) -> None:
        """The store has refused what an end was to bring."""
        self._log(job, verdict)

    def _log(self, job: LeasedJob, verdict: JobEnd | JobFailure) -> None:
        _, limits, kind = self._tasks[job.task]
        shown = verdict.error.format() if verdict.error else ""
        name = kind.named(job)
        if not isinstance(verdict, JobFailure) or verdict.ends:
            log.log(kind.error_level, "%s ended in error: %s", name, shown)
            return
        if verdict.refused_by is not None:
            log.info(
                "%s was refused by %s and comes back in %.1f s; no attempt is spent.",
                name,
                verdict.refused_by,
                verdict.delay_seconds,
            )
            return
        degraded = verdict.charge and kind.recurs
        log.log(
            logging.ERROR if degraded else logging.WARNING,
            "%s %s and is tried again in %.1f s (%s): %s",
            name,
            "is degraded" if degraded else "ended in an error",
            verdict.delay_seconds,
            _cost(job, verdict, limits),
            shown,
        )

    def _recovered(self, job: LeasedJob) -> None:
        kind = self._tasks[job.task].kind
        if kind.recurs:
            log.info("%s has recovered.", kind.named(job))

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


def _cost(job: LeasedJob, failure: JobFailure, limits: TaskLimits) -> str:
    """What a failure costs, in words."""
    if failure.crashed:
        return f"crash {job.crashes + 1} of {limits.max_crashes}"
    if not failure.charge:
        return "not charged"
    if limits.max_attempts == UNLIMITED:
        return f"try {job.attempts + 1}"
    return f"attempt {job.attempts + 1} of {limits.max_attempts}"


def _log(_subject: str, sentence: str) -> None:
    log.warning("%s", sentence)


class BypassedProviders(WorkerObserver):
    """Warns of tasks whose first done job made no call through the paid provider of its task.

    A client of its own, such as an SDK without `http_client=`, passes the journal and budgets by.
    """

    def __init__(self, tasks: Mapping[str, ServedTask], paid: Collection[str]) -> None:
        self._unseen = {  # task → its paid provider, until one of its jobs has called it
            name: endpoint.resource.provider
            for name, one in tasks.items()
            for endpoint in one.task.endpoints
            if endpoint.resource.provider in paid
        }

    def ended(self, attempt: Attempt, end: AttemptEnd) -> None:
        job, calls, context = attempt.job, attempt.calls, attempt.request_context
        provider = self._unseen.get(job.task)
        if provider is None or job.kind is not JobKind.JOB or calls is None or context is None:
            return
        has_called = calls.has_any or context.has_called(provider)
        is_done = type(end) is JobEnd and end.state is JobState.DONE
        if has_called or is_done:
            del self._unseen[job.task]
        if is_done and not has_called:
            log.warning(
                "Job %r of task %r is done without a call through its paid provider %r. What a "
                "client of its own has sent is neither kept nor counted in budgets; give an SDK "
                "http_client=PROVIDER.http_client().",
                job.key,
                job.task,
                provider,
            )


@dataclass(slots=True)
class _Refusals:
    """What is known of one address."""

    since: float  # monotonic
    task: str  # that was refused first
    policy: RetryPolicy  # of that task
    jobs: set[JobId] = field(default_factory=set)  # that wait for it
    is_told: bool = False


class RefusedConnections(WorkerObserver):
    """Owns which addresses refuse connections, since when, and which were told of.

    An address counts from its first refusal on, until a job that it has refused ends otherwise.
    """

    def __init__(self, clock: Clock, supervisor: SupervisorLink | None = None) -> None:
        """No address is known.

        Args:
            clock: of this process.
            supervisor: tells of an address once, whichever worker noticed it; None: it is logged.
        """
        self._clock = clock
        self._tell_once = _log if supervisor is None else supervisor.tell_once
        self._refusals: dict[str, _Refusals] = {}

    def ended(self, attempt: Attempt, end: AttemptEnd) -> None:
        job = attempt.job
        address = end.refused_at if isinstance(end, JobFailure) else None
        for known in [name for name, one in self._refusals.items() if job.id in one.jobs]:
            if known != address:
                del self._refusals[known]
        if address is None or not isinstance(end, JobFailure):
            return
        found = self._refusals.get(address)
        if found is None:
            found = self._refusals[address] = _Refusals(
                self._clock.monotonic(), job.task, attempt.limits.policy
            )
        found.jobs.add(job.id)

    def ticked(self, tick: Tick) -> None:
        now = self._clock.monotonic()
        for address, found in self._refusals.items():
            if not found.is_told and now - found.since >= REFUSED_SECONDS:
                found.is_told = True
                self._tell(address, found, now)

    def _tell(self, address: str, found: _Refusals, now: float) -> None:
        self._tell_once(
            address or found.task,
            f"Connection refused by {address or 'an address that its error does not name'} for "
            f"{format_duration(now - found.since)}: start what should listen there, or correct the "
            f"address; task {found.task!r} is tried again, uncharged, for up to "
            f"{format_duration(found.policy.give_up_after_seconds)} "
            f"({found.policy.give_up_set_by}).",
        )
