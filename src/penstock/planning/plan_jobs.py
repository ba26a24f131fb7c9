# SPDX-License-Identifier: Apache-2.0
"""Which jobs build what is to be built, which of them need which, and on which level are they?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from penstock.model.calendar import Calendar
from penstock.model.dataset import BUILD, DatasetSpec, moment_name
from penstock.model.plan import BuildPlan, JobDescriptor, Needed
from penstock.planning.freshness import Wanted
from penstock.planning.range_maxima import RangeMaxima

Levels = tuple[tuple[JobDescriptor, ...], ...]
_NOTHING: tuple[Needed, ...] = ()


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
    plan_id: str, specs: Mapping[str, DatasetSpec], wanted: Mapping[str, Wanted]
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
        jobs = _described(plan_id, spec, found, needs, job_levels, names)
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


def _described(
    plan_id: str,
    spec: DatasetSpec,
    found: Wanted,
    needs: Sequence[tuple[Needed, ...]],
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
    found: Wanted, groups: list[Sequence[int]] | None, upstream: Mapping[str, _Upstream]
) -> tuple[Sequence[tuple[Needed, ...]], Sequence[int]]:
    """What each job needs, and its level."""
    count = len(found.build) if groups is None else len(groups)
    needs: Sequence[tuple[Needed, ...]] | None = None
    levels: list[int] = [0] * count
    for need, firsts, ends in found.ranges:
        up = upstream.get(need.dataset)
        if up is None:
            continue
        if groups is None:
            column = _column(found.build, need.dataset, firsts, ends, up)
        else:
            column = [_runs(group, need.dataset, firsts, ends, up) for group in groups]
        needs = column if needs is None else [a + b for a, b in zip(needs, column, strict=True)]
        _raise_levels(levels, column, up)
    return needs if needs is not None else [_NOTHING] * count, levels


def _column(
    build: Sequence[int], name: str, firsts: Sequence[int], ends: Sequence[int], up: _Upstream
) -> list[tuple[Needed, ...]]:
    """What each job of one slice needs of one dataset."""
    before, batch = up.built_before, up.batch
    column: list[tuple[Needed, ...]] = []
    for index in build:
        first, end = before[firsts[index]], before[ends[index]]
        if first < end:
            column.append((Needed(name, first // batch, (end - 1) // batch),))
        else:
            column.append(_NOTHING)
    return column


def _runs(
    group: Sequence[int], name: str, firsts: Sequence[int], ends: Sequence[int], up: _Upstream
) -> tuple[Needed, ...]:
    """What one job of several slices needs of one dataset: runs of jobs, none touches the next."""
    before, batch = up.built_before, up.batch
    runs: list[Needed] = []
    low = high = -1
    for index in group:
        first, end = before[firsts[index]], before[ends[index]]
        if first >= end:
            continue
        first, last = first // batch, (end - 1) // batch
        if low < 0:
            low = first
        elif first > high + 1:
            runs.append(Needed(name, low, high))
            low = first
        high = max(high, last)
    if low >= 0:
        runs.append(Needed(name, low, high))
    return tuple(runs)


def _raise_levels(levels: list[int], column: Sequence[tuple[Needed, ...]], up: _Upstream) -> None:
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
