# SPDX-License-Identifier: Apache-2.0
"""How does a test get a filled store of an older schema?

The schema is built from the migration files; the rows come from `fills/NNNN.sql`, written by the
code of that time. Each schema has its fill, the newest one too: whoever adds a migration runs
`python -m tests.faults.old_stores` and commits the file, as long as the code can still make it.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import apsw

from penstock.clock import BootTime
from penstock.model.job import AttemptError, ErrorCategory, JobState
from penstock.model.journal import Answer, CallKey, CallRef, Intent
from penstock.model.lease import (
    ConfiguredCaps,
    JobEnd,
    JobFailure,
    JobRef,
    LeaseRequest,
    Rearm,
    SetCursor,
    StageManifest,
)
from penstock.model.provider import CooldownKey, ProviderModelKey
from penstock.model.run import RunPart
from penstock.model.schedule import PreflightResult, UnitPlan
from penstock.model.spending import Amount, Budget, Period
from penstock.stores.sql.statements import Migration, read_migrations
from penstock.stores.sqlite.open import PACKAGE
from tests.faults.power.recorder import Recorder
from tests.faults.power.workload import Run

FILLS = Path(__file__).resolve().parent / "fills"
SEED, STEPS = 11, 120
_TABLES = (
    "select name from pragma_table_list where schema = 'main' and type = 'table' order by name"
)


class BootOfThatTime:
    """The clock of a machine that has long been started anew."""

    def boot_time(self) -> BootTime:
        return BootTime("long ago", 1_000_000)


def build(path: Path, version: int) -> None:
    """Make a store of this schema with everything in it, as a process of that time left it."""
    connection = apsw.Connection(str(path))
    connection.pragma("journal_mode", "wal")
    with connection:
        for step in read_migrations(PACKAGE)[:version]:
            connection.execute(step.script).fetchall()
        connection.execute(fill_of(version).read_text()).fetchall()
        connection.pragma("user_version", version)
    connection.close()


def fill_of(version: int) -> Path:
    return FILLS / f"{version:04}.sql"


def rows_of(path: Path) -> list[list[object]]:
    """What people would miss: key, state, result and error of every job."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    jobs = connection.execute("select key, row_state, payload, result, token from jobs order by id")
    rows = [list(row) for row in jobs.fetchall()]
    connection.close()
    return rows


def and_one_more(script: str) -> list[Migration]:
    """All migrations there are, and one of a newer Penstock."""
    steps = read_migrations(PACKAGE)
    return [*steps, Migration(len(steps) + 1, "of_the_test.sql", script)]


def write_fill(folder: Path) -> Path:
    """Run the present code for a while and write down the rows it leaves."""
    path = folder / "store.db"
    run = Run(
        path,
        Recorder(folder, path.name),
        SEED,
        "normal",
        boot_clock=BootOfThatTime(),
        sizes=(1, 40),
    )
    run.go(STEPS)
    run.consumer.set_cap("host:1", 1).result()
    _hold(run, 1)
    run.reap()  # leaves a suspect
    _hold(run, 20)  # more than the caps allow: lanes are parked
    run.revoke()  # leaves a lease that is detached
    job = run.held.pop()
    staged = StageManifest(
        dataset="s", at=1, version="1", basis=0, document="{}", plan_id="p", level=1
    )
    end = JobEnd(job, JobState.DONE, 1, 2, effects=(staged,))
    run.consumer.ack(run.worker, [end]).result()
    run.consumer.save_learned({ProviderModelKey("ai", "m"): '{"ceiling": 12}'}).result()
    run.consumer.begin_cooldown(CooldownKey("ai", "m", "a1b2"), 3_600, "{}").result()
    _buy(run)
    _schedule(run)
    run.close()
    target = fill_of(len(read_migrations(PACKAGE)))
    target.write_text("\n".join(_dump(path)) + "\n")
    return target


def _buy(run: Run) -> None:
    """Leave calls in every state, and what a run says of itself."""
    store, job = run.consumer, run.held[0]
    keys = [CallKey(job.id, name, 0) for name in ("answered", "closed", "held", "open")]
    intents = [Intent(key, job.token, "r", "fetch", "ai", "m", Amount(9, 90)) for key in keys]
    store.intend(intents, [Budget("all", Period.RUN, micros=100)]).result()
    store.answered([Answer(keys[0], 200, (("date", "now"),), b"reply", Amount(7, 70))]).result()
    store.closed([CallRef(keys[1], job.token)]).result()
    store.held([CallRef(keys[2], job.token)]).result()
    store.save_run(RunPart("r", run.worker, 1, "{}")).result()


def _schedule(run: Run) -> None:
    """Leave units that wait, have ticked, failed or are retired, and what was checked before."""
    store, task = run.consumer, "schedule:poll"
    plans = [
        UnitPlan(
            key=f"{task}:{name}",
            task=task,
            payload="{}",
            group=name,
            partition=name,
            timing="every 10 s",
            first_at=1,
        )
        for name in ("failed", "retired", "ticked", "waits")
    ]
    store.arm("app", plans).result()
    request = LeaseRequest(worker=run.worker, tasks=(task,), limit=4, caps=ConfiguredCaps())
    leased = {job.partition: job for job in store.lease(request).result().jobs}
    job, ticked = leased["failed"], leased["ticked"]
    end = JobEnd(ticked, JobState.DONE, 1, 2, effects=(SetCursor(ticked.key, "7"), Rearm(9, 1)))
    store.ack(run.worker, [end]).result()
    failure = JobFailure(
        ref=JobRef(job.id, job.token),
        key=job.key,
        task=job.task,
        error=AttemptError(ErrorCategory.OWN, "ValueError", "no"),
        started_at=1,
        ended_at=2,
        delay_seconds=60.0,
        charge=True,
        ends=False,
    )
    store.fail_and_retry(run.worker, [failure]).result()
    store.retire_units([f"{task}:retired"]).result()
    store.pause_units(f"{task}:waits").result()
    check = PreflightResult(unit="preflight:up:a", name="up", partition="a", value="1")
    store.keep_preflights("app", [check]).result()


def _hold(run: Run, jobs: int) -> None:
    while len(run.held) < jobs:
        run.enqueue_batch()
        run.lease()


def _dump(path: Path) -> Sequence[str]:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    lines = ["-- SPDX-License-Identifier: Apache-2.0", "-- Written by tests/faults/old_stores.py."]
    tables = [str(row[0]) for row in connection.execute(_TABLES).fetchall()]
    for table in tables:
        if table in ("sqlite_schema", "sqlite_stat1", "sqlite_stat4"):
            continue
        cursor = connection.execute(f"select * from {table}")
        rows = cursor.fetchall()
        if not rows:
            continue
        names = [
            str(row[0])
            for row in connection.execute(f"select name from pragma_table_info('{table}')")
        ]
        lines.append(f"delete from {table};")
        lines.append(f"insert into {table} ({', '.join(names)}) values")
        values = [f"({','.join(apsw.format_sql_value(v) for v in row)})" for row in rows]
        lines += [f"{value}," for value in values[:-1]] + [f"{values[-1]};"]
    connection.close()
    return lines


if __name__ == "__main__":
    FILLS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        sys.stdout.write(f"{write_fill(Path(folder))}\n")
