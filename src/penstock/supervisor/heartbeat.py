# SPDX-License-Identifier: Apache-2.0
"""The heartbeat of a supervisor: renews the leases of all its workers.

A worker without a supervisor renews its own, and every worker knows until when it may rely on its
lease: see `worker/heartbeat.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.clock import Clock
from penstock.errors import PenstockError, StoreCorrupt, StoreError, StoreFailed
from penstock.stores.protocol import JobStore
from penstock.stores.retry import Outage
from penstock.worker.heartbeat import RepeatingThread, renew
from penstock.worker.slot_table import SlotTable

log = logging.getLogger("penstock.beat")


class LeaseHeartbeat(RepeatingThread):
    """Renews the leases of all workers of a run, one row each."""

    def __init__(
        self,
        store: JobStore,
        tables: Callable[[], list[SlotTable | None]],
        clock: Clock,
        ttl_seconds: float,
        beat_seconds: float,
    ) -> None:
        super().__init__("penstock-beat", beat_seconds)
        self._store = store
        self._tables = tables
        self._clock = clock
        self._ttl_seconds = ttl_seconds
        self._outage = Outage(log, clock, "Leases were not renewed", "Leases are renewed again")
        self._rested_monotonic = clock.monotonic()  # since then it waits for its next turn
        self.failed: StoreError | None = None  # nothing will ever be renewed again

    def run_once(self) -> int:
        """Renew every worker that may be renewed; how many were."""
        self._look_back(self._clock.monotonic())
        try:
            return self._renew()
        finally:
            self._rested_monotonic = self._clock.monotonic()

    def _look_back(self, now: float) -> None:
        """Say it, if this process was stopped (Ctrl-Z) for longer than its leases last."""
        seconds = now - self._rested_monotonic
        if seconds > self._ttl_seconds:
            log.warning(
                "This process was stopped for %.0f s, longer than its leases of %g s last: others "
                "may have its jobs; attempts that lost theirs are stopped, and change nothing.",
                seconds,
                self._ttl_seconds,
            )

    def _renew(self) -> int:
        tables = [table for table in self._tables() if table is not None]
        try:
            count = renew(self._store, tables, self._ttl_seconds, self._clock.monotonic())
        except (StoreFailed, StoreCorrupt) as error:
            self.failed = error
            return 0
        except (PenstockError, TimeoutError) as error:
            self._outage.began(error)
            return 0
        if count:
            self._outage.ended()
        return count
