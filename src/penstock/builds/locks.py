# SPDX-License-Identifier: Apache-2.0
"""How do the locks of a build stay alive inside somebody's program?"""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.clock import Clock
from penstock.errors import PenstockError
from penstock.stores.datasets import LockStore
from penstock.stores.retry import Outage
from penstock.worker.repeating import RepeatingThread

log = logging.getLogger("penstock.build")


class LockBeat(RepeatingThread):
    """Renews the locks of one run, from when they are taken until they are let go."""

    def __init__(
        self,
        store: LockStore,
        run_id: str,
        clock: Clock,
        ttl_seconds: float,
        beat_seconds: float,
        has_locks: Callable[[], bool],
        lost: Callable[[], None],
    ) -> None:
        super().__init__("penstock-locks", beat_seconds)
        self._store = store
        self._run_id = run_id
        self._ttl_seconds = ttl_seconds
        self._has_locks = has_locks
        self._lost = lost
        self._outage = Outage(
            log, clock, "The locks were not renewed", "The locks are renewed again"
        )

    def run_once(self) -> None:
        """Renew once; an unreachable store is asked again, and nobody can take them meanwhile."""
        if not self._has_locks():
            return
        try:
            ours = self._store.beat_locks(self._run_id, self._ttl_seconds).result(self._ttl_seconds)
        except (PenstockError, TimeoutError) as error:
            self._outage.began(error)
            return
        self._outage.ended()
        if not ours and self._has_locks():
            self._lost()
