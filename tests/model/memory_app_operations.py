# SPDX-License-Identifier: Apache-2.0
"""What does the memory store do for apps that share it?"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import UsageError
from penstock.model.job import JobId, JobKind, WorkerId, kind_of_name
from penstock.model.views import AppView, Moved
from penstock.stores.sql.operator import refuse_several
from tests.model.memory_dataset_operations import DatasetOperations
from tests.model.memory_operation import operation
from tests.model.memory_rows import JobRow, WorkerRow


class AppOperations(DatasetOperations):
    """Owns whom calls are about. What belongs to an app is moved at once, row by row."""

    @property
    def app(self) -> str | None:
        return self._tables.own

    def _alive(self, worker: WorkerId) -> WorkerRow | None:
        row = self._tables.workers.get(worker)
        return row if row is not None and row.expires_at > self._lease_clock() else None

    def _found(self, key: str, app: str | None) -> JobRow | None:
        """The job of a key that is meant."""
        wanted = self._tables.own if app is None else app
        found = {one: rows[key] for one, rows in self._tables.keys.items() if key in rows}
        if wanted is not None:
            return found.get(wanted)
        refuse_several(key, list(found))
        return next(iter(found.values()), None)

    def _all_found(self, keys: Sequence[str], app: str | None) -> list[JobRow]:
        found = [self._found(key, app) for key in dict.fromkeys(keys)]
        return [row for row in found if row is not None]

    @operation
    def sign_on(self, app: str, tasks: Sequence[str] | None, after_id: JobId) -> Moved:
        tables = self._tables
        named = {unit.app for unit in tables.units.values()}
        named |= {plan.app for plan in tables.datasets.plans.values()}
        alone = not ({*named, *tables.apps} - {"", app})
        tables.own, tables.apps[app] = app, self._now()
        if tasks is None:
            return Moved(0, False, after_id)
        rows = [row for row in tables.jobs.values() if row.app == ""]
        return self._give([row for row in rows if self._is_of(row, app, tasks, alone)], app)

    def _is_of(self, row: JobRow, app: str, tasks: Sequence[str], alone: bool) -> bool:
        """Does a job without an owner belong to this app?"""
        unit = self._tables.units.get(row.id)
        plan = self._tables.datasets.plans.get(row.new.plan_id or "")
        if unit is not None:
            return unit.app == app
        if plan is not None:
            return plan.app == app
        return alone and row.new.task in tasks

    def _give(self, rows: Sequence[JobRow], app: str) -> Moved:
        tables = self._tables
        count = 0
        for row in rows:
            if row.new.key in tables.keys.get(app, {}):
                continue
            cursor = tables.all_cursors.get(row.app, {}).pop(row.new.key, None)
            if cursor is not None:
                tables.all_cursors.setdefault(app, {})[row.new.key] = cursor
            tables.give(row, app)
            count += 1
        return Moved(count, False, JobId(0))

    @operation
    def look_as(self, app: str | None) -> None:
        self._tables.own = app

    @operation
    def adopt_jobs(self, app: str, tasks: Sequence[str] | None, after_id: JobId) -> Moved:
        self._known(app)
        rows = [row for row in self._tables.jobs.values() if row.app == ""]
        return self._give([row for row in rows if tasks is None or row.new.task in tasks], app)

    def _known(self, app: str) -> None:
        if app not in self._tables.apps:
            raise UsageError(f"No app {app!r} is known; see 'penstock app list'.")

    @operation
    def rename_app(self, old: str, new: str, after_id: JobId) -> Moved:
        tables = self._tables
        self._known(old)
        if any(row.app == old and self._alive(name) for name, row in tables.workers.items()):
            raise UsageError(f"{old!r} has live workers.")
        common = tables.keys.get(old, {}).keys() & tables.keys.get(new, {}).keys()
        if common:
            raise UsageError(f"Both have a job {min(common)!r}.")
        is_new = new not in tables.apps
        moved = self._give([row for row in tables.jobs.values() if row.app == old], new)
        for unit in tables.units.values():
            unit.app = new if unit.app == old else unit.app
        paused = {name: at for (app, name), at in tables.pauses.items() if app == old}
        for name, at in paused.items():
            tables.pauses.setdefault((new, name), at)
            del tables.pauses[old, name]
        self._calls.rename(old, new)
        tables.apps[new] = tables.apps[old]
        if is_new:
            del tables.apps[old]
        return Moved(0 if is_new else moved.count, False, after_id)

    @operation
    def apps(self) -> list[AppView]:
        tables = self._tables
        views = []
        for app, seen_at in sorted(tables.apps.items()):
            counts = tables.counts.get(app)
            names = [] if counts is None else sorted(counts.by_name)
            tasks = {
                name: counts.of(name)
                for name in names
                if counts is not None and kind_of_name(name) is not JobKind.TICK
            }
            alive = [one for one, row in tables.workers.items() if row.app == app]
            workers = sum(self._alive(one) is not None for one in alive)
            if app or tasks:
                views.append(AppView(name=app, tasks=tasks, workers=workers, seen_at=seen_at))
        return views
