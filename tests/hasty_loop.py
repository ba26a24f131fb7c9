# SPDX-License-Identifier: Apache-2.0
"""How does a test with real sockets meet a deadline without sitting it out?

On a loop whose time leaps to the next timer when nothing has happened for a moment. What computes
or waits for a thread takes its real time, so deadlines may be long and cost nothing.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
MOMENT_SECONDS = 0.01  # sockets on loopback need none of it


class HastyLoop(asyncio.SelectorEventLoop):
    """Owns its time. Does not know which timer it leaps to."""

    def __init__(self) -> None:
        self.leapt_seconds = 0.0
        super().__init__(_HastySelector(self))

    def time(self) -> float:
        return super().time() + self.leapt_seconds


class _HastySelector(selectors.DefaultSelector):
    def __init__(self, loop: HastyLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= MOMENT_SECONDS:
            return super().select(timeout)
        found = super().select(MOMENT_SECONDS)
        if not found:
            self._loop.leapt_seconds += timeout - MOMENT_SECONDS
        return found


def run_hasty(main: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`."""
    with asyncio.Runner(loop_factory=HastyLoop) as runner:
        return runner.run(main)
