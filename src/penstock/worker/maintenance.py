# SPDX-License-Identifier: Apache-2.0
"""Maintenance of a worker: cancelled jobs, learned limits, and old calls, now and again."""

from __future__ import annotations

from penstock.requests.journal.retention import JournalRetention
from penstock.worker.cancellations import Cancellations
from penstock.worker.core import WorkerCore
from penstock.worker.observer import Tick, WorkerObserver


class Maintenance(WorkerObserver):
    """Starts what is due, beside the loop. Belongs to one loop, and keeps nothing."""

    def __init__(
        self, core: WorkerCore, cancellations: Cancellations, pruning: JournalRetention | None
    ) -> None:
        self._core = core
        self._cancellations = cancellations
        self._pruning = pruning

    def ticked(self, tick: Tick) -> None:
        core, pruning = self._core, self._pruning
        spawn = core.background.spawn
        if core.executor.occupied or len(core.window):
            spawn(self._cancellations.look(tick.worker))
        if core.providers is not None and core.providers.is_due:
            spawn(core.providers.save())
        if pruning is not None and pruning.is_due and tick.is_registered:
            spawn(pruning.run_once())
        core.window.tell()
