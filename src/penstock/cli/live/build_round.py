# SPDX-License-Identifier: Apache-2.0
"""How is the plan of a run looked at, again and again?"""

from __future__ import annotations

from penstock.model.lock import LevelStates, PlanRow
from penstock.observe.live_build import BuildView
from penstock.stores.asking import Question
from penstock.stores.protocol import Store
from penstock.stores.store_future import Reply


class BuildRound:
    """Owns what is known of the plan that a run works on; it may not be there yet."""

    def __init__(self, store: Store, run_id: str) -> None:
        self._store = store
        self._run_id = run_id
        self._plan: PlanRow | None = None
        self._plans = Question(store.open_plans)
        self._levels: Question[list[LevelStates]] = Question(self._ask)
        self.view: BuildView | None = None

    def _ask(self) -> Reply[list[LevelStates]]:
        return self._store.plan_states("" if self._plan is None else self._plan.id)

    def look(self, wait_seconds: float = 0.0) -> None:
        """Go on, as far as questions are answered by now."""
        if self._plan is None:
            plans = self._plans.answer(wait_seconds) or ()
            self._plan = next((plan for plan in plans if plan.run_id == self._run_id), None)
        if self._plan is None:
            return
        levels = self._levels.answer(wait_seconds)
        if levels is not None:
            self.view = BuildView.of(self._plan, levels)

    def look_again(self, wait_seconds: float) -> None:
        """The same with an answer to what is asked now."""
        self._levels.forget()
        self.look(wait_seconds)
