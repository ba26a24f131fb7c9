# SPDX-License-Identifier: Apache-2.0
"""What are the durable jobs of a plan, and which waits for which?

Every edge points to a job that came before. A job that needs a short run of another dataset's jobs
has a success edge to each: the store skips it if one of them fails. For a long run that would store
a lookback of 20 twenty times over. So it waits for gates, which are done when all their jobs have
ended in whatever way, and is told which slices this plan was to build: if one that it needs is not
there, it is skipped. A gate may hold more than somebody needs, and is shared; yet nothing is
skipped that needs nothing of what failed. In level mode the barrier of the level below is the gate.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence

import msgspec

from penstock.model.dataset import BUILD, START
from penstock.model.job import Edge, EdgeKind, NewJob
from penstock.model.plan import (
    BuildPlan,
    JobDescriptor,
    Needed,
    Placement,
    SlicePayload,
    Step,
    StepPayload,
)
from penstock.planning.gates import GATE_MAX, BuiltSlices, Gate, gates_of, parts_of

DIRECT_MAX = 8  # jobs of one run that are waited for one by one
JOINED_MAX = 1_000  # edges of a join, a barrier or an end
RANGES_MAX = 1_000  # of built slices, of one run; with more holes, edges are cheaper

Ranges = dict[str, tuple[tuple[int, int], ...]]
_encode = msgspec.json.Encoder().encode


class PlanKeys:
    """How the jobs of a plan are called that build nothing."""

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
) -> Iterator[NewJob]:
    """All jobs of a plan, in an order in which every edge points to an earlier one.

    Args:
        place: where the jobs of a dataset go.
        step: where gates, joins, barriers, the start and the end go; the start's task is its own.
        eager: each job begins as soon as its own needs are there, else level by level.
        fail_fast: a barrier of a level in which something failed lets nothing through.
    """
    submission = _Submission(plan, place, step, eager=eager)
    return submission.by_need() if eager else submission.by_level(fail_fast=fail_fast)


class _Submission:
    """Owns what is known of one plan while its jobs are made."""

    def __init__(
        self,
        plan: BuildPlan,
        place: Callable[[str], Placement],
        step: Placement,
        *,
        eager: bool,
    ) -> None:
        self._plan = plan
        self._step = step
        self._eager = eager
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
        yield self._stepped(self._keys.end, StepPayload(Step.END), [last])

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
        yield self._stepped(self._keys.end, StepPayload(Step.END), ended or [start])

    # ── What a job waits for ──────────────────────────────────────────────────────────────────

    def _waits(self, job: JobDescriptor) -> tuple[list[Edge], list[Needed], Ranges]:
        """Success edges to short runs; the long runs, and which of their slices must be there."""
        edges: list[Edge] = []
        long: list[Needed] = []
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

    def _ranges(self, run: Needed) -> list[tuple[int, int]]:
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
