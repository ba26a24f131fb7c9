# SPDX-License-Identifier: Apache-2.0
"""Renders a build plan and the report of a build as text and as JSON documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

from penstock.model.dataset import DatasetSpec, moment_name, slice_of
from penstock.model.plan import BuildPlan, BuildReport, JobDescriptor, JobResult, SliceCounts
from penstock.observe.phrases import counted
from penstock.planning.plan_export import format_reasons
from penstock.supervisor.protocol import Planned
from penstock.terminal_text import escaped, iso_time

ROWS_MAX = 20  # of each table; the rest is counted
NO_SLICE = "Nothing to build: the targets have no slice in this range."
WIDTH_MAX = 60  # characters of a slice's name


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


LEVELS_MAX = 50  # that are shown; the rest is counted


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
