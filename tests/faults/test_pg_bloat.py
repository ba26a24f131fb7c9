# SPDX-License-Identifier: Apache-2.0
"""What does a lease cost while a foreign transaction keeps PostgreSQL from cleaning up?

The benchmark measures it with 100,000 dead rows; here are fewer, and a bound that only a walk over
all of them for each job would break.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import psycopg
import pytest

from penstock.model.job import JobState, NewJob
from penstock.stores.postgres.open import open_postgres
from penstock.stores.protocol import Store
from tests.faults.races import done, register, take
from tests.waiting import wait_until

pytestmark = pytest.mark.faults

DEAD = 20_000
BATCH = 1_000
LOOKS = 60
BOUND_SECONDS = 0.5


@pytest.fixture
def pinned(empty_store: Callable[[], str]) -> Iterator[str]:
    """A store in a database where an old transaction still sees everything."""
    url = empty_store()
    with psycopg.connect(url) as foreign:
        foreign.execute("begin isolation level repeatable read")
        foreign.execute("select count(*) from penstock.jobs")
        yield url
        foreign.rollback()


def _put(store: Store, first: int, count: int) -> None:
    jobs = [
        NewJob(key=f"k{n}", task="t", payload="{}", group="g") for n in range(first, first + count)
    ]
    store.enqueue(jobs).result()


def _dead(connection: psycopg.Connection[tuple[int]]) -> int:
    asked = "select n_dead_tup from pg_stat_user_tables where relname = 'hot'"
    return (connection.execute(asked).fetchone() or (0,))[0]


def test_f41_a_lease_stays_quick_among_dead_rows_that_cannot_be_removed(pinned: str) -> None:
    with closing(open_postgres(pinned, durability="normal")) as store:
        worker = register(store, "w", ttl=1e6)
        for first in range(0, DEAD, BATCH):
            _put(store, first, BATCH)
            for _ in range(2):
                jobs = take(store, worker, BATCH)
                store.ack(worker, [done(job) for job in jobs]).result()
        with psycopg.connect(pinned, autocommit=True) as connection:
            connection.execute("vacuum penstock.hot")
            wait_until(lambda: _dead(connection) >= DEAD)  # the vacuum could do nothing
        _put(store, DEAD, LOOKS)
        took = []
        for _ in range(LOOKS):
            began = time.perf_counter()
            (job,) = take(store, worker, 1)
            took.append(time.perf_counter() - began)
            store.ack(worker, [done(job)]).result()

        assert statistics.median(took) < BOUND_SECONDS
        assert store.stats().result().states[JobState.DONE] == DEAD + LOOKS
        assert store.check().result() == []
