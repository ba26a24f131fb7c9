# SPDX-License-Identifier: Apache-2.0
"""What does the memory store do for datasets?"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from penstock.clock import Clock, to_micros
from penstock.model.dataset import SliceMarks
from penstock.model.job import Job, JobId, JobState
from penstock.model.plan import LevelStates, LocksTaken, LockView, PlanRow
from penstock.model.views import Progress
from penstock.stores.protocol import DatasetView, SlicePage, SliceRange, SliceRow
from tests.model.memory_locks import Locks
from tests.model.memory_manifests import Manifests
from tests.model.memory_operation import operation
from tests.model.memory_plans import Plans
from tests.model.memory_rows import Tables
from tests.model.memory_unit_operations import UnitOperations


class DatasetOperations(UnitOperations):
    """Owns slices, plans and locks."""

    def __init__(self, clock: Clock, tables: Tables) -> None:
        super().__init__(clock, tables)
        self._manifests = Manifests(tables.datasets)
        self._locks = Locks(tables.datasets)
        self._plans = Plans(tables, self._edges, self._ends, self._locks)

    def _lease_clock(self) -> int:
        return to_micros(self._clock.monotonic())

    def _broken_datasets(self) -> list[str]:
        return [*self._manifests.broken(), *self._plans.broken()]

    @operation
    def slice_marks(self, dataset: str, start: int, end: int, version: str) -> SliceMarks:
        return self._manifests.marks(dataset, start, end, version)

    @operation
    def manifests(self, dataset: str, start: int, end: int, limit: int) -> SlicePage:
        return self._manifests.page(dataset, start, end, limit)

    @operation
    def slices(self, ranges: Sequence[SliceRange]) -> SlicePage:
        return self._manifests.ranges(ranges)

    @operation
    def staged(self, plan_id: str) -> list[SliceRow]:
        return self._manifests.staged(plan_id)

    @operation
    def named_paths(self, dataset: str, after: int, limit: int) -> list[tuple[int, str]]:
        return self._manifests.documents(dataset, after, limit)

    @operation
    def datasets(self) -> list[DatasetView]:
        return list(self._manifests.datasets())

    @operation
    def own_name(self, proposed: str) -> str:
        return self._manifests.own_name(proposed)

    @operation
    def tidy_manifests(self, limit: int) -> Progress:
        return self._manifests.tidy(limit)

    @operation
    def add_plan(self, plan: PlanRow) -> bool:
        return self._plans.add(plan, self._now())

    @operation
    def begin_plan(self, plan_id: str, run_id: str) -> bool:
        return self._plans.begin(plan_id, run_id, self._now())

    @operation
    def adopt_plan(self, plan_id: str, run_id: str) -> bool:
        return self._plans.adopt(plan_id, run_id)

    @operation
    def end_plan(self, plan_id: str) -> None:
        self._plans.end(plan_id, self._now())

    @operation
    def abandon_plan(self, plan_id: str) -> None:
        self._plans.abandon(plan_id, self._now())

    @operation
    def cancel_plan(self, plan_id: str) -> Progress:
        return self._plans.cancel(plan_id, self._now())

    @operation
    def plan(self, plan_id: str) -> PlanRow | None:
        return self._tables.datasets.plans.get(plan_id)

    @operation
    def open_plans(self, digest: str | None = None) -> list[PlanRow]:
        found = self._tables.datasets.open_plans()
        own = self._tables.own
        return [p for p in found if digest in (None, p.digest) and own in (None, p.app)]

    @operation
    def plan_states(self, plan_id: str) -> list[LevelStates]:
        return self._plans.states(plan_id)

    @operation
    def plan_jobs(
        self, plan_id: str, states: Collection[JobState], after_id: JobId, limit: int
    ) -> list[Job]:
        return self._plans.jobs(plan_id, states, after_id, limit)

    @operation
    def take_locks(
        self, names: Sequence[str], run_id: str, mark: str, ttl_seconds: float, gone: Sequence[str]
    ) -> LocksTaken:
        clock, now = self._lease_clock(), self._now()
        return self._locks.take(names, run_id, mark, ttl_seconds, gone, clock, now)

    @operation
    def beat_locks(self, run_id: str, ttl_seconds: float) -> bool:
        return self._locks.beat(run_id, ttl_seconds, self._lease_clock())

    @operation
    def release_locks(self, run_id: str, names: Sequence[str]) -> None:
        self._locks.release(run_id, names)

    @operation
    def locks(self) -> list[LockView]:
        return self._locks.views(self._lease_clock())
