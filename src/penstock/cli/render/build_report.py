# SPDX-License-Identifier: Apache-2.0
"""What does a person, or a machine, read about a build that is over?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.model.dataset import slice_of
from penstock.model.plan import BuildReport, JobResult
from penstock.observe.phrases import counted
from penstock.supervisor.protocol import Planned
from penstock.terminal_text import escaped, iso_time

ROWS_MAX = 20  # of each table; the rest is counted
NO_SLICE = "Nothing to build: no slice of the targets lies in this range."
WIDTH_MAX = 60  # characters of a slice's name


def report_lines(report: BuildReport, planned: Planned) -> Iterator[str]:
    """One line always; a table of what failed, and of what was skipped because of it."""
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
    """The same for a machine."""
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
