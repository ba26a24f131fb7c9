# SPDX-License-Identifier: Apache-2.0
"""Purges jobs that ended long ago, with their history; their keys may be used again."""

from __future__ import annotations

from penstock.clock import Clock, to_micros
from penstock.model.views import FIRST_END
from penstock.operate.actions import answer, audit
from penstock.sentences import counted
from penstock.stores.protocol import Store


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
