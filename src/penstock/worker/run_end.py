# SPDX-License-Identifier: Apache-2.0
"""When has a worker nothing more to do?

Asked when it falls idle, and then now and again. Ticks do not count: when only they are left, no
more of them begin, those that run come to their end, and whatever they bring is done.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from penstock.errors import StoreError
from penstock.model.job import WorkerId
from penstock.schedules.tick import Ticks
from penstock.worker.budgets import BudgetHold
from penstock.worker.completer import Completer
from penstock.worker.drain import Drain
from penstock.worker.executor import JobExecutor
from penstock.worker.lease_loop import LeaseLoop
from penstock.worker.parts import Background
from penstock.worker.prefetch import PrefetchWindow


class RunEnd:
    """Owns the question whether a worker may end by itself. Belongs to one loop."""

    def __init__(
        self,
        drain: Drain,
        hold: BudgetHold,
        window: PrefetchWindow,
        slots: JobExecutor,
        acks: Completer,
        leasing: LeaseLoop,
        ticks: Ticks,
        background: Background,
        *,
        solo: bool,
        fail: Callable[[BaseException], None],
        wake: Callable[[], None],
    ) -> None:
        self._drain = drain
        self._hold = hold
        self._window = window
        self._slots = slots
        self._acks = acks
        self._leasing = leasing
        self._ticks = ticks
        self._background = background
        self._solo = solo
        self._fail = fail
        self._wake = wake
        self._looking = False
        self._look_again = asyncio.Event()  # somebody has done something
        self._counts_ticks = bool(ticks.names)  # schedules run here, and may go on

    @property
    def is_reached(self) -> bool:
        """Nothing runs here and nothing is on its way: is that all there was?"""
        if len(self._window):
            return False
        if self._solo:
            return self._leasing.found_nothing
        return self._drain.is_out_of_money or (self._drain.ends and self._drain.finished)

    def stirred(self) -> None:
        """A job has ended here: whoever waits to look again need not wait longer."""
        self._look_again.set()

    def look(self, worker: WorkerId) -> None:
        """Ask the store what is left, if that is of interest now."""
        if (self._drain.ends or self._hold.tasks) and not self._looking and self._is_idle():
            self._looking = True
            self._background.spawn(self._look(worker))

    def _is_idle(self) -> bool:
        """Nothing but ticks runs, waits or is on its way, and the store had nothing more."""
        if self._counts_ticks:
            return all(attempt.limits.recurring for attempt in self._slots.running.values())
        busy = self._slots.running or self._acks.pending or len(self._window)
        return not busy and self._leasing.is_idle

    async def _look(self, worker: WorkerId) -> None:
        try:
            await self._drain.look(worker, self._hold.tasks)
            if self._drain.finished and self._counts_ticks:
                self._close_schedules()
            if not (self._drain.finished or self._drain.is_out_of_money):
                self._look_again.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._drain.pause_seconds()):
                        await self._look_again.wait()
        except StoreError as error:
            self._fail(error)
        finally:
            self._looking = False
            self._wake()

    def _close_schedules(self) -> None:
        """No job is left: no tick begins any more. Those that run may still bring some."""
        self._counts_ticks, self._drain.finished = False, False
        for name in self._ticks.names:
            self._window.hold_back(name)
        for ref in self._ticks.clear():
            self._acks.add(ref)
        self._leasing.look_again()
