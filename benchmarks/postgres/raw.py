# SPDX-License-Identifier: Apache-2.0
"""How fast are the store's own lease and acknowledge statements, by bare psycopg?

The same tables, filled through the API, and the same two named statements in batches, with a commit
each; nothing of what chooses lanes, counts, tells or runs anything.
"""

from __future__ import annotations

import re
import time
from typing import Any

import psycopg

from benchmarks.measuring import Answer
from benchmarks.queue.workload import GROUPS, noop_app, noop_jobs
from penstock.stores.postgres.bulk_insert import numbers, texts
from penstock.stores.postgres.lane_cache import FRONT
from penstock.stores.sql.row_state import RowState
from penstock.stores.sql.statements import read_queries

BATCH = 256  # jobs of one lease, and of one acknowledgement
WORKER = 1
#: How the store has its statements planned, as it says where a transaction begins.
PLANNING = re.compile(r"set_config\('(enable_\w+|jit|plan_cache_mode)', '(\w+)'")
LANES = "select array_agg(id) from penstock.lanes"

Row = tuple[Any, ...]


class _Bare:
    """One connection, the two statements."""

    def __init__(self, connection: psycopg.Connection[Row]) -> None:
        self._cursor = psycopg.RawCursor(connection)
        queries = read_queries("penstock.stores.postgres")
        self._take, self._end = queries["take_jobs"], queries["end_jobs"]
        for name, value in PLANNING.findall(queries["set_up"]):
            connection.execute(f"set {name} = {value}".encode())
        self._cursor.execute(LANES)
        (self._lanes,) = self._cursor.fetchone() or ([],)

    def lease(self) -> list[Row]:
        fronts = [numbers([mark] * len(self._lanes)) for mark in FRONT]
        parameters = (numbers(self._lanes), BATCH // GROUPS, WORKER, _now(), *fronts)
        rows = self._cursor.execute(self._take, parameters, prepare=True).fetchall()
        if len(rows) != BATCH:
            raise RuntimeError(f"{len(rows)} jobs were leased in place of {BATCH}")
        return rows

    def acknowledge(self, rows: list[Row]) -> None:
        now, count = _now(), len(rows)
        ends = (
            numbers([row[0] for row in rows]),
            numbers([row[1] for row in rows]),
            numbers([int(RowState.DONE)] * count),
            texts(["0"] * count),
            texts([None] * count),
            numbers([now] * count),
            numbers([now] * count),
            WORKER,
        )
        ended = self._cursor.execute(self._end, ends, prepare=True).fetchall()
        if len(ended) != count:
            raise RuntimeError(f"{len(ended)} jobs were ended in place of {count}")


def _now() -> int:
    return round(time.time() * 1e6)


def measure(url: str, total: int) -> Answer:
    """Probe: lease and end jobs batch by batch, then lease as many more alone."""
    batches = total // BATCH
    app, noop = noop_app(url)
    app.enqueue_many(noop_jobs(noop, 2 * batches * BATCH))
    app.close()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("vacuum analyze")
        bare = _Bare(connection)
        start = time.perf_counter()
        for _ in range(batches):
            bare.acknowledge(bare.lease())
        both = time.perf_counter() - start
        start = time.perf_counter()
        for _ in range(batches):
            bare.lease()
        alone = time.perf_counter() - start
    jobs = batches * BATCH
    return {"rate": jobs / both, "lease_rate": jobs / alone}
