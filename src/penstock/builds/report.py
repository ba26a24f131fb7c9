# SPDX-License-Identifier: Apache-2.0
"""Report of a plan: what was built, what failed, and what was skipped because of it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec

from penstock.model.dataset import slice_of
from penstock.model.job import AttemptError, ErrorCategory, Job, JobId, JobKind, JobState
from penstock.model.plan import BuildReport, JobResult, KeptEnd, PlanFacts, StepPayload
from penstock.sentences import counted
from penstock.stores.protocol import PlanStore
from penstock.stores.store_future import Reply

PAGE = 1_000  # jobs that are read at once
FAILED_NAMED = 20  # slices of the plan of a schedule, in its cursor and in the log

log = logging.getLogger("penstock.build")

T = TypeVar("T")

_FAILED = frozenset({JobState.ERROR, JobState.CANCELLED})
_SKIPPED = frozenset({JobState.SKIPPED})
_UPSTREAM = "upstream"


class AskStore(Protocol):
    """Asks a store, and again if it has no answer now."""

    def __call__(self, ask: Callable[[], Reply[T]], /) -> Awaitable[T]: ...


async def read_report(
    store: PlanStore, ask: AskStore, plan_id: str, facts: PlanFacts, run_id: str, *, stopped: bool
) -> BuildReport:
    """Read what became of the jobs of a plan."""
    found = await _jobs(store, ask, plan_id, _FAILED)
    failed = [job for job in found if job.kind is JobKind.SLICE]
    skipped = await _jobs(store, ask, plan_id, _SKIPPED)
    causes = _Causes(failed, skipped)
    levels = await ask(partial(store.plan_states, plan_id))
    done = sum(level.states.get(JobState.DONE, 0) for level in levels)
    unmade = [job for job in skipped if job.kind is JobKind.SLICE]
    unbuilt = facts.slices if stopped else sum(map(_slices, [*failed, *unmade]))
    return BuildReport(
        plan_id=plan_id,
        run_id=run_id,
        slices=facts.slices - unbuilt,
        done=done,
        failed=tuple(_result(job, job.last_error) for job in failed),
        skipped=tuple(_result(job, causes.of(job)) for job in unmade),
        fresh=facts.fresh,
        stopped=stopped,
    )


async def _jobs(
    store: PlanStore, ask: AskStore, plan_id: str, states: Collection[JobState]
) -> list[Job]:
    found: list[Job] = []
    last = JobId(0)
    while page := await ask(partial(store.plan_jobs, plan_id, states, last, PAGE)):
        found += page
        last = page[-1].id
    return found


def _slices(job: Job) -> int:
    return len(msgspec.json.decode(job.payload, type=dict[str, Any])["at"])


def _level(barrier: Job) -> int | None:
    return msgspec.json.decode(barrier.payload, type=StepPayload).level


def _result(job: Job, error: AttemptError | None) -> JobResult:
    return JobResult(
        job_id=job.key,
        status=job.state,
        started_at=job.started_at,
        finished_at=job.finished_at,
        error=error,
    )


class _Causes:
    """Finds the failed job because of which others were skipped, however far away."""

    def __init__(self, failed: list[Job], skipped: list[Job]) -> None:
        self._failed = {job.key: job.level for job in failed}
        self._upstream = {job.key: _upstream_key(job) for job in skipped}
        self._barriers = {job.key: _level(job) for job in skipped if job.kind is JobKind.STEP}

    def of(self, job: Job) -> AttemptError | None:
        """Why a job was skipped, naming the slice at the beginning of it all."""
        key, seen = job.key, set[str]()
        while key in self._upstream and key not in seen:
            seen.add(key)
            cause = self._upstream[key]
            if cause is None:
                break
            key = cause
        if key in self._barriers:
            first = next((k for k, at in self._failed.items() if at == self._barriers[key]), key)
            said = f"upstream level failed: {slice_of(first)} (--fail-fast)"
            return AttemptError(ErrorCategory.OWN, _UPSTREAM, said)
        if key not in self._failed:
            return job.last_error
        return AttemptError(ErrorCategory.OWN, _UPSTREAM, f"upstream failed: {slice_of(key)}")


def _upstream_key(job: Job) -> str | None:
    """The key of the job because of which one was skipped."""
    error = job.last_error
    if error is None or error.kind != _UPSTREAM:
        return None
    return error.message.partition(": ")[2]


async def end_kept_plan(store: PlanStore, ask: AskStore, plan_id: str) -> BuildReport | None:
    """End the plan of a schedule, all jobs of which have ended; safe to repeat."""
    row = await ask(partial(store.plan, plan_id))
    if row is None:
        return None
    await ask(partial(store.end_plan, plan_id))
    facts = PlanFacts.read(row.document)
    return await read_report(store, ask, plan_id, facts, row.run_id, stopped=False)


def kept_cursor(report: BuildReport, ended_at: int) -> str:
    """What a plan that has ended leaves with its unit, as strict JSON text."""
    failed = tuple(slice_of(one.job_id) for one in report.failed[:FAILED_NAMED])
    end = KeptEnd(
        plan_id=report.plan_id or "",
        ended_at=ended_at,
        slices=report.slices,
        failed=len(report.failed),
        skipped=len(report.skipped),
        failures=failed,
    )
    return msgspec.json.encode(end).decode()


def log_kept_end(unit: str, report: BuildReport) -> None:
    """Tell how the plan of a schedule went, and name what failed."""
    failed, skipped = len(report.failed), len(report.skipped)
    lost = f"; {counted(failed, 'job')} failed" if failed else ""
    if skipped:
        lost += f", and {skipped:,} {'was' if skipped == 1 else 'were'} skipped because of that"
    log.log(
        logging.ERROR if lost else logging.INFO,
        "Plan %s of %r has ended: %s built%s.",
        report.plan_id,
        unit,
        counted(report.slices, "slice"),
        lost,
    )
    for one in report.failed[:FAILED_NAMED]:
        why = "" if one.error is None else f": {one.error.format()}"
        log.error(
            "%s failed%s; the next tick of %r tries it again.", slice_of(one.job_id), why, unit
        )
