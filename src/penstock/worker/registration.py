# SPDX-License-Identifier: Apache-2.0
"""Registration: the name under which a worker holds its leases; it signs on and off."""

from __future__ import annotations

import asyncio
import logging
import os
import socket

from penstock.errors import PenstockError, StoreBusy
from penstock.model.job import WorkerId
from penstock.model.lease import WorkerInfo
from penstock.worker.parts import WorkerConfig, WorkerParts

SIGN_OFF_SECONDS = 10.0  # then the worker ends without; its lease ends by itself
UNSURE_SECONDS = 1.5  # the same for a name that the store has perhaps never heard
FRESH_SHARE = 0.25  # of the time to live: an older answer is asked for again
WAITS = "Signing on has to wait"

log = logging.getLogger("penstock.worker")


class Registration:
    """Owns the worker's id. An id is never used twice: who has lost one is somebody else."""

    def __init__(self, config: WorkerConfig, tasks: tuple[str, ...], parts: WorkerParts) -> None:
        self._config = config
        self.tasks = tasks  # that the worker serves
        self._store = parts.store
        self._keeper = parts.keeper
        self._table = parts.table
        self._clock = parts.clock
        self._ids = parts.ids
        self._retry = parts.retry
        self.worker_id = WorkerId("")
        self._asked: WorkerId | None = None  # a name that the store may have accepted already
        self.is_lost = False  # the store says that the lease is over
        self.losing = False  # the lease is over, or never was, and no new one is there yet

    async def sign_on(self) -> None:
        """Become a new worker, as soon as the store can be reached.

        Never go on under the old name: its jobs were given up, and a late beat may save it.
        """
        self.losing = True
        self.is_lost = False
        await self._retry.until_answered(WAITS, self._sign_on)
        self.losing = False

    async def _sign_on(self) -> None:
        worker = WorkerInfo(
            id=WorkerId(self._ids.new_id("w")),
            run_id=self._config.run_id,
            tasks=self.tasks,
            host=socket.gethostname(),
            pid=os.getpid(),
            max_crashes=self._config.max_crashes,
        )
        ttl = self._config.lease_ttl_seconds
        sent = self._clock.monotonic()
        self._asked = worker.id
        await self._store.register(worker, ttl)
        while self._clock.monotonic() - sent > ttl * FRESH_SHARE:
            sent = self._clock.monotonic()  # it waited for a server: nobody knows for how long
            if worker.id not in await self._store.beat([worker.id], ttl):
                raise StoreBusy("The lease ended before the registration was complete.")
        self.worker_id, self._asked = worker.id, None
        self._table.set_worker(worker.id)
        self._keeper.adopt(worker.id, sent + ttl)

    async def sign_off(self, *, bodies_left: bool) -> None:
        """Give everything back, as far as the store lets us.

        Detached bodies run until the process ends: the supervisor, who sees that, signs
        off for us then. Without one they run on with the program, and nobody counts them.
        """
        if bodies_left and not self._config.runs_suspects:
            return
        try:
            async with asyncio.timeout(SIGN_OFF_SECONDS if self.worker_id else UNSURE_SECONDS):
                for name in filter(None, (self.worker_id, self._asked)):
                    while (await self._store.retire(name)).more:
                        pass
        except (PenstockError, TimeoutError) as error:
            log.warning(
                "The worker could not sign off, so its jobs come back when its lease ends: %s",
                str(error) or "no answer in time",
            )
