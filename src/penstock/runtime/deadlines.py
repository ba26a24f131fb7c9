# SPDX-License-Identifier: Apache-2.0
"""Which running attempt is over its time?"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.runtime.attempt import Attempt

STALE_MAX = 4_096  # entries of ended attempts that are kept before the heap is swept


class Deadlines:
    """One heap for all time limits of a worker; ended attempts are dropped when they surface."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Attempt]] = []
        self._sequence = 0
        self._live = 0
        self._stale = 0  # entries of ended attempts, at most

    def add(self, deadline_monotonic: float, attempt: Attempt) -> None:
        """Give an attempt a deadline; one that it had before counts no more."""
        self._sequence += 1
        self._live += 1
        attempt.deadline_monotonic = deadline_monotonic
        heappush(self._heap, (deadline_monotonic, self._sequence, attempt))

    def discard(self) -> None:
        """An attempt with a deadline has ended."""
        self._live -= 1
        self._stale += 1
        if self._stale > STALE_MAX and self._stale > self._live:
            self._heap = [entry for entry in self._heap if not entry[2].ended]
            heapify(self._heap)
            self._stale = 0

    def expired(self, now_monotonic: float) -> list[Attempt]:
        """Take out the attempts whose time is over."""
        found = []
        heap = self._heap
        while heap and (_is_over(heap[0]) or heap[0][0] <= now_monotonic):
            entry = heappop(heap)
            if not _is_over(entry):
                found.append(entry[2])
        return found

    def next_at(self) -> float | None:
        heap = self._heap
        while heap and _is_over(heap[0]):
            heappop(heap)
        return heap[0][0] if heap else None


def _is_over(entry: tuple[float, int, Attempt]) -> bool:
    """Has the attempt ended, or does it have another deadline by now?"""
    deadline, _, attempt = entry
    return attempt.ended or attempt.deadline_monotonic != deadline
