# SPDX-License-Identifier: Apache-2.0
"""In which order do things happen, in simulated seconds?"""

from __future__ import annotations

import random
from collections.abc import Callable
from heapq import heappop, heappush


class Simulation:
    """Owns the time, what is still to come, and chance. One seed gives one course."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.rand = random.Random(seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, time: float, happen: Callable[[], None]) -> None:
        self._count += 1
        heappush(self._events, (max(time, self.now), self._count, happen))

    def after(self, seconds: float, happen: Callable[[], None]) -> None:
        self.at(self.now + seconds, happen)

    def run(self, until: float) -> None:
        """Let everything happen up to a time."""
        events = self._events
        while events and events[0][0] <= until:
            self.now, _, happen = heappop(events)
            happen()
        self.now = until
