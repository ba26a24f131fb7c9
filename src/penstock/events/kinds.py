# SPDX-License-Identifier: Apache-2.0
"""Which events exist, and what do they carry?

Scheduler events and (later) request events are separate streams. An event is a plain immutable
value built from what is at hand; the durable record of a job is its history in the store.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from penstock.events.correlation import Correlation


class SchedulerEventKind(StrEnum):
    """What the scheduler stream can say so far; docs/events.md is tested against this."""

    SCHEDULER_JOB_STARTED = "scheduler_job_started"  # a run of the engine began
    SCHEDULER_JOB_COMPLETED = "scheduler_job_completed"  # a run of the engine ended
    SCHEDULER_HEALTH_SNAPSHOT = "scheduler_health_snapshot"  # how a run stands, in numbers
    DEPENDENCY_READY = "dependency_ready"  # the last thing that a task waited for is done
    READY_ENQUEUED = "ready_enqueued"  # ready tasks were taken into the fair queue
    SELECTED = "selected"  # it is this task's turn
    QUEUE_EMPTY = "queue_empty"  # nothing to start although there is room
    ADMISSION_BLOCKED = "admission_blocked"  # nothing that is queued can start
    GROUP_CAPPED = "group_capped"  # the same, mostly because groups have their share
    REQUEST_PRESSURE_ADVISORY_SKIPPED = "request_pressure_advisory_skipped"  # ... of their provider
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
