# SPDX-License-Identifier: Apache-2.0
"""How does the memory store keep plans, and what becomes of their jobs?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from itertools import islice

import msgspec

from penstock.model.dataset import BUILD
from penstock.model.job import START, Job, JobId, JobState
from penstock.model.plan import LevelStates, PlanRow, PlanState
from penstock.model.views import Progress
from penstock.stores.protocol import CHORE_SLICE
from penstock.stores.sql.row_state import RowState
from tests.model.memory_dataset_rows import OPEN
from tests.model.memory_edges import Dependants
from tests.model.memory_ends import Ends
from tests.model.memory_locks import Locks
from tests.model.memory_rows import JobRow, Tables


class Plans:
    """Owns the states of plans, and which jobs are theirs."""

    def __init__(self, tables: Tables, edges: Dependants, ends: Ends, locks: Locks) -> None:
        self._tables = tables
        self._datasets = tables.datasets
        self._edges = edges
        self._ends = ends
        self._locks = locks

    def add(self, plan: PlanRow, now: int) -> bool:
        if plan.id in self._datasets.plans:
            return False
        self._datasets.plans[plan.id] = msgspec.structs.replace(
            plan, state=PlanState.DRAFT, created_at=now, begun_at=None, ended_at=None
        )
        return True

    def begin(self, plan_id: str, run_id: str, now: int) -> bool:
        plan = self._datasets.plans.get(plan_id)
        if plan is None or plan.state is not PlanState.DRAFT or plan.run_id != run_id:
            return False
        self._datasets.change(plan, state=PlanState.RUNNING, begun_at=now)
        start = self._tables.by_key.get(f"{BUILD}{plan_id}:start")
        if start is not None and start.new.task == START and start.public is JobState.QUEUED:
            self._tables.move(start, RowState.DONE, now)
            self._edges.tell([start.id], now)
        return True

    def adopt(self, plan_id: str, run_id: str) -> bool:
        plan = self._datasets.plans.get(plan_id)
        if plan is None or plan.state is not PlanState.LEFT or plan.begun_at is None:
            return False
        self._datasets.change(plan, state=PlanState.RUNNING, run_id=run_id)
        return True

    def end(self, plan_id: str, now: int) -> None:
        plan = self._datasets.plans.get(plan_id)
        if plan is not None and plan.state is PlanState.RUNNING:
            self._datasets.change(plan, state=PlanState.ENDED, ended_at=now)
            if not self._datasets.open_plans(plan.run_id):
                self._locks.release(plan.run_id)

    def abandon(self, plan_id: str, now: int) -> None:
        plan = self._datasets.plans.get(plan_id)
        if plan is not None and plan.state in OPEN:
            self._datasets.change(plan, state=PlanState.ABANDONED, ended_at=now)

    def cancel(self, plan_id: str, now: int) -> Progress:
        """The newest jobs first: what waits goes before what it waits for."""
        rows = (row for row in self._jobs(plan_id) if not row.terminal)
        found = sorted(rows, key=lambda row: row.id, reverse=True)
        self._ends.cancel(found[:CHORE_SLICE], now)
        return Progress(min(len(found), CHORE_SLICE), more=len(found) > CHORE_SLICE)

    def _jobs(self, plan_id: str) -> Iterator[JobRow]:
        """The jobs of a plan, by id."""
        rows = map(self._tables.jobs.__getitem__, self._tables.ids)
        return (row for row in rows if row.new.plan_id == plan_id)

    def jobs(
        self, plan_id: str, states: Collection[JobState], after_id: JobId, limit: int
    ) -> list[Job]:
        found = (row for row in self._jobs(plan_id) if row.id > after_id and row.public in states)
        return [row.as_job() for row in islice(found, limit)]

    def states(self, plan_id: str) -> list[LevelStates]:
        counts: dict[int, Counter[str]] = {}
        for row in self._jobs(plan_id):
            if row.new.level is not None:
                counts.setdefault(row.new.level, Counter())[row.public.value] += 1
        return [
            LevelStates(
                level=level,
                states={state.value: count[state] for state in JobState if state in count},
                committed=(plan_id, level) in self._datasets.commits,
            )
            for level, count in sorted(counts.items())
        ]

    def keeps(self, plan_id: str | None) -> bool:
        """Must the jobs of this plan stay?"""
        plan = self._datasets.plans.get(plan_id) if plan_id is not None else None
        return plan is not None and plan.state in OPEN

    def purge(self, before: int) -> None:
        """Forget plans that were over before a time, and have neither jobs nor staged slices."""
        busy = {row.new.plan_id for row in self._tables.jobs.values()}
        busy |= {plan_id for plan_id, _ in self._datasets.staged}
        for plan in list(self._datasets.plans.values()):
            old = plan.ended_at is not None and plan.ended_at < before
            if old and plan.id not in busy:
                del self._datasets.plans[plan.id]
                for place in [x for x in self._datasets.commits if x[0] == plan.id]:
                    del self._datasets.commits[place]

    def broken(self) -> Iterator[str]:
        holders = {lock.run_id for lock in self._datasets.locks.values()}
        for plan in self._datasets.plans.values():
            alone = plan.run_id not in holders
            if plan.state in (PlanState.DRAFT, PlanState.RUNNING) and alone:
                yield f"plan {plan.id!r} is {plan.state}, but its run holds no lock"
            if (plan.ended_at is None) != (plan.state in OPEN):
                yield f"plan {plan.id!r} is {plan.state} and ended at {plan.ended_at}"
            if plan.state is PlanState.RUNNING and plan.begun_at is None:
                yield f"plan {plan.id!r} is running, but never began"
