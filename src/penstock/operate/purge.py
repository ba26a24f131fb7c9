# SPDX-License-Identifier: Apache-2.0
"""Purges ended jobs with their history, old or named ones; their keys may be used again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from penstock.clock import Clock, to_micros
from penstock.model.job import Job, JobId
from penstock.model.views import FIRST_END, EndMark, PurgedJobs
from penstock.operate.actions import SLICE_JOBS, answer, audit, named_jobs, stored_tasks
from penstock.sentences import command, counted
from penstock.stores.protocol import JobFilter, Store
from penstock.terminal_text import escaped


def count_purged(store: Store, age_seconds: float, clock: Clock) -> int:
    """How many jobs `purge` would forget now; changes nothing."""
    return answer(store.would_purge(to_micros(clock.now() - age_seconds)), store)


def purge(store: Store, age_seconds: float, clock: Clock) -> int:
    """Forget jobs that ended longer ago than this, in slices; how many."""
    before = to_micros(clock.now() - age_seconds)
    total, mark, more = 0, FIRST_END, True
    while more:
        progress, mark = answer(store.purge(before, mark), store)
        total, more = total + progress.count, progress.more
    audit(store.url, "Purged %s that ended over %g s ago", counted(total, "job"), age_seconds)
    return total


def purge_keys(store: Store, keys: Iterable[str], *, really: bool = True) -> PurgedJobs:
    """Forget the ended jobs of these keys; not really: only count them."""
    jobs, unknown = named_jobs(store, keys)
    count, refused = 0, {}
    for job in jobs:  # one by one, to know which are kept
        if not job.state.ended:
            refused[job.key] = (
                f"Job {job.key!r} is {job.state}, it has not ended: "
                f"'{command('queue', 'cancel', job.key)}' ends it."
            )
        elif _forget(store, [job], really=really):
            count += 1
        else:
            refused[job.key] = (
                f"Job {job.key!r} is kept: a job that has not ended waits for it, or its body or "
                "its build still runs."
            )
    if really and count:
        audit(store.url, "Purged %s by key", counted(count, "job"))
    return PurgedJobs(count, refused, unknown)


def purge_task(
    store: Store, task: str, before: int | None = None, *, really: bool = True
) -> PurgedJobs:
    """Forget the ended jobs of a task, those that ended before a time if one is given."""
    count = kept = 0
    for page in _ended_of(store, task, before):
        gone = _forget(store, page, really=really)
        count, kept = count + gone, kept + len(page) - gone
    if really and count:
        audit(store.url, "Purged %s of task %s", counted(count, "job"), escaped(task))
    return PurgedJobs(count, kept=kept)


def _ended_of(store: Store, task: str, before: int | None) -> Iterator[list[Job]]:
    """The ended jobs of a task, in pages."""
    for name in stored_tasks(store, task):
        last = JobId(0)
        while page := store.jobs(JobFilter(task=name), last, SLICE_JOBS).result():
            last = page[-1].id
            yield [
                job
                for job in page
                if job.finished_at is not None and (before is None or job.finished_at < before)
            ]


def _forget(store: Store, jobs: Sequence[Job], *, really: bool) -> int:
    ends = [EndMark(job.finished_at or 0, job.id) for job in jobs]
    if not really:
        return answer(store.would_purge_jobs(ends), store)
    count, more = 0, bool(ends)
    while more:
        step = answer(store.purge_jobs(ends), store)
        count, more = count + step.count, step.more
    return count
