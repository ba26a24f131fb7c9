# SPDX-License-Identifier: Apache-2.0
"""Which jobs are measured, and how does a file come to be full of them?"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import apsw

from benchmarks.measuring import Answer
from penstock import Context, JobRequest, Penstock
from penstock.definitions.task import Task
from penstock.stores.sqlite.store import SqliteStore

FILE = "queue.db"  # in the folder of the probe
GROUPS = 8
COPY_SLICE = 12_500  # of each of the GROUPS templates, in one transaction
PREPARING_CACHE_KIB = 256 * 1024
LOG_SECONDS = 60.0  # to empty a log

NoopTask = Task[[int], int]


def file_url(path: Path | str = FILE) -> str:
    """The store in this file."""
    return f"sqlite:///{path}"


def noop_app(url: str) -> tuple[Penstock, NoopTask]:
    """An application with one task that does nothing, on this store."""
    app = Penstock("bench", store=url)

    @app.task()
    async def noop(ctx: Context, n: int) -> int:
        return n

    return app, noop


def noop_jobs(
    task: NoopTask, count: int, *, first: int = 0, groups: int = GROUPS
) -> Iterator[JobRequest[int]]:
    """Jobs with default keys, spread evenly over groups."""
    for n in range(first, first + count):
        yield task.job(n).with_options(group=f"g{n % groups:06}")


def enqueue(path: str, count: int, groups: int = GROUPS) -> Answer:
    """Probe: put no-op jobs into a file through the API."""
    app, noop = noop_app(file_url(path))
    created = app.enqueue_many(noop_jobs(noop, count, groups=groups)).created
    app.close()
    if created != count:
        raise RuntimeError(f"{created} of {count} jobs were created")
    return {"created": created}


def empty_log(path: str) -> None:
    """Put what is in the log of a store into its file, so that nobody pays for it later."""
    with contextlib.closing(apsw.Connection(path)) as connection:
        until = time.monotonic() + LOG_SECONDS
        while connection.execute("pragma wal_checkpoint(truncate)").fetchall()[0][0]:
            if time.monotonic() > until:
                raise RuntimeError(f"The log of {path} stays in use.")
            time.sleep(0.01)  # the store itself is at it


def fill_finished(path: str, count: int) -> Answer:
    """Probe: make a file that has seen many jobs end.

    One job of each group runs for real; its rows are then copied in bulk, and the counters
    multiplied. This is the only place that writes to a store's tables from outside.
    """
    copies = count // GROUPS - 1
    app, noop = noop_app(file_url(path))
    app.enqueue_many(noop_jobs(noop, GROUPS))
    app.run(drain=True)
    app.close()
    connection = apsw.Connection(path)
    connection.execute("pragma synchronous = off").fetchall()
    connection.execute(f"pragma cache_size = -{PREPARING_CACHE_KIB}").fetchall()
    for begin in range(0, copies, COPY_SLICE):
        _copy_ended(connection, min(COPY_SLICE, copies - begin))
    connection.execute("update counters set n = n * ?", (copies + 1,)).fetchall()
    connection.execute("pragma synchronous = full").fetchall()
    connection.execute("pragma wal_checkpoint(truncate)").fetchall()
    connection.close()
    problems = audit(path)["problems"]
    if problems:
        raise RuntimeError(f"The filled file is not sound: {problems}")
    return {"finished": (copies + 1) * GROUPS}


def _copy_ended(connection: apsw.Connection, copies: int) -> None:
    """Copy the jobs with the GROUPS lowest ids, and their history, under new keys."""
    jobs = _columns(connection, "jobs", but=("id", "key"))
    attempts = _columns(connection, "attempts", but=("job_id",))
    old_jobs = ", ".join(f"old.{name}" for name in jobs)
    old_attempts = ", ".join(f"old_attempt.{name}" for name in attempts)
    with connection:
        last = connection.execute("select max(id) from jobs").fetchall()[0][0]
        connection.execute(
            f"""
            with recursive copy (no) as (select 1 union all select no + 1 from copy where no < ?1)
            insert into jobs (key, {", ".join(jobs)})
            select 'noop:' || lower(hex(randomblob(16))), {old_jobs}
            from copy cross join jobs as old on old.id <= ?2
            """,
            (copies, GROUPS),
        ).fetchall()
        connection.execute(
            f"""
            insert into attempts (job_id, {", ".join(attempts)})
            select job.id, {old_attempts}
            from jobs as job cross join jobs as old on old.id <= ?2 and old.lane_id = job.lane_id
            cross join attempts as old_attempt on old_attempt.job_id = old.id
            where job.id > ?1
            """,
            (last, GROUPS),
        ).fetchall()


def _columns(connection: apsw.Connection, table: str, but: tuple[str, ...]) -> list[str]:
    rows = connection.execute(f"pragma table_info({table})").fetchall()
    return [str(row[1]) for row in rows if row[1] not in but]


def audit(path: str) -> Answer:
    """Probe: which invariants does the file break?"""
    store = SqliteStore.open(Path(path))
    try:
        return {"problems": store.check().result()}
    finally:
        store.close()
