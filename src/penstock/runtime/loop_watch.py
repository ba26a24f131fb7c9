# SPDX-License-Identifier: Apache-2.0
"""Is the event loop blocked, and by whom?"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from penstock.clock import Clock
from penstock.runtime.repeating import RepeatingThread
from penstock.runtime.slot_table import SlotTable

BLOCKED_SECONDS = 1.0

log = logging.getLogger("penstock.worker")


class LoopWatch(RepeatingThread):
    """A thread that warns once per stall, naming the task whose body does not yield."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        table: SlotTable,
        clock: Clock,
        name_of: Callable[[asyncio.Task[object] | None], str],
    ) -> None:
        super().__init__("penstock-watch", BLOCKED_SECONDS / 2)
        self._loop = loop
        self._table = table
        self._clock = clock
        self._name_of = name_of
        self._warned_for = 0.0

    def run_once(self) -> bool:
        """Look once; True if the loop has not turned for too long."""
        turn = self._table.last_turn()
        stalled = self._clock.monotonic() - turn
        if not turn or stalled < BLOCKED_SECONDS:
            return False
        if turn != self._warned_for:
            self._warned_for = turn
            culprit = self._name_of(asyncio.current_task(self._loop))
            log.warning(
                "The event loop has been blocked for %.1f s by %s. Use `await`, or make it a "
                "`def` task, which runs in a thread.",
                stalled,
                culprit,
            )
        return True
