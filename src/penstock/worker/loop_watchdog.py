# SPDX-License-Identifier: Apache-2.0
"""The event-loop watchdog: warns when the loop is blocked, and says by which task."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from penstock.clock import Clock
from penstock.worker.heartbeat import RepeatingThread
from penstock.worker.slot_table import SlotTable

BLOCKED_SECONDS = 1.0

log = logging.getLogger("penstock.worker")


class LoopWatchdog(RepeatingThread):
    """A thread that warns once per stall and culprit: the task whose body does not yield."""

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
        self._culprit = ""  # of the last warning
        self._seen = ("", 0.0)  # another one in the same stall, and since when

    def run_once(self) -> bool:
        """Look once; True if the loop has not turned for too long."""
        now, turn = self._clock.monotonic(), self._table.last_turn()
        stalled = now - turn
        if not turn or stalled < BLOCKED_SECONDS:
            return False
        culprit = self._name_of(asyncio.current_task(self._loop))
        if turn == self._warned_for:
            if culprit == self._culprit:
                return True
            if culprit != self._seen[0]:
                self._seen = (culprit, now)
            stalled = now - self._seen[1]
            if stalled < BLOCKED_SECONDS:
                return True
        self._warned_for, self._culprit, self._seen = turn, culprit, ("", 0.0)
        log.warning(
            "The event loop has been blocked for %.1f s by %s. Use `await`, or make it a "
            "`def` task, which runs in a thread.",
            stalled,
            culprit,
        )
        return True
