# SPDX-License-Identifier: Apache-2.0
"""How does a person read a plan: its levels, what is built, what is skipped and why?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from enum import StrEnum

from penstock.cli.render.build_report import NO_SLICE
from penstock.model.dataset import DatasetSpec, moment_name
from penstock.model.plan import BuildPlan, JobDescriptor, SliceCounts
from penstock.observe.phrases import counted
from penstock.planning.plan_pictures import reasons
from penstock.terminal_text import escaped

LEVELS_MAX = 50  # that are shown; the rest is counted


class PlanFormat(StrEnum):
    """How a plan is printed."""

    TABLE = "table"
    JSON = "json"
    MERMAID = "mermaid"
    DOT = "dot"


def plan_lines(plan: BuildPlan, specs: Mapping[str, DatasetSpec]) -> Iterator[str]:
    """Levels first, then every dataset, then one line about all of it."""
    slices = sum(len(job.timestamps) for level in plan.levels for job in level)
    width = max(map(len, plan.counts), default=0)
    for number, level in enumerate(plan.levels[:LEVELS_MAX]):
        yield from _level(number, level, specs, width)
    if len(plan.levels) > LEVELS_MAX:
        yield f"… and {counted(len(plan.levels) - LEVELS_MAX, 'more level')}"
    if plan.levels:
        yield ""
    yield from _datasets(plan)
    yield ""
    if not plan.levels:
        known = any(counts.fresh or counts.future for counts in plan.counts.values())
        yield "Up to date: nothing to build." if known else NO_SLICE
    else:
        yield (
            f"Plan {plan.plan_id}: {counted(slices, 'slice')} in {counted(plan.jobs, 'job')}, "
            f"{counted(len(plan.levels), 'level')}."
        )


def _level(
    number: int, jobs: tuple[JobDescriptor, ...], specs: Mapping[str, DatasetSpec], width: int
) -> Iterator[str]:
    counts: Counter[str] = Counter()
    slices: Counter[str] = Counter()
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for job in jobs:
        counts[job.dataset] += 1
        slices[job.dataset] += len(job.timestamps)
        first[job.dataset] = min(first.get(job.dataset, job.timestamps[0]), job.timestamps[0])
        last[job.dataset] = max(last.get(job.dataset, job.timestamps[-1]), job.timestamps[-1])
    lead = f"level {number}"
    for name in sorted(counts):
        calendar = specs[name].calendar
        begin, end = (moment_name(at, calendar) for at in (first[name], last[name]))
        span = begin if begin == end else f"{begin} to {end}"
        many = counted(slices[name], "slice")
        if counts[name] != slices[name]:
            many += f" in {counted(counts[name], 'job')}"
        yield f"{lead:<8}  {escaped(name):<{width}}  {many}, {span}"
        lead = ""


def _datasets(plan: BuildPlan) -> Iterator[str]:
    width = max(map(len, plan.counts), default=0)
    for name, counts in plan.counts.items():
        yield f"{escaped(name):<{width}}  {_said(counts)}"


def _said(counts: SliceCounts) -> str:
    parts = [
        (counts.fresh, "up to date, skipped"),
        (counts.future, "in the future, left out"),
    ]
    built = reasons(counts)
    said = [built] if built else []
    said += [f"{count:,} {words}" for count, words in parts if count]
    return ", ".join(said) or "nothing in this range"
