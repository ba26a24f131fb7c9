# SPDX-License-Identifier: Apache-2.0
"""Which budgets have ended a run, as its workers tell?"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.model.budget_stop import BudgetStop
from penstock.model.views import Outlook


class RunStops:
    """Owns what the workers of one run have said about budgets when they ended."""

    def __init__(self) -> None:
        self._stops: dict[str, BudgetStop] = {}  # by budget; the last word has the numbers of now

    def __bool__(self) -> bool:
        return bool(self._stops)

    def note(self, stops: Sequence[BudgetStop]) -> None:
        for stop in stops:
            before = self._stops.get(stop.budget)
            tasks = {*stop.tasks, *(before.tasks if before is not None else ())}
            self._stops[stop.budget] = msgspec.structs.replace(stop, tasks=tuple(sorted(tasks)))

    def all(self) -> tuple[BudgetStop, ...]:
        return tuple(self._stops.values())

    def hold_up(self, outlook: Outlook | None) -> bool:
        """Is anything left that waits for them? Another worker may have had what it needed."""
        if outlook is None:
            return bool(self._stops)
        held = {task for stop in self._stops.values() for task in stop.tasks}
        return any(sum(outlook.open_by_task.get(task, {}).values()) for task in held)
