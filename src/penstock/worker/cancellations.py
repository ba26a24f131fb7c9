# SPDX-License-Identifier: Apache-2.0
"""Cancellations: bodies of jobs that an operator cancelled are stopped, and questions answered.

The store keeps the leases that ended from outside (`detached`) and questions about leases; the
worker looks into its inbox now and again, stops the bodies, passes over what has not started, and
answers.
"""

from __future__ import annotations

from penstock.errors import TRANSIENT
from penstock.model.job import WorkerId
from penstock.worker.core import WorkerCore
from penstock.worker.observer import Tick
from penstock.worker.status import StatusRow


class Cancellations:
    """Looks into the inbox of one worker. Belongs to one loop."""

    def __init__(self, core: WorkerCore, status: StatusRow) -> None:
        self._core = core
        self._status = status
        self._asking = False

    def ticked(self, tick: Tick) -> None:
        if self._core.executor.occupied or len(self._core.window):
            self._core.parts.loop.spawn(self.look(tick.worker))

    async def look(self, worker: WorkerId) -> None:
        """Look for leases that are over, and stop what runs under them; answer what is asked."""
        if self._asking:
            return  # the store is slow; one look at a time
        self._asking = True
        try:
            store, cancel = self._core.parts.store, self._core.executor.cancel
            inbox = await store.inbox(worker)
            self._core.window.cancelled = {ref for ref in inbox.detached if not cancel(ref)}
            for question in inbox.questions:
                await store.answer(question.id, self._status.standing(question.ref).encoded())
        except TRANSIENT:
            return  # the next tick looks again
        finally:
            self._asking = False
