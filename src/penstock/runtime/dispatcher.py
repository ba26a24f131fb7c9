# SPDX-License-Identifier: Apache-2.0
"""How many leased jobs shall wait in the window?"""

from __future__ import annotations

WINDOW_SECONDS = 0.1  # of work at the recent rate
WINDOW_MAX = 1_024  # jobs
RATE_HALF_LIFE_SECONDS = 0.5


class WindowSize:
    """Keeps the recent rate of ends and says how many jobs to lease next. Pure."""

    def __init__(self, now_monotonic: float) -> None:
        self._rate = 0.0  # ends per second
        self._count = 0
        self._since = now_monotonic

    @property
    def rate(self) -> float:
        return self._rate

    def ended(self, count: int, now_monotonic: float) -> None:
        """So many jobs have ended."""
        self._count += count
        span = now_monotonic - self._since
        if span < 0.02:
            return
        weight = 1.0 - 0.5 ** (span / RATE_HALF_LIFE_SECONDS)
        self._rate += weight * (self._count / span - self._rate)
        self._count, self._since = 0, now_monotonic

    def target(self, free_slots: int) -> int:
        """Jobs that the window should hold: 100 ms of work, but at least two for each free slot."""
        return min(WINDOW_MAX, max(2 * free_slots, round(self._rate * WINDOW_SECONDS)))

    def to_lease(self, waiting: int, free_slots: int) -> int:
        """How many to ask for now; 0 while the window is more than half full."""
        target = self.target(free_slots)
        if waiting > target // 2:
            return 0
        return max(target - waiting, 0)
