# SPDX-License-Identifier: Apache-2.0
"""Lends the slot of an attempt that waits for its provider to another one.

A job that would wait for its provider does not start; but one that runs may be refused, and would
then hold its slot through the whole cool-down. It lends it instead: there is one slot more of its
kind until its permit comes. It goes on at once then, so for a moment more bodies run than there are
slots; the next ends make up for it. Each slot is lent once at most: there are never more than
twice as many bodies as slots.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

from penstock.model.task import SUBMISSION
from penstock.timers import Deadlines

LEND_SECONDS = 0.25  # a permit that comes sooner is waited for with the slot in hand

#: There is so much of a resource from now on.
SetLimit = Callable[[str, int], None]


class SlotLending:
    """Owns which attempts wait for permits, and which of them have lent their slots.

    Belongs to one loop.
    """

    def __init__(
        self,
        counts: Mapping[str, int],
        in_all: int,
        monotonic: Callable[[], float],
        set_limit: SetLimit,
    ) -> None:
        self._counts = counts
        self._in_all = in_all
        self._set_limit = set_limit
        self._waiting: Deadlines[Hashable, str] = Deadlines(LEND_SECONDS, self._lend, monotonic)
        self._lenders: dict[Hashable, str] = {}  # attempt → kind of its slot
        self._lent = dict.fromkeys(counts, 0)

    def __repr__(self) -> str:
        return f"<SlotLending {self._lent}, {len(self._waiting)} may follow>"

    def lent(self, slot_kind: str) -> int:
        """How many slots of this kind are lent."""
        return self._lent[slot_kind]

    @property
    def lent_in_all(self) -> int:
        """How many slots are lent, of whatever kinds."""
        return sum(self._lent.values())

    def wait_begins(self, attempt: Hashable, slot_kind: str) -> None:
        """An attempt waits for a permit."""
        self._waiting.add(attempt, slot_kind)

    def wait_ends(self, attempt: Hashable) -> None:
        """It has its permit, gave up, or has ended; safe to repeat."""
        self._waiting.drop(attempt)
        slot_kind = self._lenders.pop(attempt, None)
        if slot_kind is not None:
            self._change(slot_kind, -1)

    def close(self) -> None:
        """The run ends."""
        self._waiting.clear()

    def _lend(self, attempt: Hashable, slot_kind: str) -> None:
        if self._lent[slot_kind] < self._counts[slot_kind] and self.lent_in_all < self._in_all:
            self._lenders[attempt] = slot_kind
            self._change(slot_kind, 1)

    def _change(self, slot_kind: str, by: int) -> None:
        self._lent[slot_kind] += by
        self._set_limit(SUBMISSION, self._in_all + self.lent_in_all)
        self._set_limit(slot_kind, self._counts[slot_kind] + self._lent[slot_kind])
