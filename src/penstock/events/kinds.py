# SPDX-License-Identifier: Apache-2.0
"""The kinds of events, what each carries, and the correlation ids (run, task, job).

Scheduler events and request events are separate streams. An event is a plain immutable value
built from what is at hand; the durable record of a job is its history in the store.
"""

from __future__ import annotations

from contextvars import ContextVar
from enum import StrEnum

import msgspec

from penstock.model.provider import RequestResourceKey


class Correlation(msgspec.Struct, frozen=True, gc=False):
    """Captured when an event is made; a sink never looks it up later."""

    run_id: str
    task: str | None = None
    partition: str | None = None
    group: str | None = None
    job_id: int | None = None
    execution: int | None = None  # which start of it: the token of a job's lease

    @property
    def task_execution_id(self) -> str | None:
        """One start of one task; made when somebody asks, which costs less than for every job."""
        if self.execution is None:
            return None
        return f"{self.task if self.job_id is None else self.job_id}:{self.execution}"


#: Follows child tasks and threads of an attempt.
current: ContextVar[Correlation | None] = ContextVar("penstock_correlation", default=None)


class SchedulerEventKind(StrEnum):
    """What the scheduler stream can say so far; docs/reference/events.md is made from this.

    `selected`, `task_lease_acquired` and `task_lease_released` are told for every task when
    somebody listens (a sink of yours, or the log at debug level). The last events that a worker
    keeps in memory leave them out: `worker_spawned` and `task_completed` of the same attempt say
    as much.
    """

    SCHEDULER_JOB_STARTED = "scheduler_job_started"  # a run of the engine began
    SCHEDULER_JOB_COMPLETED = "scheduler_job_completed"  # a run of the engine ended
    SCHEDULER_HEALTH_SNAPSHOT = "scheduler_health_snapshot"  # how a run stands, in numbers
    READY_ENQUEUED = "ready_enqueued"  # ready tasks were taken into the fair queue
    SELECTED = "selected"  # it is this task's turn
    QUEUE_EMPTY = "queue_empty"  # nothing to start although there is room
    ADMISSION_BLOCKED = "admission_blocked"  # nothing that is queued can start
    GROUP_CAPPED = "group_capped"  # the same, mostly because groups have their share
    #: the same, mostly because of the pressure on their provider
    REQUEST_PRESSURE_ADVISORY_SKIPPED = "request_pressure_advisory_skipped"
    TASK_LEASE_ACQUIRED = "task_lease_acquired"  # a task got its resources
    ADMISSION_DENIED = "admission_denied"  # a selected task did not get its resources
    WORKER_SPAWNED = "worker_spawned"  # an attempt began in a slot
    WORKER_SPAWN_FAILED = "worker_spawn_failed"  # an attempt could not begin
    STALE_SELECTION = "stale_selection"  # the queue had changed since the selection
    TASK_COMPLETED = "task_completed"  # an attempt's body ended
    RETRY_DEFERRED = "retry_deferred"  # the job will be tried again later
    SALVAGE_REDISPATCHED = "salvage_redispatched"  # a task that failed is ready again
    NON_RETRYABLE_DROPPED = "non_retryable_dropped"  # the job ended in error
    CANCELLED = "cancelled"  # an attempt was cancelled
    QUEUE_DRAINED = "queue_drained"  # all tasks of a graph have ended
    TASK_LEASE_RELEASED = "task_lease_released"  # a task gave its resources back
    RELEASE_DIAGNOSTIC = "release_diagnostic"  # a release or an acknowledgement was refused


class SchedulerEvent(msgspec.Struct, frozen=True, gc=False):
    """One thing that happened in the scheduler's stream."""

    event_kind: SchedulerEventKind
    captured_at_monotonic: float
    sequence: int  # without gaps per run, process and stream
    correlation: Correlation
    reason: str | None = None  # reason or outcome
    numbers: dict[str, float] | None = None


class RequestEventKind(StrEnum):
    """What the request stream can say; docs/reference/events.md is made from this.

    `model_request_started` and `model_request_completed` come from whoever sends, all others from
    admission; `numbers` of the second hold the `seconds` since its permit and, where they are
    known, `status`, `bytes` from the wire, `tokens` and `retry_after_seconds`. A listener that
    wants every step hears of these two, of `request_lease_acquired` and `request_lease_released`,
    and of waits of no length (`seconds` 0) for requests that could leave at once, so that "no
    wait" differs from "not measured". The last events that a worker keeps in memory leave these
    out. `numbers` of a completed wait hold its `seconds`, those of a limit the new `limit`.
    """

    #: the first request of a resource (provider, model, domain) asks
    REQUEST_RESOURCE_REGISTERED = "request_resource_registered"
    #: other caps, or another share of them, hold for a resource
    REQUEST_EFFECTIVE_CAP_CHANGED = "request_effective_cap_changed"
    REQUEST_QUEUE_FORMED = "request_queue_formed"  # somebody waits for a resource
    REQUEST_WAIT_STARTED = "request_wait_started"  # a request asks for its turn
    REQUEST_WAIT_COMPLETED = "request_wait_completed"  # it got it, after so many seconds
    REQUEST_WAIT_TIMEOUT = "request_wait_timeout"  # it waited as long as it was allowed to
    REQUEST_WAIT_CANCELLED = "request_wait_cancelled"  # whoever waited has given up
    #: a request may not leave, and does not wait; `reason` says why
    REQUEST_ACQUIRE_DENIED = "request_acquire_denied"
    REQUEST_LEASE_ACQUIRED = "request_lease_acquired"  # a request may leave
    MODEL_REQUEST_STARTED = "model_request_started"  # it is sent
    #: its reply is read, or it failed; `reason` is its outcome
    MODEL_REQUEST_COMPLETED = "model_request_completed"
    REQUEST_QUEUE_DRAINED = "request_queue_drained"  # nobody waits for a resource any more
    REQUEST_RATE_LIMITED = "request_rate_limited"  # a 429, or 503 with Retry-After
    REQUEST_LIMIT_DECREASED = "request_limit_decreased"  # fewer may be in flight
    REQUEST_LIMIT_INCREASED = "request_limit_increased"  # more may be in flight
    #: the limit is above the level of the last refusal
    REQUEST_SOFT_CEILING_RECOVERED = "request_soft_ceiling_recovered"
    #: the limit is at its maximum, and there is no cool-down
    REQUEST_FULLY_RECOVERED = "request_fully_recovered"
    REQUEST_LEASE_RELEASED = "request_lease_released"  # a request has ended
    #: a release was refused, or a limit's own code raised
    REQUEST_RELEASE_DIAGNOSTIC = "request_release_diagnostic"


class RequestEvent(msgspec.Struct, frozen=True, gc=False):
    """One thing that happened in the stream of outbound requests."""

    event_kind: RequestEventKind
    captured_at_monotonic: float
    sequence: int  # without gaps per run, process and stream
    correlation: Correlation
    resource: RequestResourceKey
    reason: str | None = None  # reason or outcome
    numbers: dict[str, float] | None = None
    lease_id: int | None = None
