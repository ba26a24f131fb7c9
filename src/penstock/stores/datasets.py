# SPDX-License-Identifier: Apache-2.0
"""What must any store do for datasets? Manifests, plans and locks; docs/design/datasets.md.

Every commit of slices has a number, which grows by one under one lock: whoever sees number n sees
everything up to n.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import msgspec

from penstock.model.dataset import SliceMarks, version_of
from penstock.model.job import Job, JobId, JobState
from penstock.model.lock import LevelStates, LocksTaken, LockView, PlanRow
from penstock.model.views import Progress
from penstock.stores.store_future import Reply


class SliceRow(msgspec.Struct, frozen=True, kw_only=True):
    """One slice that is remembered."""

    dataset: str
    at: int
    built: str  # by which version, into which root
    basis: int
    seq: int | None  # None: staged, invisible
    plan_id: str
    level: int
    job_id: int
    document: str  # JSON of a SliceOutput

    @property
    def version(self) -> str:
        """Of the dataset's function."""
        return version_of(self.built)


class SlicePage(msgspec.Struct, frozen=True, kw_only=True):
    """Committed slices and the store's commit number, in one snapshot."""

    seq: int
    rows: list[SliceRow]


class SliceRange(msgspec.Struct, frozen=True, gc=False):
    """Slices of one dataset from `first` to `last`, both included."""

    dataset: str
    first: int
    last: int


class DatasetView(msgspec.Struct, frozen=True, kw_only=True):
    """One dataset that has committed slices."""

    name: str
    slices: int
    first_at: int
    last_at: int
    seq: int  # of its newest commit


class ManifestStore(Protocol):
    """Slices that were built; written by effects only."""

    def slice_marks(self, dataset: str, start: int, end: int, version: str) -> Reply[SliceMarks]:
        """What is committed in [start, end), in numbers; one read, however many."""
        ...

    def manifests(self, dataset: str, start: int, end: int, limit: int) -> Reply[SlicePage]:
        """Committed slices in [start, end), by time, at most `limit`."""
        ...

    def slices(self, ranges: Sequence[SliceRange]) -> Reply[SlicePage]:
        """Committed slices of all these ranges, by dataset and time; one snapshot."""
        ...

    def staged(self, plan_id: str) -> Reply[list[SliceRow]]:
        """What a plan has built that is not visible yet."""
        ...

    def named_paths(self, dataset: str, after: int, limit: int) -> Reply[list[tuple[int, str]]]:
        """(row id, document) of every row of a dataset, visible or not, by id; for sweeping."""
        ...

    def datasets(self) -> Reply[list[DatasetView]]: ...

    def own_name(self, proposed: str) -> Reply[str]:
        """What the roots of its slices know this store by; backups keep it. The first one stays."""
        ...

    def tidy_manifests(self, limit: int) -> Reply[Progress]:
        """Write the numbers of committed levels into rows, forget what was superseded or left."""
        ...


class PlanStore(Protocol):
    """Plans: which jobs belong together, and how far they are."""

    def add_plan(self, plan: PlanRow) -> Reply[bool]:
        """Keep a draft; False if its id is known already."""
        ...

    def begin_plan(self, plan_id: str, run_id: str) -> Reply[bool]:
        """All its jobs are there: they may run. False if it is no draft of this run."""
        ...

    def adopt_plan(self, plan_id: str, run_id: str) -> Reply[bool]:
        """A plan that was left goes on under another run."""
        ...

    def end_plan(self, plan_id: str) -> Reply[None]:
        """All its jobs have ended: it is over, and the locks of its run are free."""
        ...

    def abandon_plan(self, plan_id: str) -> Reply[None]:
        """It changes nothing more. Cancel its jobs with cancel_plan."""
        ...

    def cancel_plan(self, plan_id: str) -> Reply[Progress]:
        """Cancel open jobs of a plan, a slice; repeat while it says `more`."""
        ...

    def plan(self, plan_id: str) -> Reply[PlanRow | None]: ...

    def open_plans(self, digest: str | None = None) -> Reply[list[PlanRow]]:
        """Drafts, running and left ones; the newest first."""
        ...

    def plan_states(self, plan_id: str) -> Reply[list[LevelStates]]: ...

    def plan_jobs(
        self, plan_id: str, states: Collection[JobState], after_id: JobId, limit: int
    ) -> Reply[list[Job]]:
        """Jobs of a plan in one of these states, by id; read by an index on unhappy ones."""
        ...


class LockStore(Protocol):
    """Locks of datasets; a lock is a run's, and lives by its beats."""

    def take_locks(
        self, names: Sequence[str], run_id: str, mark: str, ttl_seconds: float, gone: Sequence[str]
    ) -> Reply[LocksTaken]:
        """Take all of them, or none.

        Free: nobody's, ours, not renewed in time, or of a process in `gone` (marks that are
        certainly dead). Open plans of whoever loses one become `left`, in the same transaction.
        """
        ...

    def beat_locks(self, run_id: str, ttl_seconds: float) -> Reply[bool]:
        """Renew all locks of a run; False if it has none any more, or lost one."""
        ...

    def release_locks(self, run_id: str, names: Sequence[str]) -> Reply[None]: ...

    def locks(self) -> Reply[list[LockView]]: ...
