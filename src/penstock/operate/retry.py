# SPDX-License-Identifier: Apache-2.0
"""Puts failed jobs back into the queue, with what was skipped because of them."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.model.job import JobState, kind_of_name
from penstock.operate.actions import answer, audit, settle, stored_tasks
from penstock.sentences import counted
from penstock.stores.protocol import Store


@dataclass(frozen=True, slots=True)
class RetriedJobs:
    """How many jobs a retry puts back, and how many it leaves."""

    failed: int
    skipped: int  # because of those
    of_builds: int  # failed as well, and left alone: the same build tries them again


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
    return RetriedJobs(failed, skipped, _failed_of_builds(store, task))


def _failed_of_builds(store: Store, task: str | None) -> int:
    tasks = store.stats().result().tasks
    named = [name for name in stored_tasks(store, task) if name is not None] or list(tasks)
    built = [name for name in named if kind_of_name(name).is_built]
    return sum(tasks.get(name, {}).get(JobState.ERROR, 0) for name in built)
