# SPDX-License-Identifier: Apache-2.0
"""The jobs of a build plan: batches of slices, dependency edges, levels, gates and barriers."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Mapping, Sequence

import msgspec

from penstock.model.dataset import BUILD, Calendar, DatasetSpec, moment_name
from penstock.model.job import START, Edge, EdgeKind, JobKind, NewJob
from penstock.model.plan import (
    BuildPlan,
    JobDescriptor,
    JobRange,
    Placement,
    SlicePayload,
    Step,
    StepPayload,
)
from penstock.planning.freshness import DatasetState, RangeMaxima

GATE_MAX = 1_024  # jobs that a gate waits for itself; a larger one waits for smaller gates
GATE_PARTS = 32  # of which it has so many

Gate = tuple[int, int]  # its size, and its number among those of its size
DIRECT_MAX = 8  # jobs of one run that are waited for one by one
JOINED_MAX = 1_000  # edges of a join, a barrier or an end
RANGES_MAX = 1_000  # of built slices, of one run; with more holes, edges are cheaper

_NOTHING: tuple[JobRange, ...] = ()


def gates_of(run: JobRange) -> list[Gate]:
    """The gates that hold a run; at most three, and less than twice as many jobs again."""
    size = 1 << (run.last - run.first + 1).bit_length() - 1
    return [(size, number) for number in range(run.first // size, run.last // size + 1)]


def parts_of(gate: Gate, jobs: int) -> list[Gate]:
    """The smaller gates that a large one waits for, of a dataset with so many jobs."""
    size, number = gate
    small = size // GATE_PARTS
    end = min((number + 1) * size, jobs)
    return [(small, part) for part in range(number * GATE_PARTS, -(-end // small))]


class BuiltSlices:
    """Owns which slices of a dataset a plan builds, and where fresh ones lie between them."""

    def __init__(self, jobs: Sequence[JobDescriptor], fresh: Sequence[int]) -> None:
        self._batch = len(jobs[0].timestamps)  # of all of them, but perhaps the last
        self._moments = array("q", [at for job in jobs for at in job.timestamps])
        self._breaks = sorted({bisect_left(self._moments, at) for at in fresh})

    def ranges(self, run: JobRange) -> list[tuple[int, int]]:
        """From when to when, both included, a run of jobs builds everything that is needed."""
        first = run.first * self._batch
        end = min((run.last + 1) * self._batch, len(self._moments))
        inner = self._breaks[bisect_right(self._breaks, first) : bisect_left(self._breaks, end)]
        moments = self._moments
        starts, ends = [first, *inner], [*inner, end]
        return [(moments[a], moments[b - 1]) for a, b in zip(starts, ends, strict=True)]


def first_unbuilt(
    payload: SlicePayload, dataset: str, needed: Iterable[int], of_this_plan: Container[int]
) -> int | None:
    """The first needed slice that this plan was to build and has not; None: all are there.

    Args:
        needed: the slices of a dataset that the job needs.
        of_this_plan: those of them whose committed manifest is of the job's plan.
    """
    ranges = payload.built.get(dataset, ())
    for at in needed:
        if at not in of_this_plan and any(first <= at <= last for first, last in ranges):
            return at
    return None


Ranges = dict[str, tuple[tuple[int, int], ...]]

_encode = msgspec.json.Encoder().encode


class PlanKeys:
    """The keys of the jobs of a plan that build nothing: start, barriers, gates, joins, end."""

    def __init__(self, plan_id: str) -> None:
        self._prefix = f"{BUILD}{plan_id}:"
        self.start = f"{self._prefix}start"
        self.end = f"{self._prefix}end"

    def level(self, level: int) -> str:
        """The barrier of a level."""
        return f"{self._prefix}level:{level}"

    def join(self, number: int) -> str:
        """One of those that barriers and the end wait for instead of very many jobs."""
        return f"{self._prefix}join:{number}"

    def gate(self, dataset: str, gate: Gate) -> str:
        """One of those that jobs wait for instead of a run of a dataset's jobs."""
        return f"{self._prefix}gate:{dataset}:{gate[0]}:{gate[1]}"


def plan_jobs(
    plan: BuildPlan,
    place: Callable[[str], Placement],
    step: Placement,
    *,
    eager: bool = False,
    fail_fast: bool = False,
    unit: str | None = None,
) -> Iterator[NewJob]:
    """All jobs of a plan, in an order in which every edge points to an earlier one.

    Args:
        place: where the jobs of a dataset go.
        step: where gates, joins, barriers, the start and the end go; the start's task is its own.
        eager: each job begins as soon as its own needs are there, else level by level.
        fail_fast: a barrier of a level in which something failed lets nothing through.
        unit: of the schedule whose plan it is; None: a run waits for its end.
    """
    submission = _PlanSubmission(plan, place, step, eager=eager, unit=unit)
    return submission.by_need() if eager else submission.by_level(fail_fast=fail_fast)


class _PlanSubmission:
    """Owns what is known of one plan while its jobs are made."""

    def __init__(
        self,
        plan: BuildPlan,
        place: Callable[[str], Placement],
        step: Placement,
        *,
        eager: bool,
        unit: str | None,
    ) -> None:
        self._plan = plan
        self._step = step
        self._eager = eager
        self._end = StepPayload(Step.END, unit=unit)
        self._keys = PlanKeys(plan.plan_id)
        self._jobs = _by_dataset(plan)
        self._places = {name: place(name) for name in self._jobs}
        self._built: dict[str, BuiltSlices] = {}
        self._joins = 0

    # ── The two ways ──────────────────────────────────────────────────────────────────────────

    def by_level(self, *, fail_fast: bool) -> Iterator[NewJob]:
        yield self._stepped(self._keys.start, StepPayload(Step.START), ())
        below = self._keys.start
        for number, level in enumerate(self._plan.levels):
            ended: list[Edge] = []
            for job in level:
                edges, _, built = self._waits(job)
                yield self._slice(job, [Edge(below), *edges], built)
                ended.append(Edge(job.job_id, EdgeKind.FINISHED))
            ended = yield from self._joined(ended)
            # Levels are committed in their order, also where one was skipped early.
            ended.append(Edge(below, EdgeKind.FINISHED))
            below = self._keys.level(number)
            barrier = StepPayload(Step.LEVEL, number, fail_fast)
            yield self._stepped(below, barrier, ended)
        last = Edge(below, EdgeKind.FINISHED)
        yield self._stepped(self._keys.end, self._end, [last])

    def by_need(self) -> Iterator[NewJob]:
        start = Edge(self._keys.start)
        yield self._stepped(start.key, StepPayload(Step.START), ())
        gates = self._gates()
        ended: list[Edge] = []
        for name, jobs in self._jobs.items():
            for job in jobs:
                edges, long, built = self._waits(job)
                for run in long:
                    edges += [Edge(self._keys.gate(run.dataset, gate)) for gate in gates_of(run)]
                yield self._slice(job, edges or [start], built)
                ended.append(Edge(job.job_id, EdgeKind.FINISHED))
            for gate in sorted(gates.get(name, ())):
                yield self._gate(name, gate)
        ended = yield from self._joined(ended)
        yield self._stepped(self._keys.end, self._end, ended or [start])

    # ── What a job waits for ──────────────────────────────────────────────────────────────────

    def _waits(self, job: JobDescriptor) -> tuple[list[Edge], list[JobRange], Ranges]:
        """Success edges to short runs; the long runs, and which of their slices must be there."""
        edges: list[Edge] = []
        long: list[JobRange] = []
        built: Ranges = {}
        for run in job.needs:
            ranges = self._ranges(run)
            if ranges:
                long.append(run)
                built[run.dataset] = (*built.get(run.dataset, ()), *ranges)
            else:
                jobs = self._jobs[run.dataset]
                edges += [Edge(jobs[n].job_id) for n in range(run.first, run.last + 1)]
        return edges, long, built

    def _ranges(self, run: JobRange) -> list[tuple[int, int]]:
        """What a long run builds; empty if its jobs are waited for one by one."""
        if run.last - run.first < DIRECT_MAX:
            return []
        name = run.dataset
        if name not in self._built:
            self._built[name] = BuiltSlices(self._jobs[name], self._plan.fresh.get(name, ()))
        ranges = self._built[name].ranges(run)
        return ranges if len(ranges) <= RANGES_MAX else []

    def _gates(self) -> dict[str, set[Gate]]:
        """All gates that somebody waits for, by dataset; smaller ones for the larger ones too."""
        gates: dict[str, set[Gate]] = {}
        for jobs in self._jobs.values():
            for job in jobs:
                for run in job.needs:
                    if self._ranges(run):
                        gates.setdefault(run.dataset, set()).update(gates_of(run))
        for name, wanted in gates.items():
            todo = [gate for gate in wanted if gate[0] > GATE_MAX]
            while todo:
                parts = parts_of(todo.pop(), len(self._jobs[name]))
                todo += [part for part in parts if part[0] > GATE_MAX and part not in wanted]
                wanted.update(parts)
        return gates

    # ── Jobs ──────────────────────────────────────────────────────────────────────────────────

    def _slice(self, job: JobDescriptor, edges: Sequence[Edge], built: Ranges) -> NewJob:
        place = self._places[job.dataset]
        return NewJob(
            key=job.job_id,
            task=place.task,
            kind=JobKind.SLICE,
            payload=_encode(SlicePayload(job.timestamps, self._eager, built)).decode(),
            group=place.group,
            limit_keys=place.limit_keys,
            priority=place.priority,
            after=tuple(edges),
            plan_id=self._plan.plan_id,
            level=job.level,
        )

    def _stepped(self, key: str, payload: StepPayload, edges: Sequence[Edge]) -> NewJob:
        """A job that builds nothing. It has no level, so that counts of levels are of slices."""
        place = self._step
        return NewJob(
            key=key,
            task=START if payload.step is Step.START else place.task,
            kind=JobKind.STEP,
            payload=_encode(payload).decode(),
            group=place.group,
            limit_keys=place.limit_keys,
            priority=place.priority,
            after=tuple(edges),
            plan_id=self._plan.plan_id,
        )

    def _gate(self, name: str, gate: Gate) -> NewJob:
        size, number = gate
        jobs = self._jobs[name]
        if size > GATE_MAX:
            keys = [self._keys.gate(name, part) for part in parts_of(gate, len(jobs))]
        else:
            keys = [job.job_id for job in jobs[number * size : (number + 1) * size]]
        edges = [Edge(key, EdgeKind.FINISHED) for key in keys]
        return self._stepped(self._keys.gate(name, gate), StepPayload(Step.GATE), edges)

    def _joined(self, ended: list[Edge]) -> Generator[NewJob, None, list[Edge]]:
        """Joins, until few enough edges are left, which it returns."""
        while len(ended) > JOINED_MAX:
            above = []
            for start in range(0, len(ended), JOINED_MAX):
                key = self._keys.join(self._joins)
                self._joins += 1
                part = ended[start : start + JOINED_MAX]
                yield self._stepped(key, StepPayload(Step.JOIN), part)
                above.append(Edge(key, EdgeKind.FINISHED))
            ended = above
        return ended


def _by_dataset(plan: BuildPlan) -> dict[str, list[JobDescriptor]]:
    """The jobs of each dataset in order of time, datasets upstream first."""
    jobs: dict[str, list[JobDescriptor]] = {name: [] for name in plan.counts}
    for level in plan.levels:
        for job in level:
            jobs[job.dataset].append(job)
    for found in jobs.values():
        found.sort(key=_first_moment)
    return {name: found for name, found in jobs.items() if found}


def _first_moment(job: JobDescriptor) -> int:
    return job.timestamps[0]


Levels = tuple[tuple[JobDescriptor, ...], ...]


class _Upstream(msgspec.Struct):
    """The jobs of one dataset, as those see them that need some of them."""

    built_before: Sequence[int]
    batch: int
    level: int | None  # of all its jobs; None: they differ
    levels: RangeMaxima


class MomentNames:
    """Names moments of a calendar, each once."""

    def __init__(self) -> None:
        self._known: dict[str, dict[int, str]] = {}

    def of(self, calendar: Calendar, moments: Sequence[int]) -> list[str]:
        """The names of these moments, in their order."""
        known = self._known.setdefault(calendar.text, {})
        for at in moments:
            if at not in known:
                known[at] = moment_name(at, calendar)
        return [known[at] for at in moments]


def describe_jobs(
    plan_id: str, specs: Mapping[str, DatasetSpec], wanted: Mapping[str, DatasetState]
) -> Levels:
    """All jobs of a plan by levels; within one by dataset, upstream first, and by time."""
    names = MomentNames()
    upstream: dict[str, _Upstream] = {}
    levels: list[list[JobDescriptor]] = []
    for name, found in wanted.items():
        if not found.build:
            continue
        spec = specs[name]
        groups = _groups(found.build, spec.batch)
        needs, job_levels = _needs(found, groups, upstream)
        lowest, highest = min(job_levels), max(job_levels)
        while len(levels) <= highest:
            levels.append([])
        jobs = _make_descriptors(plan_id, spec, found, needs, job_levels, names)
        if lowest == highest:
            levels[lowest] += jobs
        else:
            for job in jobs:
                levels[job.level].append(job)
        upstream[name] = _Upstream(
            found.built_before,
            spec.batch,
            lowest if lowest == highest else None,
            RangeMaxima(job_levels),
        )
    return tuple(map(tuple, levels))


def with_plan_id(plan: BuildPlan, plan_id: str) -> BuildPlan:
    """The same plan under another id."""
    old, new = len(f"{BUILD}{plan.plan_id}:"), f"{BUILD}{plan_id}:"
    levels = tuple(
        tuple(
            JobDescriptor(
                new + job.job_id[old:], job.dataset, job.timestamps, job.needs, job.level, job.lock
            )
            for job in level
        )
        for level in plan.levels
    )
    return msgspec.structs.replace(plan, plan_id=plan_id, levels=levels)


def _groups(build: Sequence[int], batch: int) -> list[Sequence[int]] | None:
    """Indexes of slices by jobs; None: one slice is one job."""
    if batch == 1:
        return None
    return [build[start : start + batch] for start in range(0, len(build), batch)]


def _make_descriptors(
    plan_id: str,
    spec: DatasetSpec,
    found: DatasetState,
    needs: Sequence[tuple[JobRange, ...]],
    levels: Sequence[int],
    names: MomentNames,
) -> list[JobDescriptor]:
    moments = found.moments
    if len(found.build) < len(moments):
        moments = [moments[index] for index in found.build]
    called = names.of(spec.calendar, moments)
    name, batch = spec.name, spec.batch
    prefix = f"{BUILD}{plan_id}:{name}@"
    if batch == 1:
        return [
            JobDescriptor(prefix + word, name, (at,), need, level, name)
            for word, at, need, level in zip(called, moments, needs, levels, strict=True)
        ]
    jobs = []
    for number, start in enumerate(range(0, len(moments), batch)):
        stamps = tuple(moments[start : start + batch])
        word = called[start]
        if len(stamps) > 1:
            word = f"{word}..{called[start + len(stamps) - 1]}"
        jobs.append(JobDescriptor(prefix + word, name, stamps, needs[number], levels[number], name))
    return jobs


def _needs(
    found: DatasetState, groups: list[Sequence[int]] | None, upstream: Mapping[str, _Upstream]
) -> tuple[Sequence[tuple[JobRange, ...]], Sequence[int]]:
    """What each job needs, and its level."""
    count = len(found.build) if groups is None else len(groups)
    needs: Sequence[tuple[JobRange, ...]] | None = None
    levels: list[int] = [0] * count
    for need, firsts, ends in found.ranges:
        up = upstream.get(need.dataset)
        if up is None:
            continue
        if groups is None:
            column = _needs_of_slices(found.build, need.dataset, firsts, ends, up)
        else:
            column = [_needs_of_batch(group, need.dataset, firsts, ends, up) for group in groups]
        needs = column if needs is None else [a + b for a, b in zip(needs, column, strict=True)]
        _raise_levels(levels, column, up)
    return needs if needs is not None else [_NOTHING] * count, levels


def _needs_of_slices(
    build: Sequence[int], name: str, firsts: Sequence[int], ends: Sequence[int], up: _Upstream
) -> list[tuple[JobRange, ...]]:
    """What each job of one slice needs of one dataset."""
    before, batch = up.built_before, up.batch
    column: list[tuple[JobRange, ...]] = []
    for index in build:
        first, end = before[firsts[index]], before[ends[index]]
        if first < end:
            column.append((JobRange(name, first // batch, (end - 1) // batch),))
        else:
            column.append(_NOTHING)
    return column


def _needs_of_batch(
    group: Sequence[int], name: str, firsts: Sequence[int], ends: Sequence[int], up: _Upstream
) -> tuple[JobRange, ...]:
    """What one job of several slices needs of one dataset: runs of jobs, none touches the next."""
    before, batch = up.built_before, up.batch
    runs: list[JobRange] = []
    low = high = -1
    for index in group:
        first, end = before[firsts[index]], before[ends[index]]
        if first >= end:
            continue
        first, last = first // batch, (end - 1) // batch
        if low < 0:
            low = first
        elif first > high + 1:
            runs.append(JobRange(name, low, high))
            low = first
        high = max(high, last)
    if low >= 0:
        runs.append(JobRange(name, low, high))
    return tuple(runs)


def _raise_levels(levels: list[int], column: Sequence[tuple[JobRange, ...]], up: _Upstream) -> None:
    """Each job is above all that it needs."""
    if up.level is not None:
        above = up.level + 1
        for number, runs in enumerate(column):
            if runs and levels[number] < above:
                levels[number] = above
        return
    highest = up.levels.highest
    for number, runs in enumerate(column):
        for run in runs:
            above = highest(run.first, run.last + 1) + 1
            if levels[number] < above:
                levels[number] = above
