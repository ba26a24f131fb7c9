# SPDX-License-Identifier: Apache-2.0
"""How are thousands of units looked at without asking for all of them at once?"""

from __future__ import annotations

from penstock.model.schedule import UnitView
from penstock.observe.live_units import UnitTroubles
from penstock.stores.asking import Question
from penstock.stores.protocol import Store
from penstock.stores.store_future import Reply

PAGE = 500  # units of one look


class UnitRound:
    """Owns a walk over all units, a page at each look, and what the last whole one has found."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._question = Question(self._ask)
        self._after = ""
        self._sum = UnitTroubles()
        self.found = UnitTroubles()

    def _ask(self) -> Reply[list[UnitView]]:
        return self._store.units(None, self._after, PAGE)

    def look(self, now_at: int) -> None:
        """Go on, if the last question is answered."""
        page = self._question.answer()
        if page is None:
            return
        self._sum += UnitTroubles.of(page, now_at)
        self._after = page[-1].key if len(page) == PAGE else ""
        if not self._after:
            self.found, self._sum = self._sum, UnitTroubles()
