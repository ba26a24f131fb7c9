# SPDX-License-Identifier: Apache-2.0
"""What does a worker do now and again besides its work?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from penstock.model.job import WorkerId
from penstock.requests.journal.retention import JournalPruning
from penstock.worker.cancellations import Withdrawals
from penstock.worker.executor import Slots
from penstock.worker.prefetch import JobWindow
from penstock.worker.provider_run import ProviderRun
from penstock.worker.recycling import WearWatch
from penstock.worker.status import StatusRow

T = TypeVar("T")


class Background:
    """Owns the short works of one loop, so that none is lost and no failure stays unseen."""

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self._failed = failed
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        """What nobody expected ends the worker: without this part of it, it would only hang."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)


class Upkeep:
    """Starts what is due, beside the loop. Belongs to one loop, and keeps nothing."""

    def __init__(
        self,
        background: Background,
        window: JobWindow,
        slots: Slots,
        withdrawals: Withdrawals,
        status: StatusRow,
        providers: ProviderRun | None,
        pruning: JournalPruning | None,
        wear: WearWatch | None,
    ) -> None:
        self._background = background
        self._window = window
        self._slots = slots
        self._withdrawals = withdrawals
        self._status = status
        self._providers = providers
        self._pruning = pruning
        self._wear = wear  # None: nobody could replace this worker

    def run_once(self, worker: WorkerId, *, has_name: bool, stops: bool) -> None:
        """Start what is due.

        Args:
            worker: who does it.
            has_name: the store knows it.
            stops: it was told to.
        """
        spawn = self._background.spawn
        if self._slots.occupied or len(self._window):
            spawn(self._withdrawals.look(worker))
        if has_name and self._status.is_due(worker):
            spawn(self._status.publish(worker))
        if self._providers is not None and self._providers.is_due:
            spawn(self._providers.save())
        if self._pruning is not None and self._pruning.is_due and has_name:
            spawn(self._pruning.run_once())
        if self._wear is not None and not stops:
            self._wear.run_once()
        self._window.tell()
