# SPDX-License-Identifier: Apache-2.0
"""Exports a build plan: as a Mermaid or Graphviz graph of its datasets, or as JSON of its jobs.

A graph shows datasets and counts, so it does not grow with the number of jobs. The JSON document
has every job and is written in chunks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from penstock.model.dataset import DatasetSpec, utc_text
from penstock.model.plan import BuildPlan, SliceCounts

DATASETS_SHOWN = 500  # of a picture; nobody can read more, and viewers refuse it
PIECE_JOBS = 1_000  # jobs of one piece of a document

#: In which order, and in which words, reasons to build are told.
REASONS = (
    ("new", "new"),
    ("outdated", "of another version or root"),
    ("rebuilt", "after their inputs"),
    ("forced", "forced"),
)


class DatasetSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan does with one dataset."""

    name: str
    slices: int  # to be built
    jobs: int
    first_level: int | None  # None: nothing is to be built
    last_level: int | None
    counts: SliceCounts


def summaries(plan: BuildPlan) -> list[DatasetSummary]:
    """One of each dataset that was looked at, upstream first."""
    jobs = dict.fromkeys(plan.counts, 0)
    lowest: dict[str, int] = {}
    highest: dict[str, int] = {}
    for number, level in enumerate(plan.levels):
        for job in level:
            jobs[job.dataset] += 1
            lowest.setdefault(job.dataset, number)
            highest[job.dataset] = number
    return [
        DatasetSummary(
            name=name,
            slices=counts.needed - counts.fresh,
            jobs=jobs[name],
            first_level=lowest.get(name),
            last_level=highest.get(name),
            counts=counts,
        )
        for name, counts in plan.counts.items()
    ]


def to_mermaid(plan: BuildPlan, specs: Mapping[str, DatasetSpec]) -> str:
    """A flowchart for pages that draw Mermaid."""
    shown = summaries(plan)[-DATASETS_SHOWN:]
    ids = {summary.name: f"d{number}" for number, summary in enumerate(shown)}
    lines = ["flowchart LR"]
    lines += [f'  {ids[found.name]}["{"<br/>".join(_label(found))}"]' for found in shown]
    for up, down, rule in _arrows(specs, ids):
        lines.append(
            f'  {ids[up]} -->|"{rule}"| {ids[down]}' if rule else f"  {ids[up]} --> {ids[down]}"
        )
    lines += [f"  class {ids[found.name]} fresh" for found in shown if not found.slices]
    lines.append("  classDef fresh stroke-dasharray: 4")
    lines += [f"  %% {line}" for line in _left_out(plan, len(shown))]
    return "\n".join(lines) + "\n"


def to_graphviz(plan: BuildPlan, specs: Mapping[str, DatasetSpec]) -> str:
    """A digraph for `dot`."""
    shown = summaries(plan)[-DATASETS_SHOWN:]
    names = {summary.name: f'"{summary.name}"' for summary in shown}
    lines = ["digraph plan {", "  rankdir=LR;", "  node [shape=box];"]
    for found in shown:
        style = "" if found.slices else ", style=dashed"
        label = "\\n".join(_label(found))
        lines.append(f'  {names[found.name]} [label="{label}"{style}];')
    for up, down, rule in _arrows(specs, names):
        told = f' [label="{rule}"]' if rule else ""
        lines.append(f"  {names[up]} -> {names[down]}{told};")
    lines += [f"  // {line}" for line in _left_out(plan, len(shown))]
    return "\n".join([*lines, "}"]) + "\n"


def to_json(plan: BuildPlan) -> Iterator[str]:
    """One JSON document with ISO times and every job, in pieces."""
    head = {
        "plan_id": plan.plan_id,
        "targets": plan.targets,
        "jobs": plan.jobs,
        "datasets": {found.name: _without_name(found) for found in summaries(plan)},
    }
    yield msgspec.json.encode(head).decode()[:-1] + ',"levels":['
    for number, level in enumerate(plan.levels):
        yield ",[" if number else "["
        for start in range(0, len(level), PIECE_JOBS):
            jobs = [
                {
                    "job_id": job.job_id,
                    "dataset": job.dataset,
                    "timestamps": [utc_text(at) for at in job.timestamps],
                    "needs": job.needs,
                    "level": job.level,
                    "lock": job.lock,
                }
                for job in level[start : start + PIECE_JOBS]
            ]
            text = msgspec.json.encode(jobs).decode()
            yield ("," if start else "") + text[1:-1]
        yield "]"
    yield "]}\n"


def format_reasons(counts: SliceCounts) -> str:
    """Why slices are built, in words: "3 new, 2 after their inputs"; empty if none are."""
    told = [(getattr(counts, field), words) for field, words in REASONS]
    return ", ".join(f"{count:,} {words}" for count, words in told if count)


def _without_name(found: DatasetSummary) -> dict[str, object]:
    fields = msgspec.structs.asdict(found)
    fields.pop("name")
    return fields


def _label(found: DatasetSummary) -> list[str]:
    if not found.slices:
        return [found.name, f"up to date, {found.counts.fresh:,} slices"]
    jobs = "" if found.jobs == found.slices else f" in {found.jobs:,} jobs"
    first, last = found.first_level, found.last_level
    levels = f"level {first}" if first == last else f"levels {first} to {last}"
    return [found.name, f"{found.slices:,} of {found.counts.needed:,} slices{jobs}", levels]


def _arrows(
    specs: Mapping[str, DatasetSpec], shown: Iterable[str]
) -> Iterator[tuple[str, str, str]]:
    """(upstream, downstream, the rule if it is not the usual one)."""
    names = set(shown)
    for name in shown:
        for need in specs[name].needs:
            if need.dataset in names:
                rule = need.text.removeprefix(f"{need.dataset}.")
                yield need.dataset, name, "" if rule == "latest()" else rule


def _left_out(plan: BuildPlan, shown: int) -> list[str]:
    left = len(plan.counts) - shown
    return [f"{left:,} datasets further upstream are left out."] if left else []
