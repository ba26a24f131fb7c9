# SPDX-License-Identifier: Apache-2.0
"""Plans and their jobs, over whole histories of builds, against a slow and obvious world."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from random import Random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.dataset import DatasetSpec, Need, Rule
from penstock.model.plan import BuildPlan, BuildRequest, JobDescriptor
from penstock.planning.build_plan import plan_build
from tests.datasets import DAY, HOUR, Steps, by_name, dataset
from tests.plan_world import Slice, World, needed_slices

CALENDARS = (Steps(), Steps(), Steps(2 * DAY), Steps(12 * HOUR), Steps(3 * DAY, DAY // 2))
NOW = 14 * DAY


@settings(deadline=None, max_examples=120)
@given(st.integers(0, 10**9))
def test_plans_are_those_of_the_slow_planner_over_a_history_of_builds(seed: int) -> None:
    random = Random(seed)
    specs = random_specs(random)
    world = World()

    for number in range(4):
        if number and random.random() < 0.5:
            name = random.choice(sorted(specs))
            batch = random.choice((1, 3))
            changed = msgspec.structs.replace(specs[name], version=str(number), batch=batch)
            specs = {**specs, name: changed}
        request = random_request(random, specs)
        plan = plan_build(specs, request, world.marks_of, NOW)
        check_plan(world, specs, request, plan)

        failing = random.random() < 0.5
        failed: set[str] = set()

        def fails(key: str, failing: bool = failing, failed: set[str] = failed) -> bool:
            if failing and random.random() < 0.15:
                failed.add(key)
            return key in failed

        ended = world.run(specs, plan, request, random, fails)

        check_ends(specs, request, plan, ended.states, failed)
        if not failed:
            again = plan_build(specs, without_force(request), world.marks_of, NOW)
            assert again.jobs == 0
            assert all(counts.needed == counts.fresh for counts in again.counts.values())


def check_plan(
    world: World, specs: Mapping[str, DatasetSpec], request: BuildRequest, plan: BuildPlan
) -> None:
    """What is built, why, in which batches and on which levels."""
    wanted = world.wanted(specs, request, NOW)
    why = world.why(specs, wanted)
    build = {found for found in wanted if request.force or why[found] != "fresh"}
    jobs = {job.job_id: job for level in plan.levels for job in level}
    assert len(jobs) == plan.jobs
    assert sorted((j.dataset, at) for j in jobs.values() for at in j.timestamps) == sorted(build)
    for name, counts in plan.counts.items():
        found = Counter(answer for (other, _), answer in why.items() if other == name)
        assert (counts.new, counts.outdated, counts.rebuilt) == (
            found["new"],
            found["outdated"],
            found["rebuilt"],
        )
        fresh = (0, found["fresh"]) if request.force else (found["fresh"], 0)
        assert (counts.fresh, counts.forced, counts.needed) == (*fresh, found.total())
        ordered = in_time(plan, name)
        stamps = [at for job in ordered for at in job.timestamps]
        assert stamps == sorted(stamps)
        assert all(len(job.timestamps) == specs[name].batch for job in ordered[:-1])
        assert sorted({*plan.fresh[name], *stamps}) == sorted(
            at for other, at in wanted if other == name
        )
    above = slow_needs(specs, plan)
    for number, level in enumerate(plan.levels):
        for job in level:
            assert job.level == number
            told = {
                in_time(plan, run.dataset)[index].job_id
                for run in job.needs
                for index in range(run.first, run.last + 1)
            }
            assert told == above[job.job_id]
            assert number == 1 + max((jobs[key].level for key in told), default=-1)
    assert plan == plan_build(specs, request, world.marks_of, NOW)


def check_ends(
    specs: Mapping[str, DatasetSpec],
    request: BuildRequest,
    plan: BuildPlan,
    states: Mapping[str, str],
    failed: set[str],
) -> None:
    """Descendants of what failed are skipped, and with fail_fast the levels above; no others."""
    above = slow_needs(specs, plan)
    expected: dict[str, str] = {}
    stopped = False
    for level in plan.levels:
        for job in level:
            unhappy = any(expected[key] != "done" for key in above[job.job_id])
            state = "error" if job.job_id in failed else "done"
            expected[job.job_id] = "skipped" if unhappy or stopped else state
        if request.fail_fast and not request.eager:
            stopped = stopped or any(expected[job.job_id] != "done" for job in level)
    assert {key: state for key, state in states.items() if "@" in key} == expected
    assert states[f"build:{plan.plan_id}:end"] == "done"


def slow_needs(specs: Mapping[str, DatasetSpec], plan: BuildPlan) -> dict[str, set[str]]:
    """The jobs that each job needs, slice by slice."""
    builder: dict[Slice, str] = {
        (job.dataset, at): job.job_id
        for level in plan.levels
        for job in level
        for at in job.timestamps
    }
    return {
        job.job_id: {
            builder[need]
            for at in job.timestamps
            for need in needed_slices(specs, job.dataset, at)
            if need in builder
        }
        for level in plan.levels
        for job in level
    }


def in_time(plan: BuildPlan, name: str) -> list[JobDescriptor]:
    jobs = [job for level in plan.levels for job in level if job.dataset == name]
    return sorted(jobs, key=lambda job: job.timestamps)


def random_specs(random: Random) -> dict[str, DatasetSpec]:
    specs: list[DatasetSpec] = []
    for number in range(random.randint(2, 5)):
        name = f"d{number}"
        ups = random.sample(specs, min(len(specs), random.choice((0, 1, 2, 2, 3))))
        calendar = random.choice(CALENDARS)
        needs = tuple(random_need(random, up, calendar) for up in ups)
        specs.append(dataset(name, *needs, calendar=calendar, batch=random.choice((1, 1, 1, 2, 5))))
    random.shuffle(specs)
    return by_name(specs)


def random_need(random: Random, up: DatasetSpec, calendar: Steps) -> Need:
    rules = [Rule.LATEST, Rule.LOOKBACK, Rule.LOOKBACK, Rule.WINDOW]
    if up.calendar == calendar:
        rules.append(Rule.EXACT)
    match random.choice(rules):
        case Rule.LOOKBACK:
            count = random.choice((1, 3, 10, 14, 20))
            return Need(dataset=up.name, rule=Rule.LOOKBACK, count=count)
        case Rule.WINDOW:
            micros = random.choice((HOUR, 3 * DAY, 9 * DAY, 12 * DAY))
            return Need(dataset=up.name, rule=Rule.WINDOW, micros=micros)
        case rule:
            return Need(dataset=up.name, rule=rule)


def random_request(random: Random, specs: Mapping[str, DatasetSpec]) -> BuildRequest:
    targets = tuple(sorted(random.sample(sorted(specs), random.randint(1, min(3, len(specs))))))
    ranges = []
    for _ in targets:
        start = random.randint(0, 10) * DAY
        ranges.append((start, start + random.randint(0, 8) * DAY))
    return BuildRequest(
        targets=targets,
        ranges=tuple(ranges),
        force=random.random() < 0.2,
        eager=random.random() < 0.5,
        fail_fast=random.random() < 0.2,
    )


def without_force(request: BuildRequest) -> BuildRequest:
    return BuildRequest(targets=request.targets, ranges=request.ranges)
