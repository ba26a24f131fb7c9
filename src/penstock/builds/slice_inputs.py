# SPDX-License-Identifier: Apache-2.0
"""Reads what jobs that build slices need before they start; jobs of paused plans are put off.

The slices that they need, by the mapping of their calendars: one read for all jobs that were leased
together, with the store's commit number in the same snapshot.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from penstock.builds.slice import SliceInputs, SliceTask
from penstock.clock import Clock, to_micros
from penstock.errors import TRANSIENT, UsageError
from penstock.model.dataset import SliceOutput, slice_name, task_name
from penstock.model.job import AttemptError, ErrorCategory, JobState, LeasedJob
from penstock.model.lease import JobFailure, JobRef
from penstock.model.plan import PlanFacts, PlanRow, PlanState, SlicePayload, StepPayload
from penstock.outputs.paths import slice_names
from penstock.outputs.read import SlicesData
from penstock.planning.needs import CalendarReader, index_ranges, needed_moments
from penstock.planning.plan_jobs import first_unbuilt
from penstock.stores.protocol import PlanStore, SliceRange, SliceRow
from penstock.worker.kind import Window
from penstock.worker.parts import WorkerLoop, WorkerParts

LOOK_SECONDS = 5.0  # between two looks at a plan that rests
STEP_SECONDS = 5.0  # a step of such a plan is put off for so long
WAITS = "Reading needed slices has to wait"

_output = msgspec.json.Decoder(SliceOutput).decode
_slice_payload = msgspec.json.Decoder(SlicePayload).decode
_step_payload = msgspec.json.Decoder(StepPayload).decode
_FAILED = frozenset({JobState.ERROR, JobState.SKIPPED, JobState.CANCELLED})


log = logging.getLogger("penstock.worker")


class PausedPlans:
    """Owns the tasks that are not leased, because nobody leads their plans. Belongs to one loop."""

    def __init__(self, store: PlanStore, clock: Clock, loop: WorkerLoop) -> None:
        self._store = store
        self._clock = clock
        self._loop = loop
        self._tasks: set[str] = set()

    def rest(self, job: LeasedJob, window: Window, *, is_step: bool) -> None:
        """Give a job back whose plan does not run."""
        if is_step:
            window.give_back(self._put_off(job))
            return
        window.give_back(JobRef(job.id, job.token))
        if job.task not in self._tasks and job.plan_id is not None:
            self._tasks.add(job.task)
            window.hold_back(job.task)
            self._loop.spawn(self._until_it_goes_on(job.task, job.plan_id, window))
            log.info(
                "Nobody leads plan %s, so its jobs of %r wait; the same build, or the next tick of "
                "its schedule, continues it.",
                job.plan_id,
                task_name(job.task),
            )

    async def _until_it_goes_on(self, task: str, plan_id: str, window: Window) -> None:
        resting = True
        while resting:
            await self._clock.sleep(LOOK_SECONDS)
            try:
                plan = await self._store.plan(plan_id)
            except TRANSIENT:
                continue
            resting = plan is not None and plan.state in (PlanState.LEFT, PlanState.DRAFT)
        self._tasks.discard(task)
        window.let_go(task)

    def _put_off(self, job: LeasedJob) -> JobFailure:
        now_at = to_micros(self._clock.now())
        why = "no run leads its plan now; run the same build again to continue it"
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


class _Wanted:
    """What one job needs: of each need, the upstream moments of each of its slices."""

    def __init__(self, job: LeasedJob, task: SliceTask) -> None:
        payload = _slice_payload(job.payload)
        specs = task.site.specs
        down = specs[task.dataset.name]
        self.job = job
        self.site = task.site
        self.moments = payload.at
        self.payload = payload
        self.own = down.name if task.reads_old else None
        self.needs: list[tuple[str, list[list[int]]]] = []
        self.problem: str | None = None  # the calendars have changed since it was planned
        self.until: int | None = None  # where the range of its plan ends
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
        if self.own is not None:
            yield SliceRange(self.own, self.moments[0], self.moments[-1])

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
            failed = first_unbuilt(self.payload, name, needed, ours)
            if failed is not None:
                return SliceInputs(failed=self._name(name, failed))
            for at in needed:
                if at not in found:
                    return SliceInputs(
                        missing=f"The needed slice {self._name(name, at)} is not committed; build "
                        "it again."
                    )
        own = None if self.own is None else rows.get((self.own, self.moments[0]))
        return SliceInputs(
            basis=seq,
            old=None if own is None else outputs.of(own),
            until=self.until,
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


class SliceReader:
    """Reads what slices need before their jobs enter the prefetch window. Of one loop."""

    def __init__(self, tasks: Mapping[str, SliceTask], parts: WorkerParts) -> None:
        """Nothing was read yet.

        Args:
            tasks: that build slices, by name; jobs of other tasks are steps of plans.
            parts: of the worker.
        """
        self._tasks = tasks
        self._store = parts.store
        self._retry = parts.retry
        self._paused = PausedPlans(parts.store, parts.clock, parts.loop)
        for task in tasks.values():
            task.site.connect(parts)

    async def prepare(self, jobs: Sequence[LeasedJob], wanted: Callable[[], bool]) -> None:
        """Read for all of them at once; for jobs of plans that nobody leads, nothing is read."""

        async def ask() -> None:
            for job in jobs:
                job.brought = None
            running = await self._running(jobs)
            await self._read([job for job in jobs if job.plan_id in running], running)

        await self._retry.until_answered(WAITS, ask, wanted=wanted)

    def enters(self, job: LeasedJob, window: Window) -> bool:
        if job.brought is not None:
            return True
        self._paused.rest(job, window, is_step=job.task not in self._tasks)
        return False

    async def _running(self, jobs: Iterable[LeasedJob]) -> dict[str | None, PlanRow]:
        """Those of the plans of some jobs that run, or whose end is all that is left."""
        found: dict[str | None, PlanRow] = {}
        for plan_id in {job.plan_id for job in jobs if job.plan_id is not None}:
            plan = await self._store.plan(plan_id)
            if plan is not None and plan.state in (PlanState.RUNNING, PlanState.ENDED):
                found[plan_id] = plan
        return found

    async def _read(self, jobs: Iterable[LeasedJob], plans: Mapping[str | None, PlanRow]) -> None:
        """Read for jobs that build slices, and for barriers that may end early."""
        wanted: list[_Wanted] = []
        for job in jobs:
            task = self._tasks.get(job.task)
            if task is None:
                job.brought = SliceInputs(failed=await self._failed(job))
            else:
                wanted.append(one := _Wanted(job, task))
                if one.own is not None:
                    facts = PlanFacts.read(plans[job.plan_id].document)
                    one.until = dict(zip(facts.targets, facts.ranges, strict=True))[one.own][1]
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
