# SPDX-License-Identifier: Apache-2.0
"""What does a store know of why one job stands where it does?"""

from __future__ import annotations

import msgspec

from penstock.model.job import EdgeKind, Job, JobState, WorkerId


class Dependency(msgspec.Struct, frozen=True):
    """A job that another waits for, or waited for."""

    key: str
    kind: EdgeKind
    state: JobState
    open: bool  # the other has not been told of an end that lets it go


class Holder(msgspec.Struct, frozen=True):
    """One lease that holds a limit key."""

    key: str
    worker: WorkerId | None
    since: int | None  # when it was leased; None: that lease is over, only its body goes on
    lingers: bool


class HeldKey(msgspec.Struct, frozen=True):
    """A limit key of the job, and who holds it."""

    limit_key: str
    count: int
    holders: tuple[Holder, ...]  # a bounded number, by id


class Circumstances(msgspec.Struct, frozen=True, kw_only=True):
    """One job with everything in the store that it may depend on."""

    job: Job
    now: int  # by the clock that the store's times are of
    dependencies: tuple[Dependency, ...]  # a bounded number, open ones first
    skipped_by: str | None  # the job because of which this one was skipped
    lingering: tuple[WorkerId, ...]  # where a body of it may still run
    held: tuple[HeldKey, ...]  # one for each limit key of the job
