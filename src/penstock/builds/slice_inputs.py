# SPDX-License-Identifier: Apache-2.0
"""What is read for jobs that build slices, before they may start?

The slices that they need, by the mapping of their calendars: one read for all jobs that were leased
together, with the store's commit number in the same snapshot.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from penstock.builds.slice import SliceInputs, SliceTask
from penstock.clock import Clock, to_micros
from penstock.errors import TRANSIENT, UsageError
from penstock.model.dataset import SliceOutput, slice_name, task_name
from penstock.model.job import STEP, AttemptError, ErrorCategory, JobState, LeasedJob
from penstock.model.lease import JobEnd, JobFailure, JobRef
from penstock.model.plan import PlanState, SlicePayload, StepPayload
from penstock.outputs.paths import slice_names
from penstock.outputs.read import SlicesData
from penstock.planning.needs import CalendarReader, index_ranges, needed_moments
from penstock.planning.plan_jobs import unbuilt
from penstock.schedules.tick import Ticks
from penstock.stores.protocol import PlanStore, SliceRange, SliceRow, Store
from penstock.stores.retry import StoreRetry
from penstock.worker.prefetch import PrefetchWindow
from penstock.worker.thread_executor import ThreadRunner

LOOK_SECONDS = 5.0  # between two looks at a plan that rests
STEP_SECONDS = 5.0  # a step of such a plan is put off for so long

log = logging.getLogger("penstock.worker")


class PausedPlans:
    """Owns the tasks that are not leased because of their plans. Belongs to one loop."""

    def __init__(
        self,
        store: PlanStore,
        clock: Clock,
        window: PrefetchWindow,
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
            ends=False,
        )


WAITS = "Reading needed slices has to wait"

_output = msgspec.json.Decoder(SliceOutput).decode
_slice_payload = msgspec.json.Decoder(SlicePayload).decode
_step_payload = msgspec.json.Decoder(StepPayload).decode
_FAILED = frozenset({JobState.ERROR, JobState.SKIPPED, JobState.CANCELLED})

#: What must happen before some of the jobs may start; None: nothing.
Preparing = Coroutine[Any, Any, None] | None


class _Wanted:
    """What one job needs: of each need, the upstream moments of each of its slices."""

    def __init__(self, job: LeasedJob, task: SliceTask) -> None:
        payload = _slice_payload(job.payload)
        specs = task.site.specs
        down = specs[task.dataset.name]  # type: ignore[union-attr]  # steps need nothing
        self.job = job
        self.site = task.site
        self.moments = payload.at
        self.payload = payload
        self.needs: list[tuple[str, list[list[int]]]] = []
        self.problem: str | None = None  # the calendars have changed since it was planned
        try:
            for need in down.needs:
                up = specs[need.dataset]
                found = needed_moments(down, payload.at, need, up, CalendarReader())
                ranges = zip(*index_ranges(payload.at, need, found), strict=True)
                self.needs.append((up.name, [found[first:end] for first, end in ranges]))
        except UsageError as error:
            self.problem = str(error)

    def ranges(self) -> Iterable[SliceRange]:
        for name, moments in self.needs:
            for each in moments:
                if each:
                    yield SliceRange(name, each[0], each[-1])

    def inputs(
        self, seq: int, rows: Mapping[tuple[str, int], SliceRow], outputs: _Outputs
    ) -> SliceInputs:
        """What was found; the first slice that is not there, if any."""
        if self.problem is not None:
            return SliceInputs(missing=self.problem)
        for name, moments in self.needs:
            needed = dict.fromkeys(at for each in moments for at in each)
            found = {at: row for at in needed if (row := rows.get((name, at))) is not None}
            ours = {at for at, row in found.items() if row.plan_id == self.job.plan_id}
            failed = unbuilt(self.payload, name, needed, ours)
            if failed is not None:
                return SliceInputs(failed=self._name(name, failed))
            for at in needed:
                if at not in found:
                    return SliceInputs(
                        missing=f"The needed slice {self._name(name, at)} is not committed; build "
                        "it again."
                    )
        return SliceInputs(
            basis=seq,
            needs=tuple(self._given(name, moments, rows, outputs) for name, moments in self.needs),
        )

    def _given(
        self,
        name: str,
        moments: list[list[int]],
        rows: Mapping[tuple[str, int], SliceRow],
        outputs: _Outputs,
    ) -> SlicesData:
        site = self.site
        return SlicesData(
            named=slice_names(site.specs[name]),
            root_path=site.root.path,
            root_id=site.root.id,
            outputs=tuple(
                outputs.of(rows[name, at]) for at in sorted({at for each in moments for at in each})
            ),
            needed_by=dict(zip(self.moments, map(tuple, moments), strict=True)),
        )

    def _name(self, name: str, at: int) -> str:
        return slice_name(name, at, self.site.specs[name].calendar)


class _Outputs:
    """Manifests that were read together, each decoded once."""

    def __init__(self) -> None:
        self._decoded: dict[tuple[str, int], SliceOutput] = {}

    def of(self, row: SliceRow) -> SliceOutput:
        place = row.dataset, row.at
        if place not in self._decoded:
            self._decoded[place] = _output(row.document)
        return self._decoded[place]


class SliceReads:
    """Owns what a worker reads for slices before their jobs enter its window. Of one loop."""

    def __init__(
        self,
        tasks: Mapping[str, tuple[Any, object]],
        store: Store,
        clock: Clock,
        retry: StoreRetry,
        threads: ThreadRunner,
        ticks: Ticks,
    ) -> None:
        """Nothing is known yet.

        Args:
            tasks: of the worker.
            store: where manifests are kept.
            clock: the time.
            retry: waits for the store.
            threads: write what coroutines return.
            ticks: takes all other jobs.
        """
        self._tasks = {name: task for name, (task, _) in tasks.items() if type(task) is SliceTask}
        for task in self._tasks.values():
            task.site.connect(threads)
        self._store = store
        self._clock = clock
        self._retry = retry
        self._ticks = ticks
        self._resting: PausedPlans | None = None
        self._waiting: dict[JobRef, LeasedJob] = {}

    def clear(self) -> list[JobRef]:
        """Jobs that have not come as far as the window are not wanted, or not ours, any more."""
        refs = [*self._waiting, *self._ticks.clear()]
        self._waiting.clear()
        return refs

    def connect(
        self,
        window: PrefetchWindow,
        give: Callable[[JobEnd | JobFailure | JobRef], None],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        look_again: Callable[[], None],
    ) -> None:
        """Where jobs of plans go that nobody leads; see PausedPlans."""
        self._resting = PausedPlans(self._store, self._clock, window, give, spawn, look_again)

    def take(self, jobs: Sequence[LeasedJob]) -> Preparing:
        """Jobs have come: those that build slices enter when what is returned has been awaited."""
        tasks = self._tasks
        ours = [job for job in jobs if job.task in tasks] if tasks else []
        if not ours:
            return self._ticks.take(jobs)
        return self._both(self._ticks.take([job for job in jobs if job.task not in tasks]), ours)

    async def _both(self, others: Preparing, ours: Sequence[LeasedJob]) -> None:
        self._waiting.update((JobRef(job.id, job.token), job) for job in ours)
        if others is not None:
            await others
        await self._prepare(ours)

    async def _prepare(self, jobs: Sequence[LeasedJob]) -> None:
        """Read for all of them at once, and let those start that are still wanted."""
        wanted, steps = self._wanted(jobs)
        running: set[str | None] = set()

        async def ask() -> set[str | None]:
            running = await self._running(jobs)
            await self._read(wanted, steps)
            return running

        with suppress(*TRANSIENT):  # no job waits any more
            running = await self._retry.until_answered(
                WAITS, ask, wanted=lambda: bool(self._waiting)
            )
        ready, self._waiting = list(self._waiting.values()), {}
        if self._resting is not None:
            self._resting.rest([job for job in ready if job.plan_id not in running])
        self._ticks.enter([job for job in ready if job.plan_id in running])

    async def _running(self, jobs: Iterable[LeasedJob]) -> set[str | None]:
        """Those of the plans of some jobs that somebody leads."""
        found = set[str | None]()
        for plan_id in {job.plan_id for job in jobs if job.plan_id is not None}:
            plan = await self._store.plan(plan_id)
            if plan is not None and plan.state is PlanState.RUNNING:
                found.add(plan_id)
        return found

    def _wanted(self, jobs: Iterable[LeasedJob]) -> tuple[list[_Wanted], list[LeasedJob]]:
        """What is to be read: for jobs that build slices, and for barriers that may end early."""
        wanted, steps = [], []
        for job in jobs:
            task = self._tasks[job.task]
            if task.dataset is None:
                steps.append(job)
            else:
                wanted.append(_Wanted(job, task))
        return wanted, steps

    async def _read(self, wanted: Sequence[_Wanted], steps: Sequence[LeasedJob]) -> None:
        for job in steps:
            job.brought = SliceInputs(failed=await self._failed(job))
        if not wanted:
            return
        page = await self._store.slices(_merged(wanted))
        rows = {(row.dataset, row.at): row for row in page.rows}
        outputs = _Outputs()
        for one in wanted:
            one.job.brought = one.inputs(page.seq, rows, outputs)

    async def _failed(self, job: LeasedJob) -> str | None:
        """Why a barrier lets nothing more begin; None: it does."""
        payload = _step_payload(job.payload)
        if not payload.fail_fast or job.plan_id is None:
            return None
        for level in await self._store.plan_states(job.plan_id):
            if level.level == payload.level and any(map(level.states.get, _FAILED)):
                return f"level {level.level}"
        return None


def _merged(wanted: Iterable[_Wanted]) -> list[SliceRange]:
    """The ranges of many jobs; those that overlap are one."""
    merged: list[SliceRange] = []
    for one in sorted({r for each in wanted for r in each.ranges()}, key=_place):
        last = merged[-1] if merged else None
        if last is not None and last.dataset == one.dataset and one.first <= last.last:
            merged[-1] = SliceRange(one.dataset, last.first, max(last.last, one.last))
        else:
            merged.append(one)
    return merged


def _place(one: SliceRange) -> tuple[str, int, int]:
    return one.dataset, one.first, one.last
