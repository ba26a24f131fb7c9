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
from penstock.worker.heartbeat import LOST_MONOTONIC, RepeatingThread, margin
from penstock.worker.slot_table import SlotTable

RENEWED_PAST_SECONDS = 30.0  # nothing is renewed for an attempt this long past its limit

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
        now = self._clock.monotonic()
        wanted = {}
        for table in self._tables():
            if table is None:
                continue
            try:
                snapshot = table.snapshot()
            except ValueError:  # the worker has just been reaped and its table closed
                continue
            overdue = any(
                record.deadline_monotonic and now > record.deadline_monotonic + RENEWED_PAST_SECONDS
                for record in snapshot.running
            )
            if snapshot.worker is not None and not overdue:
                wanted[snapshot.worker] = table
        if not wanted:
            return 0
        try:
            alive = self._store.beat(list(wanted), self._ttl_seconds).result(self._ttl_seconds)
        except (StoreFailed, StoreCorrupt) as error:
            self.failed = error
            return 0
        except (PenstockError, TimeoutError) as error:
            self._outage.began(error)
            return 0
        self._outage.ended()
        until = now + self._ttl_seconds - margin(self._ttl_seconds)
        for worker, table in wanted.items():
            try:
                if table.snapshot().worker == worker:
                    table.set_lease_until(until if worker in alive else LOST_MONOTONIC)
            except ValueError:
                continue
        return len(alive)
