# SPDX-License-Identifier: Apache-2.0
"""The jobs of a plan: few edges, in order, and nobody waits for less than it needs."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import msgspec
import pytest

from penstock.model.dataset import DatasetSpec, Need, Rule
from penstock.model.job import START, EdgeKind, NewJob
from penstock.model.plan import BuildPlan, BuildRequest, JobRange, Placement, SlicePayload
from penstock.planning.build_plan import plan_build
from penstock.planning.plan_jobs import GATE_PARTS, gates_of, parts_of, plan_jobs
from tests.datasets import DAY, by_name, dataset, nothing_built
from tests.plan_world import World

STEP = Placement(task="dataset:@step#1", group="steps", priority=3)


def back(name: str, count: int) -> Need:
    return Need(dataset=name, rule=Rule.LOOKBACK, count=count)


def planned(*specs: DatasetSpec, days: int) -> BuildPlan:
    request = BuildRequest(targets=(specs[-1].name,), ranges=((0, days * DAY),))
    return plan_build(by_name(specs), request, nothing_built, days * DAY)


def jobs_of(plan: BuildPlan, **mode: Any) -> Iterator[NewJob]:
    return plan_jobs(
        plan,
        lambda name: Placement(
            task=f"dataset:{name}#1", group=f"g-{name}", priority=1, limit_keys=("disk",)
        ),
        STEP,
        **mode,
    )


def test_jobs_of_a_plan_level_by_level() -> None:
    plan = planned(dataset("prices"), dataset("report", "prices", batch=2), days=2)

    jobs = list(jobs_of(plan, fail_fast=True))

    p = f"build:{plan.plan_id}:"
    assert [
        (job.key, job.task, job.payload, [tuple(e.key for e in job.after)]) for job in jobs
    ] == [
        (f"{p}start", START, '{"step":"start"}', [()]),
        (f"{p}prices@1970-01-01", "dataset:prices#1", '{"at":[0]}', [(f"{p}start",)]),
        (f"{p}prices@1970-01-02", "dataset:prices#1", '{"at":[86400000000]}', [(f"{p}start",)]),
        (
            f"{p}level:0",
            STEP.task,
            '{"step":"level","level":0,"fail_fast":true}',
            [(f"{p}prices@1970-01-01", f"{p}prices@1970-01-02", f"{p}start")],
        ),
        (
            f"{p}report@1970-01-01..1970-01-02",
            "dataset:report#1",
            '{"at":[0,86400000000]}',
            [(f"{p}level:0", f"{p}prices@1970-01-01", f"{p}prices@1970-01-02")],
        ),
        (
            f"{p}level:1",
            STEP.task,
            '{"step":"level","level":1,"fail_fast":true}',
            [(f"{p}report@1970-01-01..1970-01-02", f"{p}level:0")],
        ),
        (f"{p}end", STEP.task, '{"step":"end"}', [(f"{p}level:1",)]),
    ]
    assert {job.plan_id for job in jobs} == {plan.plan_id}
    assert [job.level for job in jobs] == [None, 0, 0, None, 1, None, None]
    assert (jobs[1].group, jobs[1].priority, jobs[1].limit_keys) == ("g-prices", 1, ("disk",))
    kinds = {kind for job in jobs if "@" in job.key for kind in {edge.kind for edge in job.after}}
    assert kinds == {EdgeKind.SUCCESS}


def test_jobs_of_an_eager_plan_wait_for_their_own_needs_only() -> None:
    plan = planned(dataset("prices"), dataset("report", "prices"), days=2)

    jobs = {job.key.split(":", 2)[2]: job for job in jobs_of(plan, eager=True)}

    p = f"build:{plan.plan_id}:"
    assert [edge.key for edge in jobs["prices@1970-01-02"].after] == [f"{p}start"]
    assert [edge.key for edge in jobs["report@1970-01-02"].after] == [f"{p}prices@1970-01-02"]
    assert jobs["report@1970-01-01"].payload == '{"at":[0],"eager":true}'
    assert [(edge.key, edge.kind) for edge in jobs["end"].after] == [
        (f"{p}{name}@1970-01-0{day}", EdgeKind.FINISHED)
        for name in ("prices", "report")
        for day in (1, 2)
    ]


@pytest.mark.parametrize("eager", [False, True])
def test_a_lookback_of_twenty_costs_a_few_edges_a_slice(eager: bool) -> None:
    plan = planned(dataset("prices"), dataset("volatility", back("prices", 20)), days=10_000)
    slices = 10_000

    jobs = list(jobs_of(plan, eager=eager))

    edges = sum(len(job.after) for job in jobs)
    # What the slices of prices cost as well: one edge to the start, one from a join.
    # Eager: 2.2 to gates, 1 from a gate, 1 from a join. By level: one to the barrier, one from it.
    assert edges - 2 * slices <= 4.3 * slices if eager else edges - 2 * slices <= 2.1 * slices
    assert len(jobs) <= 2.1 * slices
    last = msgspec.json.decode(jobs_by_name(jobs, "volatility")[-1].payload, type=SlicePayload)
    end = last.at[-1]
    assert last.built == {"prices": ((end - 19 * DAY, end),)}


def jobs_by_name(jobs: list[NewJob], name: str) -> list[NewJob]:
    return [job for job in jobs if f":{name}@" in job.key]


@pytest.mark.parametrize("count", [9, 20, 31, 32, 100, 700])
def test_gates_drop_no_job(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where gates are made of gates, which a smaller bound brings about sooner."""
    monkeypatch.setattr("penstock.planning.plan_jobs.GATE_PARTS", 4)
    monkeypatch.setattr("penstock.planning.plan_jobs.GATE_MAX", 16)
    monkeypatch.setattr("penstock.planning.plan_jobs.JOINED_MAX", 10)
    plan = planned(dataset("prices"), dataset("late", back("prices", count)), days=301)
    prices = sorted(
        (job for level in plan.levels for job in level if job.dataset == "prices"),
        key=lambda job: job.timestamps,
    )
    needs = {job.job_id: job.needs for level in plan.levels for job in level}
    waited: dict[str, set[str]] = {}  # of each job, the slice jobs that have ended before it

    for job in jobs_of(plan, eager=True):
        assert job.key not in waited
        before: set[str] = set()
        for edge in job.after:
            before |= waited[edge.key]
        for run in needs.get(job.key, ()):
            assert {found.job_id for found in prices[run.first : run.last + 1]} <= before
            assert len(before) < 4 * count + 8
        waited[job.key] = before | ({job.key} if "@" in job.key else set())
        assert len(job.after) <= 16

    assert waited[f"build:{plan.plan_id}:end"] == needs.keys()


def test_a_gate_of_gates_holds_exactly_its_jobs() -> None:
    jobs = 100_000
    for gate in gates_of(JobRange("prices", 1_000, 99_998)):
        size, number = gate
        parts = parts_of(gate, jobs)

        starts = [part * small for small, part in parts]
        ends = [min((part + 1) * small, jobs) for small, part in parts]

        assert starts[0] == number * size
        assert ends[-1] == min((number + 1) * size, jobs)
        assert starts[1:] == ends[:-1]
        assert len(parts) <= GATE_PARTS


@pytest.mark.parametrize("eager", [False, True])
def test_exactly_those_who_look_back_on_what_failed_are_skipped(eager: bool) -> None:
    """Gates hold more than that, and must not tell."""
    specs = by_name([dataset("prices"), dataset("late", back("prices", 10)), dataset("x", "late")])
    request = BuildRequest(targets=("x",), ranges=((0, 40 * DAY),), eager=eager)
    world = World()
    plan = plan_build(specs, request, world.marks_of, 40 * DAY)
    broken = f"build:{plan.plan_id}:prices@1970-01-15"

    ended = world.run(specs, plan, request, Random(7), lambda key: key == broken)

    days = [f"1970-01-{day}" for day in range(15, 25)]
    skipped = {f"build:{plan.plan_id}:{name}@{day}" for name in ("late", "x") for day in days}
    assert ended.of_slices("error") == {broken}
    assert ended.of_slices("skipped") == skipped
