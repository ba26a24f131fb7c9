# SPDX-License-Identifier: Apache-2.0
"""How does the memory store arm and retire units of schedules?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.model.job import JobId, JobKind, NewJob
from penstock.model.schedule import (
    FAILED_TICKS_KEPT,
    ArmReport,
    PreflightResult,
    UnitPlan,
    UnitView,
    tried_at,
)
from penstock.stores.sql.operator import refuse_several
from penstock.stores.sql.row_state import RowState
from penstock.stores.sql.schedules import (
    Change,
    due_after,
    judge,
    no_unit,
    planned,
    refuse_many,
    report,
    sooner_at,
)
from tests.model.memory_ends import Ends
from tests.model.memory_rows import JobRow, Tables
from tests.model.memory_unit_row import UnitRow


class Units:
    """Owns which unit is armed, changed or retired. Does not know what a tick does."""

    def __init__(self, tables: Tables, ends: Ends) -> None:
        self._tables = tables
        self._ends = ends

    def arm(self, app: str, units: Sequence[UnitPlan], now: int) -> ArmReport:
        wanted = planned(units, now)
        for key in wanted:
            if key in self._tables.by_key and not self._is_unit(key):
                raise no_unit(key)
        return report([self._arm_one(app, plan, now) for plan in wanted.values()])

    def _arm_one(self, app: str, plan: UnitPlan, now: int) -> Change:
        row = self._tables.by_key.get(plan.key)
        if row is None:
            state = RowState.DELAYED if plan.first_at > now else RowState.READY
            row = self._tables.insert(_job_of(plan), state, now, plan.first_at, set())
            self._tables.units[row.id] = UnitRow(app, plan.timing)
            return Change.NEW
        unit = self._tables.units[row.id]
        change = judge(row.state, same_timing=unit.timing == plan.timing)
        held = row.state in (RowState.SUSPECT, RowState.IN_PROGRESS)
        if change is Change.REVIVED or (change is Change.RETIMED and not held):
            self._start_afresh(row, unit, plan, now)
        if change is Change.KEPT and row.state is RowState.DELAYED:
            self._tables.queue(row, now, sooner_at(plan, row.due_at, row.available_at, now))
        if row.state is not RowState.IN_PROGRESS and row.new != _job_of(plan):
            self._tables.replace(row, _job_of(plan))
        unit.app, unit.timing, unit.retired_at = app, plan.timing, None
        return change

    def _start_afresh(self, row: JobRow, unit: UnitRow, plan: UnitPlan, now: int) -> None:
        row.attempts = row.crashes = row.losses = 0
        row.deferred_since = row.error = None
        first_at = plan.first_at
        if unit.retired_at is not None and unit.timing == plan.timing:
            first_at = row.due_at
        row.due_at = due_after(first_at, row.state, row.due_at, unit.last_due_at)
        self._tables.queue(row, now, tried_at(row.due_at, plan.period, now))

    def retire(self, keys: Sequence[str], now: int) -> int:
        refuse_many(keys)
        found = [self._tables.by_key[key] for key in dict.fromkeys(keys) if self._is_unit(key)]
        rows = [row for row in found if self._tables.units[row.id].retired_at is None]
        self._ends.cancel([row for row in rows if not row.terminal], now)
        for row in rows:
            if row.state is RowState.ERROR:
                self._tables.move(row, RowState.CANCELLED, now)
            self._tables.units[row.id].retired_at = now
        return len(rows)

    def tick(self, keys: Sequence[str], now: int) -> frozenset[str]:
        refuse_many(keys)
        found = [self._tables.by_key[key] for key in dict.fromkeys(keys) if self._is_unit(key)]
        rows = [row for row in found if row.state is RowState.DELAYED]
        for row in rows:
            if row.due_at <= now:
                self._tables.queue(row, now, now)
                continue
            row.attempts = row.crashes = row.losses = 0
            row.deferred_since = row.error = None
            last = self._tables.units[row.id].last_due_at
            row.due_at = due_after(now, row.state, row.due_at, last)
            self._tables.queue(row, now, row.due_at)
        return frozenset(row.new.key for row in rows)

    def pause(self, name: str, now: int) -> bool:
        place = self._tables.app, name
        is_new = place not in self._tables.pauses
        self._tables.pauses.setdefault(place, now)
        return is_new

    def resume(self, name: str, now: int) -> bool:
        if self._tables.pauses.pop((self._tables.app, name), None) is None:
            return False
        rows = [self._tables.jobs[job_id] for job_id in self._tables.units]
        for row in rows:
            named = name in (row.new.key, row.new.task) and row.app == self._tables.app
            if named and row.state is RowState.WAITING:
                self._tables.move(row, RowState.DELAYED, now)
        self._tables.version += 1
        return True

    def lay_aside(self, leased: Sequence[JobRow], now: int) -> list[JobRow]:
        kept = []
        for row in leased:
            if row.id in self._tables.units and self._pause_of(row) is not None:
                row.solo, row.cell = False, 0
                self._tables.move(row, RowState.READY, now)
                self._tables.move(row, RowState.WAITING, now)
            else:
                kept.append(row)
        return kept

    def _pause_of(self, row: JobRow) -> tuple[str, int] | None:
        """The name by which a unit is paused, and since when."""
        for name in (row.new.task, row.new.key):
            if (row.app, name) in self._tables.pauses:
                return name, self._tables.pauses[row.app, name]
        return None

    def _is_unit(self, key: str) -> bool:
        row = self._tables.by_key.get(key)
        return row is not None and row.id in self._tables.units

    def view(self, key: str) -> UnitView | None:
        tables = self._tables
        rows = [tables.jobs[job_id] for job_id in tables.units]
        found = [row for row in rows if row.new.key == key and tables.sees(row)]
        refuse_several(key, [tables.units[row.id].app for row in found])
        return self._view(found[0]) if found else None

    def views(self, app: str | None, after_key: str, limit: int) -> list[UnitView]:
        units = self._tables.units
        rows = [self._tables.jobs[id_] for id_, unit in units.items() if app in (None, unit.app)]
        above = sorted(
            (row for row in rows if row.new.key > after_key),
            key=lambda row: (row.new.key, units[row.id].app),
        )
        last = above[:limit][-1].new.key if above else ""
        return [self._view(row) for row in above if row.new.key <= last]

    def _view(self, row: JobRow) -> UnitView:
        unit = self._tables.units[row.id]
        paused_by, paused_at = self._pause_of(row) or (None, None)
        return UnitView(
            key=row.new.key,
            app=unit.app,
            task=row.new.task,
            partition=row.new.partition,
            timing=unit.timing,
            state=row.public,
            due_at=row.due_at,
            available_at=row.available_at,
            attempts=row.attempts,
            deferred_since=row.deferred_since,
            last_error=row.error,
            ticks=unit.ticks,
            missed=unit.missed,
            failed=unit.failed,
            last_tick_at=unit.last_tick_at,
            retired_at=unit.retired_at,
            paused_by=paused_by,
            paused_at=paused_at,
        )

    def broken(self) -> list[str]:
        return [sentence for job_id in self._tables.units for sentence in self._wrong(job_id)]

    def _wrong(self, job_id: JobId) -> Iterator[str]:
        unit, row = self._tables.units[job_id], self._tables.jobs.get(job_id)
        if row is None:
            yield f"unit {job_id} has no job"
            return
        name = f"unit {row.new.key!r} ({row.state.name.lower()})"
        if unit.retired_at is not None and (not row.terminal or row.state is RowState.ERROR):
            yield f"{name} was retired"
        if row.state is RowState.WAITING and self._pause_of(row) is None:
            yield f"{name} is not paused"
        if not row.terminal and unit.last_due_at is not None and row.due_at <= unit.last_due_at:
            yield f"{name} is due at {row.due_at}, which ended well before"
        if (unit.ticks > 0) != (unit.last_tick_at is not None):
            yield f"{name} has {unit.ticks} ticks, the last at {unit.last_tick_at}"
        if len(row.history) > FAILED_TICKS_KEPT:
            yield f"{name} has {len(row.history)} rows of history"


class Preflights:
    """Owns what checks came to, the last word on each."""

    def __init__(self) -> None:
        self._results: dict[tuple[str, str], PreflightResult] = {}  # by app and unit

    def keep(self, app: str, results: Sequence[PreflightResult]) -> None:
        refuse_many(results)
        self._results.update(((app, result.unit), result) for result in results)

    def page(self, app: str, after_unit: str, limit: int) -> list[PreflightResult]:
        of_app = (result for (one, _), result in self._results.items() if one == app)
        above = (result for result in of_app if result.unit > after_unit)
        return sorted(above, key=lambda result: result.unit)[:limit]

    def of(self, app: str, units: Sequence[str]) -> list[PreflightResult]:
        found = (self._results.get((app, unit)) for unit in dict.fromkeys(units))
        return [result for result in found if result is not None]

    def forget(self, app: str, before: int) -> int:
        old = [
            place
            for place, result in self._results.items()
            if place[0] == app and result.checked_at < before
        ]
        for place in old:
            del self._results[place]
        return len(old)


def _job_of(plan: UnitPlan) -> NewJob:
    """The job that a unit is."""
    return NewJob(
        kind=JobKind.TICK,
        key=plan.key,
        task=plan.task,
        payload=plan.payload,
        group=plan.group,
        limit_keys=plan.limit_keys,
        partition=plan.partition,
    )
