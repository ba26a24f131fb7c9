# SPDX-License-Identifier: Apache-2.0
"""How does the memory store hand out the locks of datasets?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.clock import to_micros
from penstock.model.plan import LocksTaken, LockView, PlanState
from tests.model.memory_dataset_rows import DatasetTables, LockRow


class Locks:
    """Owns who holds which lock. A lease clock is handed in."""

    def __init__(self, tables: DatasetTables) -> None:
        self._tables = tables

    def take(
        self,
        names: Sequence[str],
        run_id: str,
        mark: str,
        ttl_seconds: float,
        gone: Sequence[str],
        clock: int,
        now: int,
    ) -> LocksTaken:
        """All or none; who loses one loses all of his."""
        wanted = sorted(set(names))
        known = [row for name in wanted if (row := self._tables.locks.get(name)) is not None]
        others = [row for row in known if row.run_id not in (None, run_id)]
        held = [row for row in others if row.expires_at > clock and row.mark not in gone]
        if held:
            return LocksTaken(taken=False, held=tuple(row.as_view(clock) for row in held))
        left = self._lose({row.run_id for row in others if row.run_id is not None})
        for name in wanted:
            row = self._tables.locks.setdefault(name, LockRow(name))
            row.token += 1
            row.run_id, row.mark, row.taken_at = run_id, mark, now
            row.expires_at = clock + to_micros(ttl_seconds)
        return LocksTaken(taken=True, left=left)

    def _lose(self, runs: Iterable[str]) -> tuple[str, ...]:
        """These runs hold nothing any more; the plans that are left by it."""
        left = []
        for run_id in runs:
            self._free(run_id, None)
            for plan in self._tables.open_plans(run_id):
                if plan.state is not PlanState.LEFT:
                    self._tables.change(plan, state=PlanState.LEFT)
                    left.append(plan.id)
        return tuple(sorted(left))

    def beat(self, run_id: str, ttl_seconds: float, clock: int) -> bool:
        mine = [row for row in self._tables.locks.values() if row.run_id == run_id]
        for row in mine:
            row.expires_at = max(row.expires_at, clock + to_micros(ttl_seconds))
        return bool(mine)

    def release(self, run_id: str, names: Sequence[str] | None = None) -> None:
        """Free some of a run's locks, or all; without any its open plans are left."""
        self._free(run_id, names)
        if all(row.run_id != run_id for row in self._tables.locks.values()):
            self._lose([run_id])

    def _free(self, run_id: str, names: Sequence[str] | None) -> None:
        for row in self._tables.locks.values():
            if row.run_id == run_id and (names is None or row.name in names):
                row.run_id = None

    def void(self, above: int) -> None:
        """Nobody holds anything any more, and every plan that was on its way is left."""
        plans = self._tables.open_plans()
        self._lose({plan.run_id for plan in plans})
        for row in self._tables.locks.values():
            row.run_id, row.token = None, max(row.token, above)

    def views(self, clock: int) -> list[LockView]:
        rows = (self._tables.locks[name] for name in sorted(self._tables.locks))
        return [row.as_view(clock) for row in rows if row.run_id is not None]
