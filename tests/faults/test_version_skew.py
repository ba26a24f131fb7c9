# SPDX-License-Identifier: Apache-2.0
"""Versions meet on one file: old stores, migrations that die, newer schemas, old workers.

The tests take the list of migrations as it is. Where a newer Penstock is needed, it is the
present one with one more migration.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from penstock.errors import SchemaTooNew, StoreError
from penstock.model.job import JobState, NewJob, WorkerId
from penstock.model.lease import ConfiguredCaps, JobEnd, LeaseRequest, WorkerInfo
from penstock.stores.sql.statements import read_migrations
from penstock.stores.sqlite.open import PACKAGE
from penstock.stores.sqlite.store import SqliteStore
from tests.faults.old_stores import and_one_more, build, fill_of, rows_of
from tests.faults.power.log import read_log
from tests.faults.power.replay import Campaign, work_to_the_end
from tests.forked import Forked, run_forked
from tests.processes import REPOSITORY
from tests.waiting import wait_until

pytestmark = pytest.mark.faults

NEWEST = len(read_migrations(PACKAGE))
# Not to be done twice, and it moves the rows, as a migration that matters does.
NEXT = """
create table applied (n integer primary key autoincrement, jobs integer);
insert into applied (jobs) select count(*) from jobs;
alter table counters rename column n to total;
"""
WORKER = WorkerId("w")
PATIENCE_SECONDS = 60.0


def version_of(path: Path) -> int:
    """The schema of a store; 0 if there is none."""
    if not path.exists():
        return 0
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    version = connection.pragma("user_version")
    connection.close()
    return int(version)


def times_applied(path: Path) -> int:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    (row,) = connection.execute("select count(*) from applied").fetchall()
    connection.close()
    return int(str(row[0]))


def new_job(key: str) -> NewJob:
    return NewJob(key=key, task="t", payload="{}", group="g")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    script = tmp_path / "next.sql"
    script.write_text(NEXT)
    return script


def migrate_at_once(script: Path, cases: list[tuple[Path, dict[str, object]]]) -> list[int]:
    """Let newer processes open these databases together, armed as said; their exit codes."""
    told = json.dumps([(str(path), rules) for path, rules in cases])
    ran = run_forked(
        [sys.executable, "-m", "tests.faults.launcher", "migrator", str(script), told],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    assert ran.stderr == ""
    codes: list[int] = json.loads(ran.stdout)
    return codes


def test_f72_every_schema_has_a_fill_and_the_newest_one_is_sound(path: Path) -> None:
    missing = [version for version in range(1, NEWEST + 1) if not fill_of(version).exists()]

    assert missing == [], "run `python -m tests.faults.old_stores` before you go on"
    build(path, NEWEST)
    store = SqliteStore.open(path, durability="normal")
    assert store.check().result() == []
    store.close()


@pytest.mark.parametrize("version", range(1, NEWEST))
def test_f72_an_older_store_is_migrated_with_everything_in_it(version: int, path: Path) -> None:
    build(path, version)
    before = rows_of(path)
    states = {row[1] for row in before}

    store = SqliteStore.open(path, durability="normal")

    assert len(states) >= 6  # the fill has nearly every state that there is
    assert version_of(path) == NEWEST
    assert rows_of(path) == before
    assert store.check().result() == []
    assert work_to_the_end(store) == []
    assert store.check().result() == []
    store.close()


def kill_points(missing: int) -> list[tuple[str, int]]:
    steps = [("migrate.step", n) for n in range(1, missing + 1)]
    return [("migrate.begin", 1), *steps, ("migrate.in_tx", 1), ("migrate.committed", 1)]


@pytest.mark.parametrize("version", [0, 1, NEWEST])
def test_f72_a_kill_at_any_step_of_a_migration_leaves_the_old_store_or_the_new(
    version: int, tmp_path: Path, script: Path
) -> None:
    """Goal: resumable. Each point has its own file, and all processes run at once."""
    points = kill_points(NEWEST + 1 - version)
    before = []
    cases: list[tuple[Path, dict[str, object]]] = []
    for number, (point, at) in enumerate(points):
        path, once = tmp_path / f"{number}.db", tmp_path / f"once-{number}"
        once.touch()
        if version:
            build(path, version)
            before = rows_of(path)
        cases.append((path, {point: {"at": at, "once": str(once)}}))

    assert migrate_at_once(script, cases) == [-signal.SIGKILL] * len(points)

    for number, (point, _) in enumerate(points):
        path = tmp_path / f"{number}.db"
        migrated = version > 0 and point == "migrate.committed"  # a new store has no name yet
        assert version_of(path) == (NEWEST + 1 if migrated else version)
        if version and not migrated:
            assert rows_of(path) == before
        if not migrated:
            store = SqliteStore.open(path, durability="normal")  # we know all but the last step
            assert store.check().result() == []
            store.close()
        SqliteStore.open(path, durability="normal", migrations=and_one_more(NEXT)).close()
        assert version_of(path) == NEWEST + 1
        assert times_applied(path) == 1


@pytest.mark.skipif(NEWEST < 2, reason="needs a second migration")
def test_f72_power_loss_in_a_migration_leaves_the_old_store_or_the_new(tmp_path: Path) -> None:
    root, log = tmp_path / "root", tmp_path / "log"
    root.mkdir()
    build(root / "store.db", NEWEST - 1)
    command = [sys.executable, "-m", "tests.faults.power.upgrade", str(root), str(log), "store.db"]
    run_forked(command, check=True, cwd=REPOSITORY, timeout=240)
    campaign = Campaign(tmp_path, seed=72)

    campaign.replay(read_log(log), 25)

    assert campaign.report.sound(), "\n".join(campaign.report.lines())
    assert campaign.report.disks > 10
    assert campaign.report.enqueues == 1  # the fill was there before


def test_f72_a_migration_that_fails_changes_nothing(path: Path) -> None:
    build(path, 1)
    before = rows_of(path)
    broken = and_one_more("create table half (n integer); insert into nowhere values (1);")

    with pytest.raises(StoreError, match="no such table: nowhere"):
        SqliteStore.open(path, durability="normal", migrations=broken)

    assert version_of(path) == 1
    assert rows_of(path) == before
    store = SqliteStore.open(path, durability="normal")
    assert store.check().result() == []
    store.close()


def test_f72_processes_that_open_an_old_file_at_once_migrate_it_once(
    path: Path, script: Path
) -> None:
    build(path, 1)

    assert migrate_at_once(script, [(path, {})] * 6) == [0] * 6
    assert version_of(path) == NEWEST + 1
    assert times_applied(path) == 1


def test_f72_a_newer_schema_is_refused_in_one_sentence_with_exit_code_1(
    path: Path, tmp_path: Path
) -> None:
    SqliteStore.open(path, durability="normal", migrations=and_one_more(NEXT)).close()
    content = path.read_bytes()

    ran = run_forked(
        [
            sys.executable,
            "-m",
            "penstock.cli.main",
            "queue",
            "stats",
            "--store",
            f"sqlite:///{path}",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert ran.returncode == 1
    assert ran.stdout == ""
    (sentence,) = ran.stderr.splitlines()
    assert str(path) in sentence
    assert f"schema {NEWEST + 1}" in sentence
    assert "Upgrade Penstock" in sentence
    assert path.read_bytes() == content


def test_f72_an_old_process_writes_nothing_more_after_a_newer_one_has_migrated(
    path: Path,
) -> None:
    old = SqliteStore.open(path, durability="normal")
    old.register(WorkerInfo(id=WORKER, run_id="r", tasks=("t",)), 600).result()
    old.enqueue([new_job("held"), new_job("ready")]).result()
    request = LeaseRequest(worker=WORKER, tasks=("t",), limit=1, caps=ConfiguredCaps())
    (held,) = old.lease(request).result().jobs
    asyncio.run(old.wait_for_work(0.0))  # it knows of its own work
    new = SqliteStore.open(path, durability="normal", migrations=and_one_more(NEXT))

    writes: list[Callable[[], object]] = [
        lambda: old.enqueue([new_job("late")]).result(),
        lambda: old.lease(request).result(),
        lambda: old.ack(WORKER, [JobEnd(held, JobState.DONE, 1, 2)]).result(),
        lambda: old.beat([WORKER], 600).result(),
        lambda: old.cancel(["ready"]).result(),
        lambda: old.retire(WORKER).result(),
        lambda: asyncio.run(old.wait_for_work(5.0)),  # one that only waits notices, too
        lambda: old.stats().result(),  # a read of what is not there any more
    ]
    for write in writes:
        with pytest.raises(SchemaTooNew) as refusal:
            write()
        text = str(refusal.value)
        assert str(path) in text
        assert f"schema {NEWEST + 1}" in text
        assert "\n" not in text

    old.close()
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    rows = connection.execute("select key, row_state, token from jobs order by id").fetchall()
    assert rows == [("held", 4, 1), ("ready", 2, 0)]
    connection.close()
    new.close()


CONFIG = """
app = "shop.py"
store = "sqlite:///shop.db"
durability = "normal"
[runtime]
lease_ttl_seconds = 2.0
beat_seconds = 0.25
grace_seconds = 1.0
"""
APP = """
import asyncio
from penstock import Context, Penstock

app = Penstock("shop")

@app.task()
async def naps(ctx: Context, seconds: float) -> None:
    await asyncio.sleep(seconds)
"""


@contextmanager
def running_queue(folder: Path) -> Iterator[subprocess.Popen[str]]:
    (folder / "penstock.toml").write_text(CONFIG)
    (folder / "shop.py").write_text(APP)
    process = Forked(
        [sys.executable, "-m", "penstock.cli.main", "queue", "run"],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.communicate(timeout=PATIENCE_SECONDS)


@pytest.mark.parametrize("busy", [True, False], ids=["busy", "idle"])
def test_f72_an_old_worker_stops_in_one_sentence_when_a_newer_process_migrates(
    busy: bool, tmp_path: Path
) -> None:
    path = tmp_path / "shop.db"
    store = SqliteStore.open(path, durability="normal")
    payload = '{"seconds":0.05}'
    jobs = [NewJob(key=f"k{n}", task="naps", payload=payload, group="g") for n in range(2_000)]
    store.enqueue(jobs if busy else jobs[:1]).result()

    with running_queue(tmp_path) as process:
        wait_until(lambda: store.stats().result().states[JobState.DONE] > 0)
        store.close()
        SqliteStore.open(path, durability="normal", migrations=and_one_more(NEXT)).close()
        rows = rows_after(path)
        _, err = process.communicate(timeout=PATIENCE_SECONDS)

    assert process.returncode == 1
    assert "Traceback" not in err
    told = [line for line in err.splitlines() if f"was brought to schema {NEWEST + 1}" in line]
    assert "Start it again with that version." in told[-1]
    assert rows_after(path) == rows


def rows_after(path: Path) -> list[tuple[object, ...]]:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    rows = connection.execute(
        "select id, row_state, token, worker from jobs order by id"
    ).fetchall()
    connection.close()
    return rows
