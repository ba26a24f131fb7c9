# SPDX-License-Identifier: Apache-2.0
"""Reports dead workers to the store: their jobs are given back, and what ran becomes suspect.

What becomes of each job is decided there (`reap` in `stores/sql/dead_workers.py`).
Each report waits for the store in a thread of its own and asks again until it is answered, so that
whoever watches the other workers is not held up.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

from penstock.clock import Clock, to_micros
from penstock.errors import TRANSIENT, PenstockError
from penstock.ids import IdSource
from penstock.model.job import AttemptError, ErrorCategory, Job, JobId, JobState, WorkerId
from penstock.model.lease import JobFailure, JobRef
from penstock.retry.classify import TimeLimitError
from penstock.retry.policy import OWN, is_last
from penstock.stores.protocol import JobFilter, Store
from penstock.stores.retry import Outage, RetryDelay, retry_in_thread
from penstock.stores.store_future import Reply, aside, within
from penstock.worker.slot_table import SlotRecord

AT_ONCE_SECONDS = 0.5  # mostly it is done by then
ANSWER_SECONDS = 10.0  # how long one step may wait for the store before it is tried again
NAMED_MAX = 5  # jobs that are named when their worker died
WORTH_RETRYING = (*TRANSIENT, TimeoutError)

log = logging.getLogger("penstock.supervisor")


@dataclass(frozen=True, slots=True)
class DeadWorker:
    """A worker process that has ended, and what is known of it."""

    worker: WorkerId
    pid: int
    cause: str
    in_order: bool  # it said so before
    ran: tuple[JobRef, ...]
    started: tuple[JobRef, ...]  # of those, what is under suspicion
    overdue: tuple[SlotRecord, ...]  # attempts for which it was killed
    max_crashes: int


class DeadWorkers:
    """Owns the reports that the store has not answered yet."""

    def __init__(self, store: Store, clock: Clock, ids: IdSource) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._open: list[Reply[None]] = []
        self._over = threading.Event()

    def report(self, dead: DeadWorker) -> None:
        """Give back what it held; what ran is suspect."""
        report = aside(lambda: self._report(dead))
        self._open = [other for other in self._open if not other.done]
        self._open.append(report)
        _wait(report, AT_ONCE_SECONDS)

    def finish(self, seconds: float) -> None:
        """Wait for those that are not done, all in all so long; then nobody asks again."""
        until = self._clock.monotonic() + seconds
        for report in self._open:
            _wait(report, max(until - self._clock.monotonic(), 0.0))
        self._open = []
        self._over.set()

    def _report(self, dead: DeadWorker) -> None:
        begins = (
            f"The jobs of dead worker {dead.pid} come back when the store answers or its lease ends"
        )
        try:
            retry_in_thread(
                lambda: self._try(dead),
                self._clock,
                RetryDelay(self._ids.random),
                Outage(log, self._clock, begins, None),
                self._over.wait,
                retried=WORTH_RETRYING,
            )
        except WORTH_RETRYING:
            return  # nobody waits any more; the lease ends by itself
        except PenstockError as error:
            log.warning(
                "Worker %d died unreported, so its jobs come back when its lease ends: %s",
                dead.pid,
                error,
            )

    def _try(self, dead: DeadWorker) -> None:
        """Report one dead worker. Safe to repeat: a worker that has ended holds nothing."""
        store, worker = self._store, dead.worker
        if dead.in_order:
            while store.retire(worker).result(ANSWER_SECONDS).more:
                pass
        overdue = [self._time_out(record) for record in dead.overdue]
        while True:
            reply = store.reap(worker, dead.started, dead.cause, dead.max_crashes, overdue)
            if not reply.result(ANSWER_SECONDS).more:
                break
            overdue = []
        if not dead.in_order:
            self._log(dead)

    def _time_out(self, record: SlotRecord) -> JobFailure:
        """The failure of an attempt that only its worker's death could stop."""
        now_at = to_micros(self._clock.now())
        job = self._job(record.ref)
        message = "ran past its time limit and could only be stopped with its worker"
        return JobFailure(
            ref=record.ref,
            key=job.key if job else "",
            task=job.task if job else "",
            error=AttemptError(ErrorCategory.TIMEOUT, TimeLimitError.__name__, message),
            started_at=job.updated_at if job else now_at,
            ended_at=now_at,
            delay_seconds=OWN.delay(job.attempts if job else 0, self._ids.random()),
            charge=True,
            ends=is_last(0, record.attempts_left),
        )

    def _log(self, dead: DeadWorker) -> None:
        """Name what ran in a worker that died, and what became of it."""
        found = [self._job(ref) for ref in dead.ran[:NAMED_MAX]]
        jobs = [job for job in found if job is not None]
        names = ", ".join(repr(job.key) for job in jobs) + (
            f" and {len(dead.ran) - NAMED_MAX} more" if len(dead.ran) > NAMED_MAX else ""
        )
        ran = f"; it ran {names}" if names else ""
        log.error("Worker %d died: %s%s.", dead.pid, dead.cause, ran)
        for job in jobs:
            if job.state is JobState.ERROR and job.last_error is not None:
                log.error("Job %r ended in error: %s.", job.key, job.last_error.message)

    def _job(self, ref: JobRef) -> Job | None:
        found = self._store.jobs(JobFilter(), JobId(ref.id - 1), 1).result(ANSWER_SECONDS)
        return found[0] if found and found[0].id == ref.id else None


def _wait(report: Reply[None], seconds: float) -> None:
    try:
        within(report, seconds)
    except TimeoutError:
        return
