# SPDX-License-Identifier: Apache-2.0
"""How fast are the bare lease and acknowledge statements? One psycopg connection, nothing else."""

from __future__ import annotations

import time
from typing import Any

import psycopg

from benchmarks.measuring import Answer

BATCH = 256  # jobs of one lease, and of one acknowledgement
SCHEMA = """
create table hot (
    id bigint primary key, lane bigint not null, priority int not null,
    available_at bigint not null, state smallint not null, token bigint not null,
    worker text) with (fillfactor = 70);
create index hot_ready on hot (priority desc, available_at, id) where state = 0;
create index hot_leased on hot (worker) where state = 1;
create table payloads (
    id bigint primary key, key text not null unique, payload text not null,
    created_at bigint not null);
create table ended (
    id bigint primary key, state smallint not null, result text, finished_at bigint not null);
"""
FILL = """
with made as (
    insert into payloads
    select n, 'noop:' || n, '{"n":' || n || '}', 0 from generate_series(1, %s) n returning id)
insert into hot select id, id %% 8, 0, 0, 0, 0, null from made
"""
LEASE = """
with taken as (
    update hot set state = 1, token = token + 1, worker = 'w'
    where ctid = any (array (
        select ctid from hot where state = 0 order by priority desc, available_at, id
        limit %s for update skip locked))
    returning id, token)
select taken.id, taken.token, payloads.key, payloads.payload
from taken join payloads on payloads.id = taken.id
"""
ACKNOWLEDGE = """
with gone as (
    delete from hot using unnest(%s::bigint[], %s::bigint[]) as end_of (id, token)
    where hot.id = end_of.id and hot.token = end_of.token and hot.state = 1 returning hot.id)
insert into ended select id, 3, '0', %s from gone
"""


def measure(url: str, total: int) -> Answer:
    """Probe: lease and end jobs batch by batch, then lease as many more alone."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(SCHEMA)
        connection.execute(FILL, (2 * total,))
        connection.execute("vacuum analyze")
        start = time.perf_counter()
        for _ in range(0, total, BATCH):
            _acknowledge(connection, _lease(connection))
        both = time.perf_counter() - start
        start = time.perf_counter()
        for _ in range(0, total, BATCH):
            _lease(connection)
        alone = time.perf_counter() - start
    jobs = -(-total // BATCH) * BATCH
    return {"rate": jobs / both, "lease_rate": jobs / alone}


def _lease(connection: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    rows = connection.execute(LEASE, (BATCH,)).fetchall()
    if len(rows) != BATCH:
        raise RuntimeError(f"{len(rows)} rows were leased in place of {BATCH}")
    return rows


def _acknowledge(connection: psycopg.Connection[Any], rows: list[tuple[Any, ...]]) -> None:
    ids, tokens = [row[0] for row in rows], [row[1] for row in rows]
    ended = connection.execute(ACKNOWLEDGE, (ids, tokens, round(time.time() * 1e6))).rowcount
    if ended != len(rows):
        raise RuntimeError(f"{ended} rows were ended in place of {len(rows)}")
