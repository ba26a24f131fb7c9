# SPDX-License-Identifier: Apache-2.0
"""What a program may ask of jobs that have ended: try them again, run them again, forget them."""

from __future__ import annotations

from collections.abc import Collection

from penstock.clock import Duration, SystemClock, to_micros, to_seconds
from penstock.errors import UsageError
from penstock.model.views import PurgedJobs, RerunJobs, RetriedJobs
from penstock.operate import purge as operate_purge
from penstock.operate import rerun as operate_rerun
from penstock.operate import retry as operate_retry
from penstock.stores.protocol import Store


def retry(store: Store, keys: Collection[str], task: str | None) -> RetriedJobs:
    """Put failed jobs back, named by keys or by their task."""
    _check("retry", keys, task)
    if task is not None:
        return operate_retry.retry_failed(store, task, None)
    return operate_retry.retry_keys(store, keys)


def rerun(store: Store, keys: Collection[str], task: str | None, *, fresh: bool) -> RerunJobs:
    """Run done jobs again, named by keys or by their task."""
    _check("rerun", keys, task)
    return operate_rerun.rerun(store, keys, task, fresh=fresh)


def purge(
    store: Store, keys: Collection[str], task: str | None, older_than: Duration | None
) -> PurgedJobs:
    """Forget ended jobs, named by keys, by their task, or by their age."""
    if older_than is None or keys:
        _check("purge", keys, task if older_than is None else "older_than=")
    if keys:
        return operate_purge.purge_keys(store, keys)
    clock = SystemClock()
    age = None if older_than is None else to_seconds(older_than)
    if task is not None:
        before = None if age is None else to_micros(clock.now() - age)
        return operate_purge.purge_task(store, task, before)
    return PurgedJobs(operate_purge.purge(store, age or 0.0, clock))


def _check(verb: str, keys: Collection[str], task: str | None) -> None:
    if bool(keys) == (task is not None):
        raise UsageError(
            f'app.{verb} takes keys of jobs or task=, one of the two: app.{verb}("page-1"), or '
            f"app.{verb}(task=summarise)."
        )
