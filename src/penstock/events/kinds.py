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
    READY_ENQUEUED = "ready_enqueued"  # leased jobs entered the ready window
    QUEUE_EMPTY = "queue_empty"  # nothing to start although there is room
    WORKER_SPAWNED = "worker_spawned"  # an attempt began in a slot
    TASK_COMPLETED = "task_completed"  # an attempt's body ended
    RETRY_DEFERRED = "retry_deferred"  # the job will be tried again later
    NON_RETRYABLE_DROPPED = "non_retryable_dropped"  # the job ended in error
    CANCELLED = "cancelled"  # an attempt was cancelled
    RELEASE_DIAGNOSTIC = "release_diagnostic"  # an acknowledgement was refused


class SchedulerEvent(msgspec.Struct, frozen=True, gc=False):
    """One thing that happened in the scheduler's stream."""

    event_kind: SchedulerEventKind
    captured_at_monotonic: float
    sequence: int  # without gaps per run, process and stream
    correlation: Correlation
    reason: str | None = None  # reason or outcome
    numbers: dict[str, float] | None = None
