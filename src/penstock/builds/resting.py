# SPDX-License-Identifier: Apache-2.0
"""What does a worker do with jobs of a plan that nobody leads now?

Whatever they made would be refused. So their task is not leased here until the plan goes on, or is
over; a step between jobs, whose task is that of all plans, is put off alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from penstock.clock import Clock, to_micros
from penstock.errors import TRANSIENT
from penstock.model.dataset import STEP, task_name
from penstock.model.job import AttemptError, ErrorCategory, LeasedJob
from penstock.model.lease import JobEnd, JobFailure, JobRef
from penstock.model.lock import PlanState
from penstock.stores.datasets import PlanStore
from penstock.worker.attempt import UNLIMITED
from penstock.worker.prefetch import JobWindow

LOOK_SECONDS = 5.0  # between two looks at a plan that rests
STEP_SECONDS = 5.0  # a step of such a plan is put off for so long

log = logging.getLogger("penstock.worker")


class Resting:
    """Owns the tasks that are not leased because of their plans. Belongs to one loop."""

    def __init__(
        self,
        store: PlanStore,
        clock: Clock,
        window: JobWindow,
        give: Callable[[JobEnd | JobFailure | JobRef], None],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        look_again: Callable[[], None],
    ) -> None:
        """Nothing rests.

        Args:
            store: where plans are kept.
            clock: the time.
            window: where jobs wait.
            give: takes jobs that are given back.
            spawn: does something beside the loop.
            look_again: is told when there may be something to lease.
        """
        self._store = store
        self._clock = clock
        self._window = window
        self._give = give
        self._spawn = spawn
        self._look_again = look_again
        self._tasks: set[str] = set()

    def rest(self, jobs: Sequence[LeasedJob]) -> None:
        """Give jobs back whose plan does not run."""
        for job in jobs:
            if job.task.startswith(STEP):
                self._give(self._put_off(job))
                continue
            self._give(JobRef(job.id, job.token))
            if job.task not in self._tasks and job.plan_id is not None:
                self._tasks.add(job.task)
                self._window.hold_back(job.task)
                self._spawn(self._until_it_goes_on(job.task, job.plan_id))
                log.info(
                    "Jobs of %r rest: nobody leads their plan %s; the same build goes on with it.",
                    task_name(job.task),
                    job.plan_id,
                )

    async def _until_it_goes_on(self, task: str, plan_id: str) -> None:
        resting = True
        while resting:
            await self._clock.sleep(LOOK_SECONDS)
            try:
                plan = await self._store.plan(plan_id)
            except TRANSIENT:
                continue
            resting = plan is not None and plan.state in (PlanState.LEFT, PlanState.DRAFT)
        self._tasks.discard(task)
        self._window.let_go(task)
        self._look_again()

    def _put_off(self, job: LeasedJob) -> JobFailure:
        now_at = to_micros(self._clock.now())
        why = "nobody leads its plan now; the same build goes on with it"
        return JobFailure(
            ref=JobRef(job.id, job.token),
            key=job.key,
            task=job.task,
            error=AttemptError(ErrorCategory.NODE, "plan", why),
            started_at=now_at,
            ended_at=now_at,
            delay_seconds=STEP_SECONDS,
            charge=False,
            max_attempts=UNLIMITED,
        )
