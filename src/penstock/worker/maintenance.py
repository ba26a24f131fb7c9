# SPDX-License-Identifier: Apache-2.0
"""Maintenance of a worker: learned limits, shared cool-downs, old calls, and dead workers."""

from __future__ import annotations

import logging

from penstock.errors import StoreError
from penstock.model.worker import is_abandoned
from penstock.process_identity import is_gone
from penstock.requests.journal.retention import JournalRetention
from penstock.worker.core import WorkerCore
from penstock.worker.observer import Tick
from penstock.worker.parts import WorkerParts

LOOK_SECONDS = 5.0  # between two looks for workers that are gone, unseen

log = logging.getLogger("penstock.worker")


class AbandonedWorkers:
    """Finds workers of this machine that are gone, as their supervisors are. Belongs to one loop.

    After a kill of everything nobody need wait for the end of their leases.
    """

    def __init__(self, parts: WorkerParts) -> None:
        self._store = parts.store
        self._clock = parts.clock
        self._next_monotonic = 0.0

    @property
    def is_due(self) -> bool:
        return self._clock.monotonic() >= self._next_monotonic

    async def look(self) -> None:
        """End their leases; a store that fails is asked again later."""
        self._next_monotonic = self._clock.monotonic() + LOOK_SECONDS
        try:
            views = await self._store.workers()
            gone = [view for view in views if view.alive and is_abandoned(view, is_gone)]
            if gone and await self._store.expire([view.id for view in gone]):
                pids = ", ".join(str(view.pid) for view in gone)
                log.info("Workers that were killed (pid %s) are gone: their jobs go on.", pids)
        except StoreError as error:
            log.debug("Nobody looked for dead workers: %s", error)


class Maintenance:
    """Starts what is due, beside the loop. Belongs to one loop, and keeps nothing."""

    def __init__(self, core: WorkerCore) -> None:
        self._core = core
        config, parts = core.config, core.parts
        kept = None if config.solo else config.journal_retention_seconds
        self._abandoned = AbandonedWorkers(parts)
        self._pruning: JournalRetention | None = None
        if kept is not None:
            self._pruning = JournalRetention(parts.store, parts.clock, kept, parts.ids.random)

    def ticked(self, tick: Tick) -> None:
        providers, pruning = self._core.parts.providers, self._pruning
        spawn = self._core.parts.loop.spawn
        if providers is not None and providers.is_due:
            spawn(providers.save())
        if providers is not None and providers.shared.is_due:
            spawn(providers.shared.share())
        if self._abandoned.is_due and tick.is_registered:
            spawn(self._abandoned.look())
        if pruning is not None and pruning.is_due and tick.is_registered:
            spawn(pruning.run_once())
        self._core.window.tell()
