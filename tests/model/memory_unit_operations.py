# SPDX-License-Identifier: Apache-2.0
"""What does the memory store do for schedules and preflights?"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.clock import Clock
from penstock.model.schedule import ArmReport, PreflightResult, UnitPlan, UnitView
from tests.model.memory_call_operations import CallOperations
from tests.model.memory_edges import Dependants
from tests.model.memory_ends import Ends
from tests.model.memory_operation import operation
from tests.model.memory_rows import Tables
from tests.model.memory_units import Preflights, Units


class UnitOperations(CallOperations):
    """Owns units and preflights, and with them what an end does."""

    def __init__(self, clock: Clock, tables: Tables) -> None:
        super().__init__(clock, tables)
        self._edges = Dependants(tables)
        self._ends = Ends(tables, self._edges)
        self._units = Units(tables, self._ends)
        self._preflights = Preflights()

    @operation
    def arm(self, app: str, units: Sequence[UnitPlan]) -> ArmReport:
        return self._units.arm(app, units, self._now())

    @operation
    def retire_units(self, keys: Sequence[str]) -> int:
        return self._units.retire(keys, self._now())

    @operation
    def tick_units(self, keys: Sequence[str]) -> frozenset[str]:
        return self._units.tick(keys, self._now())

    @operation
    def pause_units(self, name: str) -> bool:
        return self._units.pause(name, self._now())

    @operation
    def resume_units(self, name: str) -> bool:
        return self._units.resume(name, self._now())

    @operation
    def forget_cursors(self, names: Sequence[str]) -> int:
        kept = self._tables.cursors
        return sum(kept.pop(name, None) is not None for name in dict.fromkeys(names))

    @operation
    def units(self, app: str | None, after_key: str, limit: int) -> list[UnitView]:
        return self._units.views(app, after_key, limit)

    @operation
    def unit(self, key: str) -> UnitView | None:
        return self._units.view(key)

    @operation
    def cursor(self, name: str) -> str | None:
        return self._tables.cursors.get(name)

    @operation
    def cursors(self, names: Sequence[str]) -> dict[str, str]:
        kept = self._tables.cursors
        return {name: kept[name] for name in names if name in kept}

    @operation
    def keep_preflights(self, app: str, results: Sequence[PreflightResult]) -> None:
        self._preflights.keep(app, results)

    @operation
    def preflights(self, app: str, after_unit: str, limit: int) -> list[PreflightResult]:
        return self._preflights.page(app, after_unit, limit)

    @operation
    def checked(self, app: str, units: Sequence[str]) -> list[PreflightResult]:
        return self._preflights.of(app, units)

    @operation
    def forget_preflights(self, app: str, before: int) -> int:
        return self._preflights.forget(app, before)
