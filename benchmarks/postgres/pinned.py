# SPDX-License-Identifier: Apache-2.0
"""Does a lease stay quick while a foreign transaction keeps the dead rows of many jobs?

While it is open no vacuum removes anything, and every lease walks past what earlier ones left.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from benchmarks.measuring import Answer, fresh, quantile
from benchmarks.postgres.server import connect, new_database
from benchmarks.postgres.sizes import table_sizes
from benchmarks.runner import Cell, Check, Outcome, Sense, Setup, Table
from penstock.model.job import JobState, LeasedJob, NewJob, WorkerId
from penstock.model.lease import ConfiguredCaps, JobEnd, LeaseRequest, WorkerInfo
from penstock.stores.open import open_store
from penstock.stores.protocol import Store

WORKER = WorkerId("w-bench")
TTL_SECONDS = 3_600.0
BATCH = 100  # jobs that one call adds, leases or ends
GROUPS = 8
BACKLOG = 1_000  # jobs that wait meanwhile
TENTH = 10


def churn(url: str, total: int) -> Answer:
    """Probe: add, lease and end jobs; how long did each lease take, in ms?"""
    store = open_store(url)
    store.register(WorkerInfo(id=WORKER, run_id="bench", tasks=("noop",)), TTL_SECONDS).result()
    request = LeaseRequest(worker=WORKER, tasks=("noop",), limit=BATCH, caps=ConfiguredCaps())
    store.enqueue(_new_jobs(0, BACKLOG)).result()
    waits: list[float] = []
    done = 0
    while done < total:
        store.enqueue(_new_jobs(BACKLOG + done, BATCH)).result()
        start = time.perf_counter()
        leased = store.lease(request).result().jobs
        waits.append((time.perf_counter() - start) * 1e3)
        done += _end(store, leased)
    store.close()
    return {"waits": waits, "done": done}


def _new_jobs(first: int, count: int) -> list[NewJob]:
    return [
        NewJob(key=f"noop:{number}", task="noop", payload='{"n":0}', group=f"g{number % GROUPS}")
        for number in range(first, first + count)
    ]


def _end(store: Store, jobs: Sequence[LeasedJob]) -> int:
    if not jobs:
        raise RuntimeError("A lease found no job, though many wait")
    now = round(time.time() * 1e6)
    ends = [JobEnd(job, JobState.DONE, now, now, result="0") for job in jobs]
    return len(store.ack(WORKER, ends).result())


def measure(setup: Setup) -> Outcome:
    """The same jobs with and without a foreign transaction."""
    total = setup.size(120_000, smoke=3_000)
    free, _ = _run(setup, total, pin=False)
    pinned, dead = _run(setup, total, pin=True)
    return to_outcome(free, pinned, total, dead)


def _run(setup: Setup, total: int, *, pin: bool) -> tuple[list[float], int]:
    with new_database(setup.url) as url:
        open_store(url).close()
        with connect(url) as foreign:
            if pin:
                foreign.execute("begin isolation level repeatable read")
                foreign.execute("select count(*) from pg_class")  # takes the snapshot that it holds
            waits: list[float] = fresh(churn, setup.folder, url=url, total=total)["waits"]
            dead = sum(table.dead_rows for table in table_sizes(url))
    return waits, dead


def to_outcome(free: list[float], pinned: list[float], total: int, dead: int) -> Outcome:
    """The checks and the table."""
    part = max(len(pinned) // TENTH, 1)
    table = Table(
        f"Leases of {BATCH} jobs while {total:,} pass and {BACKLOG:,} wait, each a durable "
        f"transaction; {dead:,} dead rows at the end with a foreign transaction open",
        ("when", "leases", "p50 ms", "p99 ms", "longest ms"),
        (
            _row("nobody holds anything", free),
            _row("a foreign transaction is open", pinned),
            _row("… the first tenth of it", pinned[:part]),
            _row("… the last tenth of it", pinned[-part:]),
        ),
    )
    return Outcome(
        (
            Check(
                "pinned: lease among dead rows, p99 in ms",
                quantile(pinned, 0.99),
                Sense.BELOW,
                50.0,
            ),
            Check(
                "pinned: dead rows that nobody could remove, × jobs",
                dead / total,
                Sense.AT_LEAST,
                1.0,
                timing=False,
            ),
        ),
        (table,),
    )


def _row(when: str, waits: list[float]) -> tuple[Cell, ...]:
    return (when, len(waits), quantile(waits, 0.5), quantile(waits, 0.99), max(waits))
