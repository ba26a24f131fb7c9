# SPDX-License-Identifier: Apache-2.0
"""Journal retention: deletes the paid calls of jobs that ended long ago.

Any worker does it, once an hour and in batches, so that nobody waits for it. Accounts of what was
spent stay.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.clock import MICROSECONDS, Clock
from penstock.errors import StoreError
from penstock.model.job import JobId
from penstock.stores.protocol import JournalStore

FIRST_SECONDS = 60.0  # after its start, and up to as much again: not all at once
EVERY_SECONDS = 3600.0
PAUSE_SECONDS = 0.05  # between two batches: others write as well

log = logging.getLogger("penstock.journal")


class JournalRetention:
    """Owns when old calls are deleted. Belongs to one loop."""

    def __init__(
        self, store: JournalStore, clock: Clock, retention_seconds: float, rand: Callable[[], float]
    ) -> None:
        self._store = store
        self._clock = clock
        self._retention_seconds = retention_seconds
        self._rand = rand
        self._next_monotonic = clock.monotonic() + FIRST_SECONDS * (1 + rand())
        self._runs = False

    def __repr__(self) -> str:
        return f"<JournalRetention, calls are kept for {self._retention_seconds:g} s>"

    @property
    def is_due(self) -> bool:
        return not self._runs and self._clock.monotonic() >= self._next_monotonic

    async def run_once(self) -> int:
        """Delete what is old enough and return how many calls; a store that fails is left alone."""
        self._runs = True
        before = round((self._clock.now() - self._retention_seconds) * MICROSECONDS)
        count, last, more = 0, JobId(0), True
        try:
            while more:
                progress, last = await self._store.prune_calls(before, last)
                count, more = count + progress.count, progress.more
                if more:
                    await self._clock.sleep(PAUSE_SECONDS)
        except StoreError as error:
            log.debug("Old paid calls were not deleted: %s", error)
        finally:
            self._runs = False
            # A tenth more or less: workers that were started together do not stay together.
            spread = 0.9 + 0.2 * self._rand()
            self._next_monotonic = self._clock.monotonic() + EVERY_SECONDS * spread
        if count:
            log.info("%d paid calls of jobs that ended long ago were deleted.", count)
        return count
