# SPDX-License-Identifier: Apache-2.0
"""What may an acknowledgement carry with it, in the same transaction?"""

from __future__ import annotations

import msgspec

from penstock.model.job import NewJob


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
    """Do not end the job: queue it again, due at `at` (microseconds since 1970 UTC)."""

    at: int
    missed: int = 0  # occurrences of a schedule that were left out before it


class ForgetCalls(msgspec.Struct, frozen=True):
    """What was bought for this job so far is of no use to it any more."""


Effect = EnqueueJobs | StageManifest | CommitLevel | SetCursor | Rearm | ForgetCalls
