# SPDX-License-Identifier: Apache-2.0
"""Maintenance of a worker: saves learned limits and prunes old calls, now and again."""

from __future__ import annotations

from penstock.requests.journal.retention import JournalRetention
from penstock.worker.core import WorkerCore
from penstock.worker.observer import Tick


class Maintenance:
    """Starts what is due, beside the loop. Belongs to one loop, and keeps nothing."""

    def __init__(self, core: WorkerCore) -> None:
        self._core = core
        config, parts = core.config, core.parts
        kept = None if config.solo else config.journal_retention_seconds
        self._pruning: JournalRetention | None = None
        if kept is not None:
            self._pruning = JournalRetention(parts.store, parts.clock, kept, parts.ids.random)

    def ticked(self, tick: Tick) -> None:
        providers, pruning = self._core.parts.providers, self._pruning
        spawn = self._core.parts.loop.spawn
        if providers is not None and providers.is_due:
            spawn(providers.save())
        if pruning is not None and pruning.is_due and tick.is_registered:
            spawn(pruning.run_once())
        self._core.window.tell()
