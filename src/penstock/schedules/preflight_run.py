# SPDX-License-Identifier: Apache-2.0
"""Runs the preflights of a daemon, the checks that come before any work.

Each is an ordinary job of an ordinary worker, in a store of their own that ends with them: so a
start that fails leaves nothing behind. All run, whatever the others come to.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from penstock.clock import MICROSECONDS, Clock
from penstock.model.job import (
    AttemptError,
    ErrorCategory,
    Job,
    JobId,
    JobKind,
    JobState,
    LeasedJob,
    NewJob,
    WorkerId,
)
from penstock.model.schedule import PREFLIGHT_BYTES_MAX, PreflightResult
from penstock.planning.units import PreflightPlan
from penstock.stores.protocol import JobFilter, Store
from penstock.worker.job_kind import PlainKind
from penstock.worker.parts import Stopping
from penstock.worker.slot_table import SlotTable
from penstock.worker.worker import Worker

BATCH = 1_000  # checks that are enqueued, or read, at once
LOOK_SECONDS = 0.5  # between two words about how far they are
STOP_SECONDS = 1.0  # for a worker that was cancelled, which waits for nobody


class CheckTable(SlotTable):
    """Tells a supervisor what runs and until when, but no name: nobody renews it or reaps it."""

    def set_worker(self, worker: WorkerId) -> None:
        """It is known to its own store only."""


class EndlessLease:
    """Keeps the lease of a worker that has its store for itself."""

    def adopt(self, worker: WorkerId, until_monotonic: float) -> None:
        """There is nothing to renew."""

    def believed_until(self) -> float:
        return float("inf")


class PreflightKind(PlainKind):
    """Preflights: whoever started them tells what became of them."""

    error_level = logging.DEBUG

    def named(self, job: LeasedJob) -> str:
        return f"The preflight {job.key!r}"


class PreflightRun:
    """Owns the first phase of a daemon. Belongs to one loop."""

    def __init__(
        self,
        plans: Sequence[PreflightPlan],
        store: Store,
        clock: Clock,
        build: Callable[[], Worker],
        progress: Callable[[int, int, int], None] | None = None,
    ) -> None:
        """The checks of a plan.

        Args:
            plans: the checks.
            store: of their own, empty.
            clock: the time.
            build: makes the worker that drains it.
            progress: hears how many have passed and failed, and of how many, now and again.
        """
        self._plans = plans
        self._store = store
        self._clock = clock
        self._build = build
        self._progress = progress

    async def run(self) -> list[PreflightResult]:
        """What each check came to, in the order of the plan.

        Who is cancelled ends the checks at once; nobody waits for those that run in threads.
        """
        for start in range(0, len(self._plans), BATCH):
            await self._store.enqueue([_job(plan) for plan in self._plans[start : start + BATCH]])
        worker = self._build()
        loop = asyncio.get_running_loop()
        working = loop.create_task(worker.run())
        telling = None if self._progress is None else loop.create_task(self._tell(self._progress))
        try:
            await asyncio.wait((working,))
        finally:
            if telling is not None:
                telling.cancel()
            if not working.done():
                worker.stop(Stopping.NOW)
                working.cancel()
                await asyncio.wait((working,), timeout=STOP_SECONDS)
        working.result()
        return await self._results()

    async def _tell(self, progress: Callable[[int, int, int], None]) -> None:
        """Say how far they are, until it is cancelled."""
        while True:
            states = (await self._store.stats()).states
            passed = states.get(JobState.DONE, 0) + states.get(JobState.SKIPPED, 0)
            progress(passed, states.get(JobState.ERROR, 0), len(self._plans))
            await self._clock.sleep(LOOK_SECONDS)

    async def _results(self) -> list[PreflightResult]:
        jobs: dict[str, Job] = {}
        last = JobId(0)
        while page := await self._store.jobs(JobFilter(), last, BATCH):
            jobs.update((job.key, job) for job in page)
            last = page[-1].id
        return [self._result(plan, jobs[plan.unit]) for plan in self._plans]

    def _result(self, plan: PreflightPlan, job: Job) -> PreflightResult:
        return PreflightResult(
            unit=plan.unit,
            name=plan.name,
            partition=plan.partition,
            value=job.result if _problem(job) is None else None,
            error=_problem(job),
            required=plan.required,
            checked_at=job.finished_at or round(self._clock.now() * MICROSECONDS),
        )


def _job(plan: PreflightPlan) -> NewJob:
    return NewJob(
        key=plan.unit,
        task=plan.task,
        kind=JobKind.PREFLIGHT,
        payload=plan.payload,
        group=plan.task,  # each runs once, so partitions need no turns: thousands would cost more
        partition=plan.partition or None,
    )


def _problem(job: Job) -> AttemptError | None:
    """Why a check did not pass; one that says `Skip` has nothing to say."""
    if job.state is JobState.SKIPPED:
        return None
    if job.state is not JobState.DONE:
        unknown = AttemptError(ErrorCategory.OWN, "unfinished", "it has not ended")
        return job.last_error or unknown
    size = 0 if job.result is None else len(job.result.encode())
    if size > PREFLIGHT_BYTES_MAX:
        said = f"returned {size:,} bytes of JSON; at most {PREFLIGHT_BYTES_MAX:,} are kept"
        return AttemptError(ErrorCategory.OWN, "result", said)
    return None
