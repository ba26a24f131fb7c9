# SPDX-License-Identifier: Apache-2.0
"""The heartbeat: renewal of a worker's lease, and until when the worker may rely on it.

Renewal happens outside of the event loop: by the supervisor where there is one and it does not
stand still (`supervisor/heartbeat.py`), else by a thread of the worker. A worker relies on its
lease until the moment the renewal was *sent*, plus the time to live, less a margin.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable

from penstock.clock import Clock
from penstock.errors import PenstockError
from penstock.model.job import WorkerId
from penstock.stores.protocol import JobStore
from penstock.stores.retry import Outage
from penstock.worker.slot_table import SlotSnapshot, SlotTable

RENEWED_PAST_SECONDS = 30.0  # nothing is renewed for an attempt this long past its limit
LOOK_SHARE = 0.05  # of the time to live: how often a worker looks whether it was renewed
MARGIN_SHARE = 0.1  # of the time to live
MARGIN_MAX_SECONDS = 2.0
#: The store says that a lease is over, whatever our own clock says: it stands still in a suspended
#: machine, where the store's does not.
LOST_MONOTONIC = 0.0

log = logging.getLogger("penstock.beat")


class RepeatingThread(ABC):
    """Calls `run_once` every so many seconds in a thread of its own, until it is stopped."""

    def __init__(self, name: str, every_seconds: float) -> None:
        self._every_seconds = every_seconds
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def run_once(self) -> object:
        """Do it once."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End it; idempotent, safe before the start, and not held up by a call that hangs."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(self._every_seconds)

    def _run(self) -> None:
        while not self._end.wait(self._every_seconds):
            self.run_once()


def margin(ttl_seconds: float) -> float:
    """How much earlier than the store a worker stops relying on its lease."""
    return min(ttl_seconds * MARGIN_SHARE, MARGIN_MAX_SECONDS)


class Overrun:
    """Notes since when bodies run on after the end of a lease, as somebody else sees it."""

    def __init__(self) -> None:
        self._since: float | None = None

    def seconds(self, now_monotonic: float, until_monotonic: float, *, runs: bool) -> float:
        """How long that has been seen; 0 if it is not so now."""
        if not runs or now_monotonic < until_monotonic:
            self._since = None
            return 0.0
        if self._since is None:
            self._since = now_monotonic
        return now_monotonic - self._since


def renew(
    store: JobStore, tables: Iterable[SlotTable], ttl_seconds: float, now_monotonic: float
) -> int:
    """Renew the workers that these tables name, and that may be renewed; how many were.

    An answer that comes late, because its process stood still, takes back no later renewal.

    Raises:
        PenstockError, TimeoutError: nothing was renewed.
    """
    wanted: dict[WorkerId, SlotTable] = {}
    for table in tables:
        with contextlib.suppress(ValueError):  # the worker has just been reaped, its table closed
            snapshot = table.snapshot()
            if snapshot.worker is not None and not _is_overdue(snapshot, now_monotonic):
                wanted[snapshot.worker] = table
    if not wanted:
        return 0
    alive = store.beat(list(wanted), ttl_seconds).result(ttl_seconds)
    until = now_monotonic + ttl_seconds - margin(ttl_seconds)
    for worker, table in wanted.items():
        with contextlib.suppress(ValueError):
            if table.snapshot().worker == worker:
                later = max(until, table.lease_until())
                table.set_lease_until(later if worker in alive else LOST_MONOTONIC)
    return len(alive)


def _is_overdue(snapshot: SlotSnapshot, now_monotonic: float) -> bool:
    return any(
        one.deadline_monotonic and now_monotonic > one.deadline_monotonic + RENEWED_PAST_SECONDS
        for one in snapshot.running
    )


class FallbackHeartbeat(RepeatingThread):
    """Renews a worker's lease in the supervisor's place while that one stands still (SIGSTOP).

    Mostly the supervisor renews, and the worker reads the deadline in the slot table. The thread
    renews once half of the lease has passed without it.
    """

    def __init__(self, table: SlotTable, store: JobStore, clock: Clock, ttl_seconds: float) -> None:
        super().__init__("penstock-beat", ttl_seconds * LOOK_SHARE)
        self._table = table
        self._store = store
        self._clock = clock
        self._ttl_seconds = ttl_seconds
        self._margin = margin(ttl_seconds)
        self._outage = Outage(log, clock, "The lease was not renewed", "The lease is renewed again")

    def adopt(self, worker: WorkerId, until_monotonic: float) -> None:
        self._table.set_worker(worker)
        self._table.set_lease_until(until_monotonic - self._margin)

    def believed_until(self) -> float:
        return self._table.lease_until()

    def run_once(self) -> None:
        """Renew, if nobody has for half of the lease, and it is not over yet."""
        now = self._clock.monotonic()
        left = self.believed_until() - now
        if not 0 < left < self._ttl_seconds / 2 - self._margin:
            return
        try:
            renew(self._store, [self._table], self._ttl_seconds, now)
        except (PenstockError, TimeoutError) as error:
            self._outage.began(error)
        else:
            self._outage.ended()


class HeartbeatThread(RepeatingThread):
    """Renews the lease of the one worker of this process."""

    def __init__(
        self, store: JobStore, clock: Clock, ttl_seconds: float, beat_seconds: float
    ) -> None:
        super().__init__("penstock-beat", beat_seconds)
        self._store = store
        self._clock = clock
        self._ttl_seconds = ttl_seconds
        self._worker: WorkerId | None = None
        self._until = float("inf")
        self._outage = Outage(log, clock, "The lease was not renewed", "The lease is renewed again")

    def adopt(self, worker: WorkerId, until_monotonic: float) -> None:
        self._worker = worker  # first: an answer about the old name must not touch the new deadline
        self._until = until_monotonic - margin(self._ttl_seconds)

    def believed_until(self) -> float:
        return self._until

    def run_once(self) -> None:
        """Renew once; after a failure the deadline is not prolonged."""
        worker = self._worker
        if worker is None:
            return
        sent = self._clock.monotonic()
        try:
            alive = self._store.beat([worker], self._ttl_seconds).result(self._ttl_seconds)
        except (PenstockError, TimeoutError) as error:
            self._outage.began(error)
            return
        self._outage.ended()
        if worker != self._worker:
            return
        if worker in alive:
            self._until = sent + self._ttl_seconds - margin(self._ttl_seconds)
        else:
            self._until = LOST_MONOTONIC
