# SPDX-License-Identifier: Apache-2.0
"""A heap of alarms (timers without a loop) most of which are cancelled before they are due."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

T = TypeVar("T")

CANCELLED_KEPT = 64  # alarms; beyond, and beyond half of all, they are removed

#: An entry of the heap: when, a number between equal times, and what (None: cancelled).
Alarm = list[Any]


class AlarmHeap(Generic[T]):
    """Owns things by the time at which they are due. Adding, cancelling, taking: O(log N)."""

    __slots__ = ("_cancelled", "_heap", "_number")

    def __init__(self) -> None:
        self._heap: list[Alarm] = []
        self._number = 0
        self._cancelled = 0

    def __len__(self) -> int:
        return len(self._heap) - self._cancelled

    def __repr__(self) -> str:
        return f"<AlarmHeap {len(self)} entries>"

    def add(self, due: float, thing: T) -> Alarm:
        """Add something that will be due; the returned alarm cancels it."""
        self._number += 1
        entry: Alarm = [due, self._number, thing]
        heappush(self._heap, entry)
        return entry

    def cancel(self, entry: Alarm) -> None:
        """Cancel an alarm, unless it was taken before."""
        if entry[2] is None:
            return
        entry[2] = None
        self._cancelled += 1
        if self._cancelled > CANCELLED_KEPT and 2 * self._cancelled > len(self._heap):
            self._heap = [kept for kept in self._heap if kept[2] is not None]
            heapify(self._heap)
            self._cancelled = 0

    def next_due(self) -> float | None:
        heap = self._heap
        while heap and heap[0][2] is None:
            heappop(heap)
            self._cancelled -= 1
        due: float | None = heap[0][0] if heap else None
        return due

    def take(self, now: float) -> T | None:
        """Take the first thing that is due by now; None: nothing is."""
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
        self._cancelled = 0
