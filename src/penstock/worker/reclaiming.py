# SPDX-License-Identifier: Apache-2.0
"""What does a worker hold without knowing it?

A lease call whose fate is unknown may have been committed: its jobs are then held by a worker that
was never told, and as long as it lives nobody else gets them. So it looks for them, gives them
back, and looks again later: a transaction that was on its way may come last of all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from penstock.clock import Clock
from penstock.model.job import WorkerId
from penstock.model.lease import JobRef
from penstock.stores.protocol import JobStore

LOOKS_SECONDS = (0.0, 5.0, 60.0)  # after a lease whose fate is unknown

log = logging.getLogger("penstock.worker")


class Reclaiming:
    """Owns the looks that are due. Belongs to one loop."""

    def __init__(
        self,
        store: JobStore,
        clock: Clock,
        known: Callable[[], Collection[tuple[int, int]]],
        release: Callable[[JobRef], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._known = known
        self._release = release
        self._looks: list[float] = []

    @property
    def due(self) -> bool:
        return bool(self._looks) and self._clock.monotonic() >= self._looks[0]

    def doubt(self) -> None:
        """The fate of a lease call is unknown."""
        now = self._clock.monotonic()
        self._looks = [now + seconds for seconds in LOOKS_SECONDS]

    def forget(self) -> None:
        """There is a new name, and it holds nothing."""
        self._looks = []

    async def look(self, worker: WorkerId) -> int:
        """Give back what this worker holds and does not know; how many jobs that were.

        No lease call may be on its way meanwhile.
        """
        held = await self._store.leases(worker)
        known = self._known()
        unknown = [ref for ref in held if ref not in known]
        for ref in unknown:
            self._release(ref)
        self._looks = self._looks[1:]
        if unknown:
            log.warning("%d job(s) that were leased in vain are given back.", len(unknown))
        return len(unknown)
