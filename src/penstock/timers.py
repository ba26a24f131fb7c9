# SPDX-License-Identifier: Apache-2.0
"""One timer of a loop for many moments: `Timer` for the earliest, `Deadlines` for a fixed delay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

REARM_SECONDS_MIN = 0.001  # loops round their timers, and ring a little early

K = TypeVar("K")
V = TypeVar("V")


class Timer:
    """Owns one timer, for the earliest moment that is wanted. Belongs to one loop."""

    __slots__ = ("_due", "_handle", "_loop", "_monotonic", "_ring")

    def __init__(
        self,
        ring: Callable[[], None],
        monotonic: Callable[[], float],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """It is not set.

        Args:
            ring: called when its time has come; it may set the timer anew.
            monotonic: the time.
            loop: where it rings; None: the one that runs when it is set.
        """
        self._ring = ring
        self._monotonic = monotonic
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None
        self._due = 0.0

    def set(self, due_monotonic: float | None) -> None:
        """Ring at this moment or earlier; None: not at all.

        A timer that is set to an earlier moment stays: whoever hears it sets it anew, which costs
        less than a new timer for each change.
        """
        if due_monotonic is None:
            self.cancel()
            return
        loop = self._loop or asyncio.get_running_loop()
        if loop.is_closed():
            return
        if self._handle is not None:
            if self._due <= due_monotonic:
                return
            self._handle.cancel()
        self._due = due_monotonic
        seconds = max(0.0, due_monotonic - self._monotonic())
        self._handle = loop.call_later(seconds, self._rang)

    def cancel(self) -> None:
        """Do not ring."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _rang(self) -> None:
        self._handle = None
        self._ring()


class Deadlines(Generic[K, V]):
    """Owns what is open since when, and says what is open for too long. Belongs to one loop.

    The delay is the same for all, so the oldest is always due first. The timer is set anew only
    when it rings: what ends in time costs none.
    """

    def __init__(
        self,
        seconds: float,
        overdue: Callable[[K, V], object],
        monotonic: Callable[[], float],
    ) -> None:
        """Nothing is open.

        Args:
            seconds: how long something may be open.
            overdue: called for what was open for so long, when it is not any more.
            monotonic: the time.
        """
        self.seconds = seconds
        self._overdue = overdue
        self._monotonic = monotonic
        self._open: dict[K, tuple[V, float]] = {}  # with when it is due; the oldest first
        self._timer = Timer(self._ring, monotonic, asyncio.get_running_loop())

    def __repr__(self) -> str:
        return f"<Deadlines of {self.seconds:g} s, {len(self._open)} open>"

    def __len__(self) -> int:
        return len(self._open)

    def add(self, key: K, value: V) -> None:
        """It begins now."""
        due = self._monotonic() + self.seconds
        self._open.pop(key, None)
        self._open[key] = value, due
        self._timer.set(due)

    def drop(self, key: K) -> V | None:
        """It has ended; what was kept with it, or None if it is not open."""
        found = self._open.pop(key, None)
        return None if found is None else found[0]

    def clear(self) -> None:
        """Nothing is open any more."""
        self._open.clear()
        self._timer.cancel()

    def _ring(self) -> None:
        now = self._monotonic()
        while self._open:
            key, (value, due) = next(iter(self._open.items()))
            if due > now:
                self._timer.set(max(due, now + REARM_SECONDS_MIN))
                return
            del self._open[key]
            self._overdue(key, value)
