# SPDX-License-Identifier: Apache-2.0
"""What do builds come to, done slowly and so that it is obvious?

A world remembers of every committed slice which builds of which slices it was made of. So it knows
what is stale without numbers of commits, and runs the jobs of plans one by one as a store would let
them run, in any order that edges allow.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

import msgspec

from penstock.model.dataset import BUILD, DatasetSpec, Need, Rule, SliceMarks
from penstock.model.job import EdgeKind, NewJob
from penstock.model.plan import BuildPlan, BuildRequest, Placement, SlicePayload, Step, StepPayload
from penstock.planning.plan_jobs import first_unbuilt, plan_jobs
from tests.datasets import DAY

Slice = tuple[str, int]
FAR = 200 * DAY  # before and after everything that is asked for
STEP = Placement(task="step", group="steps")


def needed_slices(specs: Mapping[str, DatasetSpec], name: str, at: int) -> list[Slice]:
    """What one slice needs, by the words of the rules."""
    found: list[Slice] = []
    for need in specs[name].needs:
        found += [(need.dataset, moment) for moment in _by_rule(specs[need.dataset], need, at)]
    return found


def _by_rule(up: DatasetSpec, need: Need, at: int) -> list[int]:
    past = [moment for moment in up.calendar.between(-FAR, FAR) if moment <= at]
    match need.rule:
        case Rule.LATEST:
            return past[-1:]
        case Rule.EXACT:
            return [moment for moment in past if moment == at]
        case Rule.LOOKBACK:
            return past[-need.count :]
        case Rule.WINDOW:
            return [moment for moment in past if moment > at - need.micros]


@dataclass(frozen=True)
class Made:
    """One committed slice."""

    version: str
    seq: int
    basis: int
    plan_id: str
    inputs: Mapping[Slice, int]  # each with the commit that made it what it was


@dataclass
class Ended:
    """What became of the jobs of a plan, by keys."""

    states: dict[str, str] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    edges: int = 0
    jobs: int = 0

    def of_slices(self, state: str) -> set[str]:
        return {key for key, found in self.states.items() if found == state and "@" in key}


class World:
    """Owns what is committed. Plans are made by others and run here."""

    def __init__(self) -> None:
        self.slices: dict[Slice, Made] = {}
        self.seq = 0

    # ── What planning is told, and what it should find ────────────────────────────────────────

    def marks_of(self, name: str, start: int, end: int, version: str) -> SliceMarks:
        rows = sorted(
            (at, made)
            for (dataset, at), made in self.slices.items()
            if dataset == name and start <= at < end
        )
        same = [(at, made) for at, made in rows if made.version == version]
        return SliceMarks(
            ats=array("q", [at for at, _ in same]),
            seqs=array("q", [made.seq for _, made in same]),
            bases=array("q", [made.basis for _, made in same]),
            outdated=array("q", [at for at, made in rows if made.version != version]),
            seq=self.seq,
        )

    def wanted(
        self, specs: Mapping[str, DatasetSpec], request: BuildRequest, now: int
    ) -> set[Slice]:
        """All slices that the targets need, and they themselves."""
        todo = [
            (name, at)
            for name, (start, end) in zip(request.targets, request.ranges, strict=True)
            for at in specs[name].calendar.between(start, end)
            if at <= now
        ]
        found = set(todo)
        while todo:
            more = set(needed_slices(specs, *todo.pop())) - found
            found |= more
            todo += more
        return found

    def why(self, specs: Mapping[str, DatasetSpec], wanted: set[Slice]) -> dict[Slice, str]:
        """Of each wanted slice: new, outdated, rebuilt or fresh; upstream first."""
        answers: dict[Slice, str] = {}
        todo = sorted(wanted)
        while todo:
            name, at = todo.pop()
            needs = needed_slices(specs, name, at)
            unknown = [need for need in needs if need not in answers]
            if unknown:
                todo += [(name, at), *unknown]
            elif (name, at) not in answers:
                answers[name, at] = self._why_one(specs[name], at, needs, answers)
        return answers

    def _why_one(
        self, spec: DatasetSpec, at: int, needs: Sequence[Slice], answers: Mapping[Slice, str]
    ) -> str:
        made = self.slices.get((spec.name, at))
        if made is None:
            return "new"
        if made.version != spec.version:
            return "outdated"
        if any(answers[need] != "fresh" for need in needs):
            return "rebuilt"
        now = {need: self.slices[need].seq for need in needs}
        return "fresh" if made.inputs == now else "rebuilt"

    # ── Running the jobs of a plan ────────────────────────────────────────────────────────────

    def run(
        self,
        specs: Mapping[str, DatasetSpec],
        plan: BuildPlan,
        request: BuildRequest,
        random: Random,
        fails: Callable[[str], bool] = lambda _key: False,
    ) -> Ended:
        """Run all jobs in some order that their edges allow."""
        jobs: dict[str, NewJob] = {}
        for job in plan_jobs(
            plan,
            lambda name: Placement(task=f"dataset:{name}", group=name),
            STEP,
            eager=request.eager,
            fail_fast=request.fail_fast,
        ):
            assert job.key not in jobs, f"{job.key} twice"
            assert all(edge.key in jobs for edge in job.after), f"{job.key} looks forward"
            assert len({edge.key for edge in job.after}) == len(job.after), f"{job.key}: twice"
            jobs[job.key] = job
        building = _Building(self, specs, plan, request, fails)
        ended = Ended(jobs=len(jobs), edges=sum(len(job.after) for job in jobs.values()))
        _let_run(jobs, building, random, ended)
        return ended


def _let_run(jobs: Mapping[str, NewJob], building: _Building, random: Random, ended: Ended) -> None:
    """As a store does: skipped as soon as a success edge cannot be, ready when all have ended."""
    waits = {key: len(job.after) for key, job in jobs.items()}
    dependants: dict[str, list[tuple[str, EdgeKind]]] = {}
    for key, job in jobs.items():
        for edge in job.after:
            dependants.setdefault(edge.key, []).append((key, edge.kind))
    ready = [key for key, count in waits.items() if not count]

    def end(key: str, state: str) -> Iterator[tuple[str, str]]:
        ended.states[key] = state
        for dependant, kind in dependants.get(key, ()):
            if dependant in ended.states:
                continue
            if kind is EdgeKind.SUCCESS and state != "done":
                yield dependant, "skipped"
                continue
            waits[dependant] -= 1
            if not waits[dependant]:
                ready.append(dependant)

    newest_first = random.random() < 0.5
    while ready:
        key = ready.pop(-1 if newest_first else random.randrange(len(ready)))
        if key in ended.states:
            continue
        ended.order.append(key)
        todo = [(key, building.run(jobs[key], ended))]
        while todo:
            name, state = todo.pop()
            if name not in ended.states:
                todo += end(name, state)
    assert ended.states.keys() == jobs.keys(), "jobs are left that wait for ever"


class _Building:
    """Owns what a plan has staged. Knows what each kind of job does."""

    def __init__(
        self,
        world: World,
        specs: Mapping[str, DatasetSpec],
        plan: BuildPlan,
        request: BuildRequest,
        fails: Callable[[str], bool],
    ) -> None:
        self._world, self._specs, self._plan = world, specs, plan
        self._request, self._fails = request, fails
        self._staged: dict[int, dict[Slice, Made]] = {}
        self._levels = {job.job_id: job.level for level in plan.levels for job in level}
        self._to_build = {
            (job.dataset, at) for level in plan.levels for job in level for at in job.timestamps
        }

    def run(self, job: NewJob, ended: Ended) -> str:
        if job.task.startswith("dataset:") and "@" in job.key:
            return self._build(job)
        step = msgspec.json.decode(job.payload, type=StepPayload)
        if step.step is Step.LEVEL:
            assert step.level is not None
            return self._commit(step.level, ended)
        return "done"

    def _build(self, job: NewJob) -> str:
        name = job.key.removeprefix(f"{BUILD}{self._plan.plan_id}:").partition("@")[0]
        payload = msgspec.json.decode(job.payload, type=SlicePayload)
        needs = [needed_slices(self._specs, name, at) for at in payload.at]
        for dataset in {need.dataset for need in self._specs[name].needs}:
            needed = [at for found in needs for other, at in found if other == dataset]
            ours = {at for at in needed if self._is_ours((dataset, at))}
            if first_unbuilt(payload, dataset, needed, ours) is not None:
                return "skipped"
        for found in needs:
            for other in found:
                assert other in self._world.slices, f"{job.key} ran before {other}"
                if other in self._to_build:
                    assert self._is_ours(other), f"{job.key} ran before {other} was rebuilt"
        if self._fails(job.key):
            return "error"
        assert job.level == self._levels[job.key]
        staged = self._staged.setdefault(job.level, {})
        for at, found in zip(payload.at, needs, strict=True):
            staged[name, at] = Made(
                version=self._specs[name].version,
                seq=-1,
                basis=self._world.seq,
                plan_id=self._plan.plan_id,
                inputs={other: self._world.slices[other].seq for other in found},
            )
        if payload.eager:
            self._make_visible(job.level)
        return "done"

    def _is_ours(self, slice_: Slice) -> bool:
        made = self._world.slices.get(slice_)
        return made is not None and made.plan_id == self._plan.plan_id

    def _commit(self, level: int, ended: Ended) -> str:
        self._make_visible(level)
        level_jobs = self._plan.levels[level]
        failed = any(ended.states[job.job_id] != "done" for job in level_jobs)
        return "skipped" if failed and self._request.fail_fast else "done"

    def _make_visible(self, level: int) -> None:
        staged = self._staged.pop(level, {})
        if staged:
            self._world.seq += 1
        for slice_, made in staged.items():
            fields = {name: getattr(made, name) for name in ("version", "basis", "plan_id")}
            self._world.slices[slice_] = Made(**fields, seq=self._world.seq, inputs=made.inputs)
