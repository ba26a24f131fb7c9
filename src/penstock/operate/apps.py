# SPDX-License-Identifier: Apache-2.0
"""Renames apps of a store, and gives them what has no owner."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.errors import UsageError
from penstock.model.job import JobId
from penstock.model.names import check_app_name
from penstock.model.views import Moved
from penstock.operate.actions import answer, audit
from penstock.sentences import counted
from penstock.stores.protocol import Store
from penstock.stores.store_future import Reply
from penstock.terminal_text import escaped


def rename(store: Store, old: str, new: str) -> int:
    """Give an app another name; how many jobs moved to an app that had it already."""
    check_app_name(new)
    if old == new:
        raise UsageError(f"The app is called {old!r} already.")
    count = _to_the_end(store, lambda after: store.rename_app(old, new, after))
    audit(store.url, "Renamed the app %s to %s", escaped(old), escaped(new))
    return count


def adopt(store: Store, app: str, tasks: Sequence[str]) -> int:
    """Give an app the jobs without an owner, of these tasks or all; how many there were."""
    wanted = list(tasks) or None
    count = _to_the_end(store, lambda after: store.adopt_jobs(app, wanted, after))
    audit(store.url, "Gave the app %s %s without an owner", escaped(app), counted(count, "job"))
    return count


def _to_the_end(store: Store, step: Callable[[JobId], Reply[Moved]]) -> int:
    moved = answer(step(JobId(0)), store)
    count = moved.count
    while moved.more:
        moved = answer(step(moved.last), store)
        count += moved.count
    return count
