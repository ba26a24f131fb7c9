# SPDX-License-Identifier: Apache-2.0
"""Renders a build plan and the report of a build: text, JSON, Mermaid and Graphviz graphs.

A graph shows datasets and counts, so it does not grow with the number of jobs. The JSON document of
a plan has every job and is written in chunks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum

import msgspec

from penstock.model.dataset import DatasetSpec, moment_name, slice_of, utc_text
from penstock.model.plan import BuildPlan, BuildReport, JobDescriptor, JobResult, SliceCounts
from penstock.sentences import counted
from penstock.supervisor.protocol import Planned
from penstock.terminal_text import escaped, iso_time

ROWS_MAX = 20  # of each table; the rest is counted
NO_SLICE = "Nothing to build: the targets have no slice in this range."
WIDTH_MAX = 60  # characters of a slice's name
LEVELS_MAX = 50  # that are shown; the rest is counted
DATASETS_SHOWN = 500  # of a picture; nobody can read more, and viewers refuse it
PIECE_JOBS = 1_000  # jobs of one piece of a document
#: In which order, and in which words, reasons to build are told.
REASONS = (
    ("new", "new"),
    ("outdated", "of another version or root"),
    ("rebuilt", "after their inputs"),
    ("forced", "forced"),
)


def report_lines(report: BuildReport, planned: Planned) -> Iterator[str]:
    """The report of a build: failed and skipped slices, and a summary line."""
    shown = (*report.failed[:ROWS_MAX], *report.skipped[:ROWS_MAX])
    width = max((len(_name(result)) for result in shown), default=0)
    yield from _rows("FAILED", report.failed, min(width, WIDTH_MAX))
    yield from _rows("skipped", report.skipped, min(width, WIDTH_MAX))
    future = (
        f"; {counted(planned.future, 'slice')} in the future left out" if planned.future else ""
    )
    if report.plan_id is None:
        if not report.fresh and not planned.future:
            yield NO_SLICE
            return
        yield f"Up to date: {counted(report.fresh, 'slice')}, nothing to build{future}."
        return
    fresh = f", {report.fresh:,} were up to date" if report.fresh else ""
    if report.stopped:
        yield (
            f"Stopped: {report.done:,} of {counted(planned.jobs, 'job')} of plan {report.plan_id} "
            "are done; the same command goes on."
        )
        return
    bad = ""
    if not report.ok:
        bad = f", {len(report.failed):,} of {counted(planned.jobs, 'job')} failed"
        bad += f", {len(report.skipped):,} skipped" if report.skipped else ""
    yield f"Built {counted(report.slices, 'slice')}{fresh}{bad} (plan {report.plan_id}){future}."


def _rows(word: str, results: Sequence[JobResult], width: int) -> Iterator[str]:
    shown = results[:ROWS_MAX]
    for result in shown:
        yield f"{word:<7}  {_name(result):<{width}}  {_why(result)}".rstrip()
    if len(results) > len(shown):
        yield f"{word:<7}  … and {len(results) - len(shown):,} more"


def _name(result: JobResult) -> str:
    return escaped(slice_of(result.job_id))


def _why(result: JobResult) -> str:
    if result.error is None:
        return result.status.value
    said = result.error.message.partition("\n")[0]
    kind = result.error.kind
    return escaped(said if said.startswith("upstream") else f"{kind}: {said}")


def report_document(report: BuildReport, planned: Planned) -> dict[str, object]:
    """The report of a build as a JSON document."""
    return {
        "plan_id": report.plan_id,
        "run_id": report.run_id,
        "ok": report.ok,
        "up_to_date": report.plan_id is None,
        "stopped": report.stopped,
        "resumed": planned.resumed,
        "slices": report.slices,
        "fresh": report.fresh,
        "future": planned.future,
        "jobs": planned.jobs,
        "done": report.done,
        "failed": [_document(result) for result in report.failed],
        "skipped": [_document(result) for result in report.skipped],
    }


def _document(result: JobResult) -> dict[str, object]:
    error = result.error
    return {
        "job_id": result.job_id,
        "slices": slice_of(result.job_id),
        "status": result.status.value,
        "error": None if error is None else f"{error.kind}: {error.message}",
        "started_at": None if result.started_at is None else iso_time(result.started_at),
        "finished_at": None if result.finished_at is None else iso_time(result.finished_at),
    }


class PlanFormat(StrEnum):
    """How a plan is printed."""

    TABLE = "table"
    JSON = "json"
    MERMAID = "mermaid"
    DOT = "dot"


def plan_lines(plan: BuildPlan, specs: Mapping[str, DatasetSpec]) -> Iterator[str]:
    """A plan as text: its levels, its datasets, and a summary line."""
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
    built = format_reasons(counts)
    said = [built] if built else []
    said += [f"{count:,} {words}" for count, words in parts if count]
    return ", ".join(said) or "nothing in this range"


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
