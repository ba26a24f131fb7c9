# SPDX-License-Identifier: Apache-2.0
"""Whose time is up?

What is open ends so many seconds after it began, the same for all; so the oldest is always due
first, and one timer serves all of them. It is set anew only when it rings: a call that ends in time
costs no timer.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

REARM_SECONDS_MIN = 0.001  # loops round their timers


class Bounded(Protocol):
    """What must end in time."""

    def overdue(self) -> None:
        """Its time is up."""
        ...


class Deadlines:
    """Owns who is open since when, and the one timer. Belongs to one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self.loop = loop
        self.seconds = seconds
        self._since: dict[Bounded, float] = {}  # the oldest first
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Deadlines of {self.seconds:g} s, {len(self._since)} open>"

    def add(self, one: Bounded) -> None:
        """It begins now."""
        self._since[one] = self.loop.time()
        if self._timer is None:
            self._timer = self.loop.call_later(self.seconds, self._rang)

    def drop(self, one: Bounded) -> None:
        """It has ended."""
        self._since.pop(one, None)

    def _rang(self) -> None:
        self._timer = None
        now = self.loop.time()
        due: list[Bounded] = []
        for one, since in self._since.items():
            rest = since + self.seconds - now
            if rest > 0:
                self._timer = self.loop.call_later(max(rest, REARM_SECONDS_MIN), self._rang)
                break
            due.append(one)
        for one in due:
            del self._since[one]
            self.loop.call_soon(one.overdue)
