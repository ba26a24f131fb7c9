# SPDX-License-Identifier: Apache-2.0
"""Leases of jobs: requests for them, how they end under their tokens, and with which effects."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple, Protocol

import msgspec

from penstock.model.job import AttemptError, JobId, JobState, LeasedJob, NewJob, WorkerId
from penstock.model.journal import CallKey


class ReleaseReason(StrEnum):
    """What became of a release."""

    RELEASED = "released"
    DUPLICATE = "duplicate"  # it was released before
    STALE_LEASE = "stale_lease"  # its id belongs to another item
    WRONG_CONTROLLER_GENERATION = "wrong_controller_generation"
    UNKNOWN_LEASE = "unknown_lease"


class ReleaseResult(msgspec.Struct, frozen=True):
    """Only `released` has moved a counter."""

    released: bool
    reason: ReleaseReason
    diagnostics: Mapping[str, str] = {}


class EnqueueJobs(msgspec.Struct, frozen=True):
    """Accept these jobs when, and only when, this job is acknowledged."""

    jobs: tuple[NewJob, ...]


class StageManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Remember a slice: invisible until its level is committed, or visible at once.

    Fenced: the end that carries it is stale unless its plan is running.
    """

    dataset: str
    at: int  # microseconds
    version: str
    basis: int  # the store's commit number when its inputs were read
    document: str  # strict JSON text
    plan_id: str
    level: int
    commit: bool = False


class CommitLevel(msgspec.Struct, frozen=True):
    """Make all staged slices of one level of a plan visible together; fenced as those."""

    plan_id: str
    level: int


class SetCursor(msgspec.Struct, frozen=True):
    """Replace a durable JSON value."""

    name: str
    value: str  # strict JSON text


class Rearm(msgspec.Struct, frozen=True):
    """Do not end the job: queue it again, due at `at` (microseconds since 1970 UTC).

    With a period, an `at` that is further away says that the clock was set back, or that the
    worker's is ahead: then it is tried in a period, and due then, or right after its last
    occurrence if that is later still.
    """

    at: int
    missed: int = 0  # occurrences of a schedule that were left out before it
    period: int | None = None  # microseconds between two occurrences of an interval


class ForgetCalls(msgspec.Struct, frozen=True):
    """What was bought for this job so far is no longer of use to it."""


Effect = EnqueueJobs | StageManifest | CommitLevel | SetCursor | Rearm | ForgetCalls


class Caps(Protocol):
    """How many may run at once for a limit key; None: as many as like."""

    @property
    def configured(self) -> Mapping[str, int]:
        """What is configured, by exact key or dimension, before operators change it."""
        ...

    def cap(self, limit_key: str, overrides: Mapping[str, int]) -> int | None:
        """What holds for a key, when an operator has changed some keys."""
        ...


class ConfiguredCaps:
    """Caps by exact key, else by dimension (`host:*`); a changed one beats a configured one."""

    def __init__(self, caps: Mapping[str, int] | None = None) -> None:
        self._caps = dict(caps or {})

    @property
    def configured(self) -> Mapping[str, int]:
        return self._caps

    def cap(self, limit_key: str, overrides: Mapping[str, int]) -> int | None:
        for key in (limit_key, dimension_key(limit_key)):
            for caps in (overrides, self._caps):
                if key in caps:
                    return caps[key]
        return None


def dimension_key(limit_key: str) -> str:
    """The key of the default of a key's dimension: `host:*` for `host:example.org`."""
    return f"{limit_key.partition(':')[0]}:*"


MAX_CRASHES = 3  # of a job that ran alone, unless it is set otherwise


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The worker that asks for leases."""

    id: WorkerId
    run_id: str
    tasks: tuple[str, ...]
    host: str = ""
    pid: int = 0
    max_crashes: int = MAX_CRASHES  # of a job that ran alone here and was lost with the whole run


class LeaseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs may be handed to a worker."""

    worker: WorkerId
    tasks: tuple[str, ...]
    limit: int
    caps: Caps
    quarantine: bool = False  # only suspects, of one cell
    cell: int = 0  # of this one; 0: of the first that nobody runs
    weights: Mapping[str, int] = {}  # of tasks that weigh more than 1: groups share by weight


class BlockedKey(msgspec.Struct, frozen=True):
    """A limit key that was full, and who holds it."""

    limit_key: str
    cap: int
    holders: tuple[str, ...]  # keys of at most ten holding jobs


class LeaseBatch(msgspec.Struct, frozen=True, kw_only=True):
    """What a lease call found."""

    jobs: list[LeasedJob]
    next_due_at: int | None = None  # when the next delayed job falls due
    blocked: tuple[BlockedKey, ...] = ()
    more: bool = False  # another call would find work now
    suspects: int = 0  # jobs that wait to run in quarantine
    paused: bool = False


class Verdict(StrEnum):
    """What became of an acknowledgement."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"  # the same lease ended this job before; nothing changed
    STALE = "stale"  # somebody else's now; nothing changed


class JobRef(NamedTuple):
    """One lease, named."""

    id: JobId
    token: int


class JobEnd(msgspec.Struct, gc=False):
    """The terminal end of a leased job."""

    job: LeasedJob
    state: JobState
    started_at: int
    ended_at: int
    result: str | None = None
    error: AttemptError | None = None
    effects: tuple[Effect, ...] = ()


class JobFailure(msgspec.Struct, gc=False):
    """A failed attempt, and what follows from it."""

    ref: JobRef
    key: str
    task: str
    error: AttemptError
    started_at: int
    ended_at: int
    delay_seconds: float
    charge: bool  # it costs an attempt
    ends: bool  # it was the last attempt, as the retry policy says: the job ends in `error`
    crashed: bool = False  # its process died while it ran alone: it costs a crash
    detached: bool = False  # the body may still run: the limit keys stay held until it is released
    spoils: tuple[CallKey, ...] = ()  # answers that led to it; bought anew if it is charged
    refused_by: str | None = None  # nothing failed: `PROVIDER/MODEL (429)` wants patience
    refused_at: str | None = None  # host and port that refused a connection; None: none did
