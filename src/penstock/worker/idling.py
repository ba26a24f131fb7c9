# SPDX-License-Identifier: Apache-2.0
"""How does a worker wait when there is nothing to lease?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.clock import MICROSECONDS, Clock
from penstock.errors import TRANSIENT, StoreError
from penstock.stores.protocol import Store
from penstock.stores.retry import StoreRetry
from penstock.timers import Timer

IDLE_SECONDS = 1.0  # how long an idle worker waits for work before it looks around
HELD_BACK_SECONDS = 0.1  # the same while it passes over some jobs, and is told of all of them
BUDGET_SECONDS = 0.5  # the same if that may last for hours
WAITS = "Leasing has to wait"


class Idling:
    """Owns the wait for work. Belongs to one loop."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        retry: StoreRetry,
        woken: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._retry = retry
        self._delay = retry.delay()
        self._woken = woken
        self._failed = failed
        self._task: asyncio.Task[None] | None = None
        self._until = 0.0  # when the present wait ends, at the latest; by the wall clock
        self._alarm = Timer(self.cancel, clock.monotonic)

    @property
    def waits(self) -> bool:
        return self._task is not None

    def wait(
        self, next_due_at: int | None, *, held_back: bool = False, by_budget: bool = False
    ) -> None:
        """Sleep until the store says that there may be something, or something is due.

        A worker that holds some jobs back only sleeps: the store would tell it of those.
        """
        if self._task is not None:
            return
        seconds = BUDGET_SECONDS if by_budget else HELD_BACK_SECONDS
        waiting = self._sleep(seconds) if held_back else self._wait(next_due_at)
        self._task = asyncio.get_running_loop().create_task(waiting)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def due(self, at: int) -> None:
        """Something will be due that the store has not told of; wait no longer than until then."""
        if self._task is None or at / MICROSECONDS >= self._until:
            return
        self._until = at / MICROSECONDS
        left = max(self._until - self._clock.now(), 0.0)
        self._alarm.set(self._clock.monotonic() + left)

    def _ended(self) -> None:
        self._task = None
        self._alarm.cancel()
        self._woken()

    async def _wait(self, next_due_at: int | None) -> None:
        seconds = IDLE_SECONDS
        if next_due_at is not None:
            left = next_due_at / MICROSECONDS - self._clock.now()
            seconds = min(IDLE_SECONDS, max(left, 0.001))
        self._until = self._clock.now() + seconds
        try:
            await self._store.wait_for_work(seconds)
        except TRANSIENT as error:
            await self.back_off(error)
        except Exception as error:
            self._failed(error)
        finally:
            self._ended()

    async def _sleep(self, seconds: float) -> None:
        try:
            await self._clock.sleep(seconds)
        finally:
            self._ended()

    async def back_off(self, error: StoreError) -> None:
        """The store cannot say now whether there is something."""
        await self._retry.pause(WAITS, error, self._delay)

    def answered(self) -> None:
        self._delay.reset()
        self._retry.answered(WAITS)
