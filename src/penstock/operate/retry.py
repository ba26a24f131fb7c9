# SPDX-License-Identifier: Apache-2.0
"""Puts failed jobs back into the queue, with what was skipped because of them."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.model.job import JobState, kind_of_name
from penstock.model.views import RetriedJobs, Settled
from penstock.operate.actions import (
    answer,
    audit,
    named_jobs,
    settle,
    stored_tasks,
    what_fits,
)
from penstock.operate.rerun import put_back_keys
from penstock.sentences import counted
from penstock.stores.protocol import Store


def count_retries(store: Store, task: str | None, max_attempts: int | None) -> RetriedJobs:
    """What `retry_failed` would put back now; changes nothing."""
    counts = store.would_retry(task, max_attempts).result()
    return RetriedJobs(counts.failed, counts.dependants, _failed_of_builds(store, task))


def retry_failed(store: Store, task: str | None, max_attempts: int | None) -> RetriedJobs:
    """Put failed jobs back, in slices, and then their dependants.

    Args:
        store: where they are.
        task: only its jobs; None for those of all tasks.
        max_attempts: only jobs that failed at most this many times.
    """
    before = settle(store)
    answer(store.retry_failed(task, max_attempts), store)
    failed, skipped = _told(store, before)
    return RetriedJobs(failed, skipped, _failed_of_builds(store, task))


def retry_keys(store: Store, keys: Iterable[str]) -> RetriedJobs:
    """Put the failed jobs of these keys back, and what was skipped because of them."""
    wanted = [*keys]
    before = settle(store)
    back = put_back_keys(store.retry, wanted, store)
    _, skipped = _told(store, before)
    jobs, unknown = named_jobs(store, (key for key in wanted if key not in back))
    others = {job.key: what_fits(job) for job in jobs}
    return RetriedJobs(len(back), skipped, refused=others, unknown=unknown)


def _told(store: Store, before: Settled) -> tuple[int, int]:
    """How many failed jobs and dependants were put back since then; the log says so."""
    after = settle(store)
    failed = after.failed_total - before.failed_total
    skipped = after.dependants_total - before.dependants_total
    if failed:
        audit(
            store.url,
            "Put back %s that failed and %s skipped because of that",
            counted(failed, "job"),
            counted(skipped, "job"),
        )
    return failed, skipped


def _failed_of_builds(store: Store, task: str | None) -> int:
    tasks = store.stats().result().tasks
    named = [name for name in stored_tasks(store, task) if name is not None] or list(tasks)
    built = [name for name in named if kind_of_name(name).is_built]
    return sum(tasks.get(name, {}).get(JobState.ERROR, 0) for name in built)
