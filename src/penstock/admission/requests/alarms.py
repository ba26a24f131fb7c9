# SPDX-License-Identifier: Apache-2.0
"""A heap of alarms (timers without a loop) most of which are cancelled before they are due."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

T = TypeVar("T")

DEAD_KEPT = 64  # entries that were called off; beyond, and beyond half of all, they are removed

#: What stands in the heap: when, a number between equal times, and what (None: called off).
Entry = list[Any]


class DueHeap(Generic[T]):
    """Owns an order of things by their time. Adding, calling off and taking cost O(log N)."""

    __slots__ = ("_dead", "_heap", "_number")

    def __init__(self) -> None:
        self._heap: list[Entry] = []
        self._number = 0
        self._dead = 0

    def __len__(self) -> int:
        return len(self._heap) - self._dead

    def __repr__(self) -> str:
        return f"<DueHeap {len(self)} entries>"

    def add(self, due: float, thing: T) -> Entry:
        """Something is due; the answer calls it off."""
        self._number += 1
        entry: Entry = [due, self._number, thing]
        heappush(self._heap, entry)
        return entry

    def drop(self, entry: Entry) -> None:
        """It is called off, unless it was taken before."""
        if entry[2] is None:
            return
        entry[2] = None
        self._dead += 1
        if self._dead > DEAD_KEPT and 2 * self._dead > len(self._heap):
            self._heap = [kept for kept in self._heap if kept[2] is not None]
            heapify(self._heap)
            self._dead = 0

    def next_due(self) -> float | None:
        heap = self._heap
        while heap and heap[0][2] is None:
            heappop(heap)
            self._dead -= 1
        due: float | None = heap[0][0] if heap else None
        return due

    def take(self, now: float) -> T | None:
        """The first thing that is due by now; None: nothing is."""
        due = self.next_due()
        if due is None or due > now:
            return None
        entry = heappop(self._heap)
        thing: T = entry[2]
        entry[2] = None
        return thing

    def clear(self) -> None:
        for entry in self._heap:
            entry[2] = None
        self._heap.clear()
        self._dead = 0
