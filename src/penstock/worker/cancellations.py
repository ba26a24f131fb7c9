# SPDX-License-Identifier: Apache-2.0
"""Which of the jobs that a worker holds were cancelled meanwhile, and what is it asked?

The store keeps the leases that ended from outside (`lingering`) and questions about leases; the
worker looks into its inbox now and again, stops the bodies, passes over what has not started, and
answers.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.errors import TRANSIENT
from penstock.model.job import LeasedJob, WorkerId
from penstock.model.lease import JobRef
from penstock.model.worker import JobStanding
from penstock.stores.protocol import ControlStore
from penstock.worker.executor import JobExecutor


class Cancellations:
    """Keeps the refs of cancelled jobs that wait in the window. Belongs to one loop."""

    def __init__(
        self,
        store: ControlStore,
        slots: JobExecutor,
        release: Callable[[JobRef], None],
        standing: Callable[[JobRef], JobStanding],
    ) -> None:
        self._store = store
        self._slots = slots
        self._release = release
        self._standing = standing
        self._waiting: set[tuple[int, int]] = set()
        self._asking = False

    async def look(self, worker: WorkerId) -> None:
        """Look for leases that are over, and stop what runs under them; answer what is asked."""
        if self._asking:
            return  # the store is slow; one look at a time
        self._asking = True
        try:
            inbox = await self._store.inbox(worker)
            self._waiting = {ref for ref in inbox.lingering if not self._slots.withdraw(ref)}
            for question in inbox.questions:
                await self._store.answer(question.id, self._standing(question.ref).encoded())
        except TRANSIENT:
            return  # the next tick looks again
        finally:
            self._asking = False

    def take(self, job: LeasedJob) -> bool:
        """Was this job cancelled before it began? Then its lease is let go."""
        if not self._waiting:
            return False
        ref = JobRef(job.id, job.token)
        if ref not in self._waiting:
            return False
        self._waiting.discard(ref)
        self._release(ref)
        return True
