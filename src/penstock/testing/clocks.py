# SPDX-License-Identifier: Apache-2.0
"""A clock that only the test moves: wall, monotonic and boot time."""

from __future__ import annotations

import asyncio
import heapq
from itertools import count

from penstock.clock import MICROSECONDS, BootTime, to_micros

START_SECONDS = 1_750_000_000  # a moment in 2025: stored times look like times


class ManualClock:
    """Owns wall, monotonic and boot time; is a Clock and a BootClock.

    Counts whole microseconds, so that no store sees another moment by rounding.
    """

    def __init__(self, start_seconds: float = START_SECONDS, boot_id: str = "boot-1") -> None:
        self._wall = to_micros(start_seconds)
        self._monotonic = MICROSECONDS  # not zero, so that a forgotten addition shows
        self._suspended = 0
        self._boot_id = boot_id
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = count()

    def __repr__(self) -> str:
        return f"<ManualClock {self.monotonic():.6f} s, {len(self._sleepers)} asleep>"

    def cpu(self) -> float:
        return 0.0  # time that a test owns costs nothing

    def monotonic(self) -> float:
        return self._monotonic / MICROSECONDS

    def now(self) -> float:
        return self._wall / MICROSECONDS

    @property
    def now_micros(self) -> int:
        """The wall clock as stores keep it."""
        return self._wall

    def boot_time(self) -> BootTime:
        return BootTime(self._boot_id, self._monotonic + self._suspended)

    def advance(self, seconds: float) -> None:
        """Let time pass on every clock; wakes who slept until then."""
        step = to_micros(seconds)
        if step < 0:
            raise ValueError(f"time cannot go back by {-seconds} s; use jump() for the wall clock")
        self._monotonic += step
        self._wall += step
        while self._sleepers and self._sleepers[0][0] <= self._monotonic:
            _, _, future = heapq.heappop(self._sleepers)
            if not future.done():
                future.set_result(None)

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or back, as an administrator does; no time passes."""
        self._wall += to_micros(seconds)

    def suspend(self, seconds: float) -> None:
        """Let the machine sleep: boot time and wall clock go on, monotonic time stands still."""
        self._suspended += to_micros(seconds)
        self._wall += to_micros(seconds)

    async def sleep(self, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        until = self._monotonic + to_micros(max(0.0, seconds))
        if until <= self._monotonic:
            future.set_result(None)
        else:
            heapq.heappush(self._sleepers, (until, next(self._order), future))
        await future
