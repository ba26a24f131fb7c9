# SPDX-License-Identifier: Apache-2.0
"""Filled PostgreSQL stores of older schemas.

The schema is built from the migration files; the rows come from `fills/NNNN.sql`, written by the
code of that time. Each schema has its fill, the newest one too: whoever adds a migration runs
`python -m tests.postgres.old_stores` and commits the file, as long as the code can still make it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from penstock.model.job import STEP, Edge, JobState, NewJob, WorkerId, kind_of_name
from penstock.model.lease import ConfiguredCaps, JobEnd, LeaseRequest, WorkerInfo
from penstock.model.schedule import UnitPlan
from penstock.stores.postgres.open import known_steps, open_postgres
from penstock.stores.protocol import Store
from tests.postgres.cluster import Cluster

FILLS = Path(__file__).resolve().parent / "fills"
WORKER = WorkerId("w")
KINDS = {"schedule:poll": "tick", "dataset:prices#root": "slice", f"{STEP}#root": "step"}

_TABLES = """
select table_name from information_schema.tables
where table_schema = 'penstock' and table_type = 'BASE TABLE' order by 1
"""
_SEQUENCES = "select sequencename, last_value from pg_sequences where schemaname = 'penstock'"
_JOBS = "select key, task, row_state, payload, result, token from penstock.job_rows order by id"


def build(url: str, version: int) -> None:
    """Make a store of this schema with everything in it, as a process of that time left it."""
    open_postgres(url, durability="normal", migrations=known_steps()[:version]).close()
    with psycopg.connect(url) as connection:
        connection.execute(fill_of(version).read_bytes())


def fill_of(version: int) -> Path:
    return FILLS / f"{version:04}.sql"


def rows_of(url: str) -> list[tuple[Any, ...]]:
    """What people would miss: key, task, state, payload and result of every job."""
    with psycopg.connect(url) as connection:
        return connection.execute(_JOBS).fetchall()


def fill(store: Store) -> None:
    """Jobs of every state and kind, with leases, limits and dependants."""
    jobs = [
        _job(key, "t", limit_keys=("host:x",))
        for key in ["done", "failed", "held", "gone", "ready"]
    ]
    jobs += [
        _job("late", "t", delay_seconds=3600.0),
        _job("skipped", "t", after=(Edge("failed"),)),
        _job("waiting", "t", after=(Edge("held"),)),
        _job("build:p:prices@1", "dataset:prices#root", plan_id="p", level=0),
        _job("build:p:end", f"{STEP}#root", plan_id="p", after=(Edge("build:p:prices@1"),)),
    ]
    store.enqueue(jobs).result()
    store.register(WorkerInfo(id=WORKER, run_id="r", tasks=("t",)), 600).result()
    request = LeaseRequest(worker=WORKER, tasks=("t",), limit=4, caps=ConfiguredCaps())
    held = {job.key: job for job in store.lease(request).result().jobs}
    ends = [
        JobEnd(held["done"], JobState.DONE, 1, 2, result="7"),
        JobEnd(held["failed"], JobState.ERROR, 1, 2),
    ]
    store.ack(WORKER, ends).result()
    store.cancel(["gone"]).result()
    while store.settle().result().more:
        continue


def _job(key: str, task: str, **others: Any) -> NewJob:
    payload = f'{{"of":"{key}"}}'
    return NewJob(key=key, task=task, kind=kind_of_name(task), payload=payload, group="g", **others)


def _arm(store: Store) -> None:
    unit = UnitPlan(
        key="schedule:poll:a",
        task="schedule:poll",
        payload="{}",
        group="a",
        partition="a",
        timing="every 10 s",
        first_at=1,
    )
    store.arm("app", [unit]).result()


def write_fill(url: str, version: int, units_since: int = 6, pauses_since: int = 12) -> Path:
    """Run the present code on a new store and write down the rows that it leaves."""
    store = open_postgres(url, durability="normal", migrations=known_steps()[:version])
    fill(store)
    if version >= units_since:
        _arm(store)
    if version >= pauses_since:
        store.pause_units("schedule:poll").result()
    store.close()
    with psycopg.connect(url) as connection:
        lines = [*_dump(connection)]
    target = fill_of(version)
    target.parent.mkdir(exist_ok=True)
    target.write_text("\n".join(lines) + "\n")
    return target


def _dump(connection: psycopg.Connection[Any]) -> Iterator[str]:
    yield "-- SPDX-License-Identifier: Apache-2.0"
    yield "-- Written by tests/postgres/old_stores.py."
    for (table,) in connection.execute(_TABLES).fetchall():
        if table == "schema_versions":
            continue
        name = sql.Identifier("penstock", table)
        cursor = connection.execute(sql.SQL("select * from {}").format(name))
        yield f"delete from penstock.{table};"
        columns = ", ".join(column.name for column in cursor.description or ())
        for row in cursor.fetchall():
            values = sql.SQL(", ").join(map(sql.Literal, row)).as_string(connection)
            insert = f"insert into penstock.{table} ({columns}) overriding system value"
            yield f"{insert} values ({values});"
    for sequence, last in connection.execute(_SEQUENCES).fetchall():
        if last is not None:
            yield f"select setval('penstock.{sequence}', {last});"


if __name__ == "__main__":
    with Cluster() as cluster:
        newest = len(known_steps())
        sys.stdout.write(f"{write_fill(cluster.create_database('fill'), newest)}\n")
