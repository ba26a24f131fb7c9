# SPDX-License-Identifier: Apache-2.0
"""Jobs: durable units of work, their kinds, states, edges and errors."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any, NewType

import msgspec

from penstock.redaction.secrets import ERROR_BYTES_MAX as ERROR_BYTES_MAX
from penstock.redaction.secrets import storable_text

JobId = NewType("JobId", int)
WorkerId = NewType("WorkerId", str)

KEY_LENGTH_MAX = 512  # characters
NAME_LENGTH_MAX = 256  # characters, of task, group and limit keys
PAYLOAD_BYTES_MAX = 1024 * 1024
RESULT_BYTES_MAX = 1024 * 1024
BATCH_JOBS_MAX = 10_000  # jobs of one enqueue call or one acknowledgement


class JobState(StrEnum):
    """Where a job is, as people see it."""

    WAITING = "waiting"  # waits for another job; a unit of a schedule: is due, and paused
    QUEUED = "queued"  # waits for its turn, or for its time
    IN_PROGRESS = "in_progress"  # is leased by a worker
    DONE = "done"  # has succeeded; its result is kept, also while it runs again
    SKIPPED = "skipped"  # was skipped by its task, or a job that it needs did not succeed
    ERROR = "error"  # has failed for good; `penstock queue retry` and `retry-failed` put it back
    CANCELLED = "cancelled"  # was cancelled by an operator

    @property
    def ended(self) -> bool:
        """Whether it is an end; `queue retry` and `rerun` begin anew."""
        return self in TERMINAL


TERMINAL = frozenset({JobState.DONE, JobState.SKIPPED, JobState.ERROR, JobState.CANCELLED})

#: from → to → what does it. The one table; docs/reference/states.md is made from it.
TRANSITIONS: dict[JobState, dict[JobState, str]] = {
    JobState.WAITING: {
        JobState.QUEUED: "its last dependency ended as it had to",
        JobState.SKIPPED: "a dependency it needs ended otherwise",
        JobState.CANCELLED: "an operator",
    },
    JobState.QUEUED: {
        JobState.IN_PROGRESS: "a worker leases it",
        JobState.CANCELLED: "an operator",
    },
    JobState.IN_PROGRESS: {
        JobState.QUEUED: "retry, release, lost lease, or re-armed",
        JobState.DONE: "acknowledged",
        JobState.SKIPPED: "the task raised Skip",
        JobState.ERROR: "its attempts are used up, or it crashed alone too often",
        JobState.CANCELLED: "an operator",
    },
    JobState.DONE: {JobState.QUEUED: "rerun"},
    JobState.SKIPPED: {JobState.WAITING: "retry or retry-failed of what it waits for"},
    JobState.ERROR: {JobState.QUEUED: "retry or retry-failed"},
    JobState.CANCELLED: {},
}

#: The same, for a unit of a schedule only: its job is never ended for good.
UNIT_TRANSITIONS: dict[JobState, dict[JobState, str]] = {
    JobState.DONE: {JobState.QUEUED: "armed again"},
    JobState.SKIPPED: {JobState.QUEUED: "armed again"},
    JobState.ERROR: {JobState.QUEUED: "armed again", JobState.CANCELLED: "retired"},
    JobState.CANCELLED: {JobState.QUEUED: "armed again"},
    JobState.QUEUED: {JobState.WAITING: "due, and paused"},
    JobState.WAITING: {JobState.QUEUED: "resumed, or armed with another timing"},
}


#: The same, for what the jobs of a build wait for until all of them are there.
START_TRANSITIONS: dict[JobState, dict[JobState, str]] = {
    JobState.QUEUED: {JobState.DONE: "its plan begins"},
}


class JobKind(StrEnum):
    """What a job is for; all jobs of a lane are of one kind."""

    JOB = "job"  # a plain job of a task
    TICK = "tick"  # a unit of a schedule: armed again at each end
    PREFLIGHT = "preflight"  # a check before a daemon starts; only in the memory of its process
    SLICE = "slice"  # slices of a dataset
    STEP = "step"  # a start, barrier, gate, join or end of a plan
    ROW_GROUP = "row_group"  # rows of a table

    __hash__ = str.__hash__  # that of Enum is written in Python, and every new job hashes its lane

    @property
    def is_built(self) -> bool:
        """Whether such jobs belong to the plan of a build."""
        return self in (JobKind.SLICE, JobKind.STEP)


#: How names of tasks and keys of units begin that are not plain jobs'; tasks of users never do.
SCHEDULE, PREFLIGHT, SLICE = "schedule:", "preflight:", "dataset:"
STEP = "dataset:@step"  # the task of barriers, gates, joins and ends
START = "dataset:@start"  # the task of what a plan waits for until it is complete


def kind_of_name(name: str) -> JobKind:
    """The kind that a task's name or a unit's key tells, where no lane is at hand."""
    if name.startswith(SCHEDULE):
        return JobKind.TICK
    if name.startswith(PREFLIGHT):
        return JobKind.PREFLIGHT
    if name.startswith((STEP, START)):
        return JobKind.STEP
    return JobKind.SLICE if name.startswith(SLICE) else JobKind.JOB


#: How people call a slice: prices@2024-01-05.
_SLICE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,127}@\d{4}-", re.ASCII)


def kind_of_key(key: str) -> JobKind:
    """The kind of what a person has named: a unit, a check, a slice as people call it, or a job."""
    return JobKind.SLICE if _SLICE_NAME.match(key) else kind_of_name(key)


class EdgeKind(StrEnum):
    """When a dependency lets its dependant go."""

    SUCCESS = "success"  # the other must be done
    FINISHED = "finished"  # the other must have ended, in whatever way


class Edge(msgspec.Struct, frozen=True):
    """A job waits for the job of this key."""

    key: str
    kind: EdgeKind = EdgeKind.SUCCESS


def finished(key: str) -> Edge:
    """Say in `after=` that a job may run when another has ended, whatever its end."""
    return Edge(key, EdgeKind.FINISHED)


class ErrorCategory(StrEnum):
    """Whose fault the end of an attempt was."""

    OWN = "own"  # the task; charged
    TIMEOUT = "timeout"  # the task ran past its limit; charged
    CRASHED = "crashed"  # its worker died while it ran alone; a poison job ends with it
    NODE = "node"  # the transport; not charged
    SERVICE = "service"  # the other side, which asks for patience; not charged


ERROR_SHOWN_MAX = 500  # characters of a message where it stands in a sentence


class AttemptError(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why an attempt failed, for people. Bounded in length and redacted here, whoever makes it."""

    category: ErrorCategory
    kind: str  # the exception's class, or a word
    message: str
    where: str | None = None  # file, line and function of the user's code that raised
    traceback: str | None = None  # the user's frames; of a job's last error only

    def __post_init__(self) -> None:
        keep = msgspec.structs.force_setattr
        keep(self, "kind", storable_text(self.kind))
        keep(self, "message", storable_text(self.message))
        if self.where is not None:
            keep(self, "where", storable_text(self.where))
        if self.traceback is not None:
            keep(self, "traceback", storable_text(self.traceback))

    def without_traceback(self) -> AttemptError:
        """The same for a history, which keeps no tracebacks."""
        return self if self.traceback is None else msgspec.structs.replace(self, traceback=None)

    def format(self) -> str:
        """Kind: message (where), on one line without its full stop: as everybody words it."""
        line = " ".join(self.message.split()).rstrip(".")
        if len(line) > ERROR_SHOWN_MAX:
            line = f"{line[: ERROR_SHOWN_MAX - 1]}…"
        if not line.startswith(f"{self.kind} "):  # else it says so itself
            line = f"{self.kind}: {line}" if line else self.kind
        return f"{line} ({self.where})" if self.where else line


class NewJob(msgspec.Struct, frozen=True, kw_only=True):
    """What a producer hands to a store."""

    key: str
    task: str
    kind: JobKind = JobKind.JOB
    payload: str  # strict JSON text
    group: str
    limit_keys: tuple[str, ...] = ()  # sorted, each once
    partition: str | None = None
    priority: int = 0
    delay_seconds: float = 0.0
    after: tuple[Edge, ...] = ()
    plan_id: str | None = None
    level: int | None = None


class LeasedJob(msgspec.Struct, array_like=True, gc=False):
    """A job as its worker holds it. The order of fields is the order of columns in `take_jobs`."""

    id: JobId
    token: int
    key: str
    task: str
    group: str
    lane_id: int
    payload: str
    attempts: int = 0  # charged so far
    crashes: int = 0
    priority: int = 0
    due_at: int = 0  # the time it was meant for; retries do not change it
    deferred_since: int | None = None
    partition: str | None = None
    plan_id: str | None = None
    level: int | None = None
    limited: bool = False  # its lane has limit keys
    kind: JobKind = JobKind.JOB
    cell: int | None = None  # a suspect's: it runs with those of its cell only, in 0 alone
    brought: Any = None  # what its worker has read for it: a cursor, slices; no store sets it


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """The whole row, for people."""

    id: JobId
    key: str
    task: str
    kind: JobKind = JobKind.JOB
    app: str = ""  # that it belongs to
    group: str
    partition: str | None
    limit_keys: tuple[str, ...]
    priority: int
    payload: str
    state: JobState
    suspect: bool
    token: int
    worker: WorkerId | None
    attempts: int
    crashes: int
    deferred_since: int | None
    available_at: int
    pending: int
    plan_id: str | None
    level: int | None
    result: str | None
    last_error: AttemptError | None
    created_at: int
    updated_at: int
    started_at: int | None
    finished_at: int | None


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One row of history, written when an attempt ended."""

    token: int
    worker: WorkerId
    outcome: str  # a terminal state, `retry`, `lost` or `crashed`
    started_at: int | None
    ended_at: int
    error: AttemptError | None
