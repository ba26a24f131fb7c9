# SPDX-License-Identifier: Apache-2.0
"""Lets done jobs run again: some by their keys, or all of a task."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from operator import attrgetter

from penstock.errors import UsageError
from penstock.model.job import Job, JobId, JobKind, JobState, kind_of_name
from penstock.model.views import PutBack, RerunJobs
from penstock.operate.actions import SLICE_JOBS, answer, audit, named_jobs, what_fits
from penstock.sentences import counted
from penstock.stores.protocol import JobFilter, Store
from penstock.stores.store_future import Reply


def count_reruns(store: Store, keys: Iterable[str], task: str | None) -> RerunJobs:
    """What `rerun` would let run again now; changes nothing."""
    if task is not None:
        _refuse_others(task)
        counts = store.stats().result().tasks.get(task, {})
        return RerunJobs(counts.get(JobState.DONE, 0))
    jobs, unknown = named_jobs(store, keys)
    others = {job.key: what_fits(job) for job in jobs if not _is_done(job)}
    return RerunJobs(len(jobs) - len(others), others, unknown)


def rerun(store: Store, keys: Iterable[str], task: str | None, *, fresh: bool) -> RerunJobs:
    """Let done jobs run again, in slices; each is whole if the caller dies.

    Args:
        store: where they are.
        keys: of the jobs; none of them if a task is named.
        task: all of its done jobs.
        fresh: forget what they have bought, so that it is bought anew.
    """
    if task is not None:
        _refuse_others(task)
        report = RerunJobs(_rerun_all(store, task, fresh=fresh))
    else:
        report = _rerun_keys(store, keys, fresh=fresh)
    if report.rerun:
        what = "%s run again, and buy their answers anew" if fresh else "%s run again"
        audit(store.url, what, counted(report.rerun, "job"))
    return report


def put_back_keys(
    step: Callable[[list[str]], Reply[PutBack]], keys: Iterable[str], store: Store
) -> frozenset[str]:
    """Ask for these keys, in slices, until nothing is left to do; those that were put back."""
    found: frozenset[str] = frozenset()
    wanted = list(dict.fromkeys(keys))
    for start in range(0, len(wanted), SLICE_JOBS):
        more = True
        while more:
            done = answer(step(wanted[start : start + SLICE_JOBS]), store)
            found, more = found | done.keys, done.more
    return found


def _rerun_keys(store: Store, keys: Iterable[str], *, fresh: bool) -> RerunJobs:
    wanted = [*keys]
    again = put_back_keys(lambda part: store.rerun(part, fresh=fresh), wanted, store)
    jobs, unknown = named_jobs(store, (key for key in wanted if key not in again))
    return RerunJobs(len(again), {job.key: what_fits(job) for job in jobs}, unknown)


def _rerun_all(store: Store, task: str, *, fresh: bool) -> int:
    count, last = 0, JobId(0)
    done = JobFilter(state=JobState.DONE, task=task)
    while page := store.jobs(done, last, SLICE_JOBS).result():
        for app, jobs in groupby(page, attrgetter("app")):
            keys = [job.key for job in jobs]
            count += len(_rerun_of(store, keys, app, fresh=fresh))
        last = page[-1].id
    return count


def _rerun_of(store: Store, keys: list[str], app: str, *, fresh: bool) -> frozenset[str]:
    return put_back_keys(lambda part: store.rerun(part, app, fresh=fresh), keys, store)


def _is_done(job: Job) -> bool:
    return job.state is JobState.DONE and job.kind is JobKind.JOB and job.plan_id is None


def _refuse_others(task: str) -> None:
    if kind_of_name(task) is not JobKind.JOB:
        raise UsageError(
            f"{task!r} is no task of yours: units of schedules run again by themselves, and "
            "'penstock build' with --force builds slices anew."
        )
