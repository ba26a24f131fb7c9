# SPDX-License-Identifier: Apache-2.0
"""What does a store on a database do for datasets, whichever database it is?"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Protocol, TypeVar

from penstock.clock import BootTime
from penstock.model.dataset import SliceMarks
from penstock.model.job import Job, JobId, JobState
from penstock.model.lock import LevelStates, LocksTaken, LockView, PlanRow
from penstock.model.views import Progress
from penstock.stores.datasets import DatasetView, SlicePage, SliceRange, SliceRow
from penstock.stores.sql import locking, plans, slice_reading
from penstock.stores.sql import slices as staging
from penstock.stores.sql.transaction import Transaction
from penstock.stores.sql.views import SqlReader
from penstock.stores.store_future import Reply

T = TypeVar("T")


class Writer(Protocol):
    """Runs operations in transactions, or refuses them."""

    def submit(
        self,
        run: Callable[[Transaction], T],
        *,
        urgent: bool = False,
        atomic: bool = False,
        lazy: bool = False,
        opening: Callable[[], None] | None = None,
    ) -> Reply[T]: ...


class SqlDatasetStore(ABC):
    """Says which step does what is asked for of slices, plans and locks."""

    _writer: Writer
    _reader: SqlReader

    @abstractmethod
    def _read(self, question: Callable[[], T]) -> Reply[T]:
        """Answer a question, made of calls to the reader."""

    @abstractmethod
    def _times(self) -> tuple[int, BootTime]:
        """The time for people and the time that leases live by; part of a question."""

    def beat_locks(self, run_id: str, ttl_seconds: float) -> Reply[bool]:
        return self._writer.submit(
            lambda tx: locking.beat_locks(tx, run_id, ttl_seconds), urgent=True
        )

    def slice_marks(self, dataset: str, start: int, end: int, version: str) -> Reply[SliceMarks]:
        return self._read(lambda: self._reader.slice_marks(dataset, start, end, version))

    def manifests(self, dataset: str, start: int, end: int, limit: int) -> Reply[SlicePage]:
        return self._read(lambda: slice_reading.page_of(self._reader, dataset, start, end, limit))

    def slices(self, ranges: Sequence[SliceRange]) -> Reply[SlicePage]:
        return self._read(lambda: slice_reading.ranges_of(self._reader, ranges))

    def staged(self, plan_id: str) -> Reply[list[SliceRow]]:
        return self._read(lambda: slice_reading.staged_of(self._reader, plan_id))

    def named_paths(self, dataset: str, after: int, limit: int) -> Reply[list[tuple[int, str]]]:
        return self._read(lambda: slice_reading.paths_of(self._reader, dataset, after, limit))

    def datasets(self) -> Reply[list[DatasetView]]:
        return self._read(lambda: slice_reading.datasets_of(self._reader))

    def own_name(self, proposed: str) -> Reply[str]:
        return self._writer.submit(lambda tx: staging.own_name(tx, proposed))

    def tidy_manifests(self, limit: int) -> Reply[Progress]:
        return self._writer.submit(lambda tx: staging.tidy(tx, limit))

    def add_plan(self, plan: PlanRow) -> Reply[bool]:
        return self._writer.submit(lambda tx: plans.add_plan(tx, plan))

    def begin_plan(self, plan_id: str, run_id: str) -> Reply[bool]:
        return self._writer.submit(lambda tx: plans.begin_plan(tx, plan_id, run_id))

    def adopt_plan(self, plan_id: str, run_id: str) -> Reply[bool]:
        return self._writer.submit(lambda tx: plans.adopt_plan(tx, plan_id, run_id))

    def end_plan(self, plan_id: str) -> Reply[None]:
        return self._writer.submit(lambda tx: plans.end_plan(tx, plan_id))

    def abandon_plan(self, plan_id: str) -> Reply[None]:
        return self._writer.submit(lambda tx: plans.abandon_plan(tx, plan_id))

    def cancel_plan(self, plan_id: str) -> Reply[Progress]:
        return self._writer.submit(lambda tx: plans.cancel_plan(tx, plan_id))

    def plan(self, plan_id: str) -> Reply[PlanRow | None]:
        return self._read(lambda: slice_reading.plan_of(self._reader, plan_id))

    def open_plans(self, digest: str | None = None) -> Reply[list[PlanRow]]:
        return self._read(lambda: slice_reading.open_plans_of(self._reader, digest))

    def plan_states(self, plan_id: str) -> Reply[list[LevelStates]]:
        return self._read(lambda: slice_reading.states_of(self._reader, plan_id))

    def plan_jobs(
        self, plan_id: str, states: Collection[JobState], after_id: JobId, limit: int
    ) -> Reply[list[Job]]:
        return self._read(
            lambda: slice_reading.plan_jobs_of(self._reader, plan_id, states, after_id, limit)
        )

    def take_locks(
        self, names: Sequence[str], run_id: str, mark: str, ttl_seconds: float, gone: Sequence[str]
    ) -> Reply[LocksTaken]:
        return self._writer.submit(
            lambda tx: locking.take_locks(tx, names, run_id, mark, ttl_seconds, gone)
        )

    def release_locks(self, run_id: str, names: Sequence[str]) -> Reply[None]:
        return self._writer.submit(lambda tx: locking.release_locks(tx, run_id, names))

    def locks(self) -> Reply[list[LockView]]:
        return self._read(lambda: locking.locks_of(self._reader, self._times()[1]))
