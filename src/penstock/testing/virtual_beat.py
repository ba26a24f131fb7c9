# SPDX-License-Identifier: Apache-2.0
"""Who renews the lease of a worker in virtual time?"""

from __future__ import annotations

from penstock.clock import Clock
from penstock.config.settings import Settings
from penstock.model.job import WorkerId
from penstock.stores.protocol import JobStore
from penstock.worker.heartbeat import margin


class VirtualBeat:
    """Renews the worker's lease on the loop, where time is virtual and nothing can block."""

    def __init__(self, store: JobStore, clock: Clock, settings: Settings) -> None:
        self._store = store
        self._clock = clock
        self._ttl_seconds = settings.runtime.lease_ttl_seconds
        self._beat_seconds = settings.runtime.beat_seconds
        self._worker: WorkerId | None = None
        self._until = float("inf")

    def adopt(self, worker: WorkerId, until_monotonic: float) -> None:
        self._worker = worker
        self._until = until_monotonic - margin(self._ttl_seconds)

    def believed_until(self) -> float:
        return self._until

    async def run(self) -> None:
        while True:
            await self._clock.sleep(self._beat_seconds)
            sent = self._clock.monotonic()
            if self._worker in await self._store.beat(
                [self._worker] if self._worker else [], self._ttl_seconds
            ):
                self._until = sent + self._ttl_seconds - margin(self._ttl_seconds)
