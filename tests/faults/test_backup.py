# SPDX-License-Identifier: Apache-2.0
"""F34: is a backup whole while workers write, and is nobody from before a restore believed?"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import apsw
import pytest

from penstock.errors import (
    SchemaTooNew,
    StoreBusy,
    StoreCorrupt,
    StoreFailed,
    StoreForeign,
    StoreReplaced,
    UsageError,
)
from penstock.ids import SeededIds
from penstock.model.job import JobState, LeasedJob, NewJob, WorkerId
from penstock.model.lease import ConfiguredCaps, JobEnd, JobRef, LeaseRequest, Verdict, WorkerInfo
from penstock.model.views import BackupReport, RestoreReport
from penstock.model.worker import WorkerStatus
from penstock.process_identity import own_identity
from penstock.stores.sqlite import open as opening
from penstock.stores.sqlite.backup import back_up
from penstock.stores.sqlite.connection import connect
from penstock.stores.sqlite.restore import Restore
from penstock.stores.sqlite.store import SqliteStore
from penstock.stores.sqlite.write_lock import WriteLock
from penstock.testing.clocks import ManualClock
from tests.forked import Forked, run_forked
from tests.processes import MARK_OF_NOBODY, freeze, session_of
from tests.waiting import wait_until

pytestmark = pytest.mark.faults

TTL_SECONDS = 30.0
PENSTOCK = [sys.executable, "-m", "penstock.cli.main"]
SECONDS = 60.0  # for whatever a process must do at last


class World:
    """A store, its backups and its workers on one hand-moved clock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "store.db"
        self.clock = ManualClock()
        self.ids = SeededIds(1)
        self._open: list[SqliteStore] = []

    def open(self, path: Path | None = None) -> SqliteStore:
        store = SqliteStore.open(
            path or self.path, clock=self.clock, boot_clock=self.clock, durability="normal"
        )
        self._open.append(store)
        return store

    def back_up(self, name: str = "backup.db", *, force: bool = False) -> BackupReport:
        return back_up(self.path, self.folder / name, self.ids, force=force)

    def restore(self, name: str = "backup.db") -> RestoreReport:
        return Restore(
            self.folder / name, self.path, self.ids, clock=self.clock, boot_clock=self.clock
        ).run()

    def close(self) -> None:
        for store in self._open:
            store.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


def add(store: SqliteStore, *keys: str, limit: str | None = None) -> None:
    limits = () if limit is None else (limit,)
    jobs = [
        NewJob(key=key, task="t", payload='{"x":1}', group="g", limit_keys=limits) for key in keys
    ]
    store.enqueue(jobs).result()


def register(store: SqliteStore, name: str = "w-old") -> WorkerId:
    worker = WorkerId(name)
    info = WorkerInfo(id=worker, run_id="r", tasks=("t",), host="here", pid=4711)
    store.register(info, TTL_SECONDS).result()
    return worker


def lease(
    store: SqliteStore, worker: WorkerId, limit: int = 100, caps: dict[str, int] | None = None
) -> dict[str, LeasedJob]:
    request = LeaseRequest(worker=worker, tasks=("t",), limit=limit, caps=ConfiguredCaps(caps))
    return {job.key: job for job in store.lease(request).result().jobs}


def done(job: LeasedJob) -> JobEnd:
    return JobEnd(job, JobState.DONE, 1, 2, result='"old"')


def listing(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def test_f34_an_owner_from_before_a_restore_is_refused_by_file_by_worker_and_by_token(
    world: World,
) -> None:
    old = world.open()
    add(old, "a", "b", "c")
    worker = register(old)
    before = lease(old, worker, 1)
    world.back_up()
    after = lease(old, worker)
    old.release(worker, []).result()
    assert set(before) | set(after) == {"a", "b", "c"}
    world.clock.advance(TTL_SECONDS + 1)  # it hangs: its lease is over, its process lives

    report = world.restore()

    assert (report.jobs, report.voided) == (3, 1)
    for job in (*before.values(), *after.values()):
        with pytest.raises(StoreReplaced, match="was removed or replaced"):
            old.ack(worker, [done(job)]).result()
    new = world.open()
    assert new.stats().result().states[JobState.QUEUED] == 3
    # Over a connection of its own (as to a server) it is refused as well: nobody knows the worker.
    jobs = [*before.values(), *after.values()]
    assert new.ack(worker, [done(job) for job in jobs]).result() == [Verdict.STALE] * 3
    # And even the worker that holds the jobs now is refused with a token from before.
    holder = register(new, "w-new")
    again = lease(new, holder)
    assert set(again) == {"a", "b", "c"}
    assert min(job.token for job in again.values()) > max(job.token for job in jobs)
    assert new.ack(holder, [done(job) for job in jobs]).result() == [Verdict.STALE] * 3
    ends = [done(job) for job in again.values()]
    assert new.ack(holder, ends).result() == [Verdict.ACCEPTED] * 3
    assert new.check().result() == []


def test_f34_a_producer_with_the_old_file_open_is_refused_and_loses_nothing(world: World) -> None:
    old = world.open()
    add(old, "a")
    world.back_up()
    world.restore()

    with pytest.raises(StoreReplaced, match="Start again what uses it"):
        add(old, "lost?")
    with pytest.raises(StoreReplaced):
        register(old)

    new = world.open()
    assert new.job("lost?").result() is None
    add(new, "kept")
    assert new.check().result() == []


@pytest.mark.parametrize("wrote", [True, False], ids=["wrote before", "only opened"])
def test_f34_a_producer_beside_a_restore_that_died_before_the_exchange_loses_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, wrote: bool
) -> None:
    """The old log is gone, the old file is still in place: the log alone betrays it."""
    other = world.open()
    add(other, "a")
    old = world.open()
    if wrote:
        add(old, "b")
    world.back_up()

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", die)
        with pytest.raises(KeyboardInterrupt):
            world.restore()

    new = world.open()  # makes a log of its own
    add(new, "new")
    for _ in range(2):
        with pytest.raises(StoreFailed, match="The log of the store"):
            add(old, "lost?")
    assert new.job("a").result() is not None
    assert (new.job("b").result() is not None) == wrote
    assert new.job("lost?").result() is None
    assert new.check().result() == []


def test_f34_tokens_rise_above_those_of_the_replaced_store(world: World) -> None:
    store = world.open()
    add(store, "a")
    world.back_up()
    worker = register(store)
    for _ in range(7):
        given = lease(store, worker)["a"]
        store.release(worker, [JobRef(given.id, given.token)]).result()
    store.retire(worker).result()
    store.close()

    world.restore()
    new = world.open()
    add(new, "b")

    tokens = {key: job.token for key, job in lease(new, register(new, "w-new")).items()}
    assert tokens == {"a": 8, "b": 8}


def test_f34_tokens_jump_where_the_replaced_store_cannot_be_read(world: World) -> None:
    store = world.open()
    add(store, "a")
    world.back_up()
    store.close()
    world.path.write_bytes(b"no database any more" * 1_000)

    report = world.restore()

    assert report.kept is not None
    assert report.kept.read_bytes().startswith(b"no database")
    new = world.open()
    job = lease(new, register(new, "w-new"))["a"]
    assert job.token == world.clock.now_micros + 1


def test_f34_jobs_of_the_backup_that_were_running_are_ready_and_uncharged(world: World) -> None:
    store = world.open()
    add(store, "a", "b", limit="host:x")
    worker = register(store)
    caps = {"host:x": 1}
    assert set(lease(store, worker, caps=caps)) == {"a"}
    world.back_up()
    store.close()
    world.clock.advance(TTL_SECONDS + 1)

    world.restore()

    new = world.open()
    assert new.workers().result() == []
    job = new.job("a").result()
    assert job is not None
    assert (job.state, job.attempts, job.crashes) == (JobState.QUEUED, 0, 0)
    assert new.attempts("a").result()[0].outcome == "lost"
    assert new.check().result() == []
    assert set(lease(new, register(new, "w-new"), caps=caps)) == {"a"}


def test_f34_a_restore_is_refused_while_a_worker_is_alive_and_names_it(world: World) -> None:
    store = world.open()
    add(store, "a")
    world.back_up()
    register(store)
    before = world.path.stat().st_ino

    with pytest.raises(StoreBusy) as refused:
        world.restore()

    assert "w-old (pid 4711 on here)" in str(refused.value)
    assert "nothing was changed" in str(refused.value)
    assert world.path.stat().st_ino == before
    assert not [name for name in listing(world.folder) if "restoring" in name]
    add(store, "b")  # and the store goes on


@pytest.mark.parametrize("supervisor", ["", own_identity()], ids=["none", "alive"])
def test_f34_a_restore_does_not_wait_for_a_worker_that_was_killed_with_its_supervisor(
    world: World, supervisor: str
) -> None:
    store = world.open()
    add(store, "a")
    world.back_up()
    worker = register(store)
    status = WorkerStatus(captured_at=0, process=MARK_OF_NOBODY, supervisor=supervisor)
    store.publish(worker, status.encoded()).result()

    if supervisor:  # it lives, and may start another
        with pytest.raises(StoreBusy, match="1 worker is alive"):
            world.restore()
    else:
        assert world.restore().jobs == 1


def test_f34_the_replaced_store_is_kept_whole_under_a_dated_name(world: World) -> None:
    store = world.open()
    add(store, "a")
    world.back_up()
    add(store, "b")

    report = world.restore()

    assert report.kept is not None
    assert report.kept.name == "store.db.replaced-20250615T150640Z"
    store.close()
    kept = world.open(report.kept)
    assert kept.job("b").result() is not None
    assert kept.check().result() == []
    kept.close()
    assert world.restore(report.kept.name).jobs == 2  # and back again
    assert world.open().job("b").result() is not None


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_f34_a_restore_that_is_killed_at_any_step_leaves_one_whole_store(world: World) -> None:
    """Killed before its first, second, … call that changes names or brings them to the disk."""
    store = world.open(world.folder / "first.db")
    add(store, "a")
    back_up(world.folder / "first.db", world.folder / "backup.db", world.ids)
    add(store, "b")
    store.close()
    found: list[bool] = []

    for step in range(1, 50):
        world.path = world.folder / f"step{step}" / "store.db"
        world.path.parent.mkdir()
        shutil.copy(world.folder / "first.db", world.path)
        lives = _restore_in_child(world, step)
        for kept in world.path.parent.glob("*.replaced-*"):
            if kept.samefile(world.path):  # as the message about two names says
                kept.unlink()
        after = world.open()
        found.append(after.job("b").result() is None)
        assert after.job("a").result() is not None
        assert after.check().result() == []
        after.close()
        if lives:
            break

    assert step > 4
    assert found == sorted(found)  # first the old one, then the new one
    assert (found[0], found[-1]) == (False, True)


def _restore_in_child(world: World, step: int) -> bool:
    """Run a restore that dies before its call number `step`; did it live?"""
    child = os.fork()
    if child == 0:  # pragma: no cover (another process)
        left = step

        def counted(call: Callable[..., Any]) -> Callable[..., Any]:
            def count(*args: Any, **kwargs: Any) -> Any:
                nonlocal left
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*args, **kwargs)

            return count

        for name in ("link", "unlink", "rename", "replace", "fsync"):
            setattr(os, name, counted(getattr(os, name)))
        try:
            world.restore()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) in {0, -signal.SIGKILL}
    return status == 0


def test_f34_who_opens_a_store_while_its_old_file_is_kept_waits_for_the_restore(
    world: World,
) -> None:
    """For a moment the old file has two names; nobody is told to remove one of them."""
    world.open().close()
    kept = world.folder / "store.db.replaced"
    lock = WriteLock(world.path)
    with ThreadPoolExecutor(1) as threads:
        lock.acquire()
        try:
            os.link(world.path, kept)
            opened = threads.submit(world.open)
            assert not wait([opened], timeout=0.3).done
            kept.unlink()
        finally:
            lock.release()
            lock.close()
        assert opened.result(SECONDS).stats().result().states[JobState.QUEUED] == 0


def test_f34_a_store_that_is_restored_while_it_is_opened_is_opened_anew(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = world.open()
    add(store, "a")
    world.back_up()
    add(store, "b")
    store.close()
    replaced: list[Path] = []

    def slow(path: Path) -> apsw.Connection:
        connection = connect(path)
        if path == world.path and not replaced:
            replaced.append(path)
            world.restore()
        return connection

    monkeypatch.setattr(opening, "connect", slow)

    store = world.open()

    add(store, "c")
    keys = [store.job(key).result() is not None for key in ("a", "b", "c")]
    assert keys == [True, False, True]


def test_f34_nothing_stale_lies_beside_a_restored_store(world: World) -> None:
    store = world.open()
    add(store, *(f"k{n}" for n in range(500)))
    world.back_up()
    add(store, "later")
    assert (world.folder / "store.db-wal").stat().st_size > 0

    world.restore()

    assert "store.db-wal" not in listing(world.folder)
    assert "store.db-shm" not in listing(world.folder)
    new = world.open()
    store.close()  # the old connection must not take the new one's log with it
    add(new, "new")
    assert new.job("later").result() is None
    assert new.check().result() == []
    new.close()
    assert stat.S_IMODE(world.path.stat().st_mode) == 0o600


def test_f34_a_backup_is_consistent_while_writers_write(world: World) -> None:
    store = world.open()
    add(store, *(f"first{n}" for n in range(3_000)))
    stop = threading.Event()
    written = 0

    def write() -> None:
        nonlocal written
        while not stop.is_set():
            add(store, *(f"k{written}-{n}" for n in range(20)))
            written += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        reports = [world.back_up(f"b{n}.db") for n in range(5)]
    finally:
        stop.set()
        thread.join()

    assert written > 0
    for number, report in enumerate(reports):
        copy = world.open(world.folder / f"b{number}.db")
        states = copy.stats().result().states
        assert states[JobState.QUEUED] == report.jobs >= 3_000
        assert (report.jobs - 3_000) % 20 == 0  # whole transactions
        assert copy.check().result() == []


def test_f34_a_restore_leaves_its_source_alone(world: World) -> None:
    """Also one that is no backup of ours but a store that was closed, with a log to come."""
    store = world.open(world.folder / "source.db")
    add(store, "a")
    store.close()
    before = {name: (world.folder / name).read_bytes() for name in listing(world.folder)}

    world.restore("source.db")

    after = {name: (world.folder / name).read_bytes() for name in listing(world.folder)}
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) == {"store.db"}


def test_f24_a_backup_without_space_says_so_and_leaves_nothing(world: World) -> None:
    """On a file system of one MiB, in a mount namespace of its own."""
    store = world.open()
    add(store, *(f"k{n}-{'x' * 300}" for n in range(3_000)))
    store.close()
    small = world.folder / "small"
    small.mkdir()
    script = f'mount -t tmpfs -o size=1m small {small} && "$@"; code=$?; ls -A {small}; exit $code'
    namespace = ["unshare", "-rm", "sh", "-c", script, "sh"]
    if subprocess.run([*namespace, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs a mount namespace (unshare -rm) with tmpfs")

    ended = subprocess.run(
        [*namespace, *PENSTOCK, "backup", "small/b.db", "--store", "sqlite:///store.db"],
        cwd=world.folder,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )

    assert ended.returncode == 1
    assert ended.stdout == ""  # nothing is left in the folder
    assert ended.stderr.startswith("No space left while copying the store")
    assert ended.stderr.count("\n") == 1


def test_f34_a_plain_copy_of_the_file_is_no_backup(world: World) -> None:
    """Why docs say that cp is wrong: what was accepted lies in the log."""
    store = world.open()
    add(store, "a")
    shutil.copy(world.path, world.folder / "cp.db")
    world.back_up()

    assert world.open(world.folder / "backup.db").job("a").result() is not None
    try:
        copied = world.open(world.folder / "cp.db").job("a").result()
    except StoreCorrupt:
        copied = None
    assert copied is None


def test_f34_a_backup_is_one_private_file_that_nothing_overwrites(world: World) -> None:
    store = world.open()
    add(store, "a")
    umask = os.umask(0)
    try:
        report = world.back_up()
    finally:
        os.umask(umask)
    target = world.folder / "backup.db"
    first = target.read_bytes()
    add(store, "b")

    with pytest.raises(UsageError, match="--force"):
        world.back_up()
    assert target.read_bytes() == first
    assert report == BackupReport(1, len(first))
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert world.back_up(force=True).jobs == 2
    with pytest.raises(UsageError, match="the store itself"):
        back_up(world.path, world.path, world.ids, force=True)
    beside = {name for name in listing(world.folder) if not name.startswith("store.db")}
    assert beside == {"backup.db"}


def test_f34_a_name_that_is_not_utf_8_is_refused_for_a_backup(world: World) -> None:
    add(world.open(), "a")
    world.back_up()
    name = "b\udcff.db"

    with pytest.raises(UsageError, match="not UTF-8"):
        world.back_up(name)
    try:
        (world.folder / "backup.db").rename(world.folder / name)
    except OSError:
        pytest.skip("needs a file system that takes names of any bytes")
    with pytest.raises(UsageError, match="not UTF-8"):
        world.restore(name)


@pytest.mark.parametrize("end", ["-wal", "-shm", "-turn", "-new", "-journal"])
def test_f34_a_file_that_belongs_to_the_store_is_no_backup(world: World, end: str) -> None:
    store = world.open()
    add(store, "a")
    own = world.folder / f"store.db{end}"
    (world.folder / "link").symlink_to(world.folder)
    before = listing(world.folder)

    for target in (own, world.folder / "link" / own.name):
        for force in (False, True):
            with pytest.raises(UsageError, match="belongs to the store"):
                back_up(world.path, target, world.ids, force=force)
        own.touch()
        with pytest.raises(UsageError, match="belongs to the store"):
            Restore(target, world.path, world.ids).check()
        if own.name not in before:
            own.unlink()

    assert listing(world.folder) == before
    add(store, "b")
    assert store.check().result() == []


PLANTED = {
    "trigger": "create trigger hidden after update on jobs begin delete from edges; end",
    "view": "create view hidden as select 1",
    "index": "drop index jobs_due; create index jobs_due on jobs (id)",
    "tokens": "update meta set value = '9223372036854775000' where name = 'token_floor'",
    "token": "update jobs set token = 9223372036854775000 where id = 7",
}


@pytest.mark.parametrize(
    "trouble", ["truncated", "flipped", "text", "newer", "foreign", "empty", *PLANTED]
)
def test_f34_a_file_that_is_no_sound_backup_changes_nothing(world: World, trouble: str) -> None:
    store = world.open()
    add(store, *(f"k{n}" for n in range(300)))
    world.back_up()
    store.close()
    file = world.folder / "backup.db"
    spoil(file, trouble)
    before = {name: (world.folder / name).read_bytes() for name in listing(world.folder)}

    with pytest.raises((StoreCorrupt, SchemaTooNew)) as refused:
        world.restore()

    assert str(file) in str(refused.value)
    assert {name: (world.folder / name).read_bytes() for name in listing(world.folder)} == before


def spoil(file: Path, trouble: str) -> None:
    data = bytearray(file.read_bytes())
    if trouble == "truncated":
        file.write_bytes(data[: len(data) // 2])
    elif trouble == "flipped":
        for offset in range(4_096, len(data), 4_096):
            data[offset : offset + 16] = b"\xde\xad" * 8
        file.write_bytes(data)
    elif trouble == "text":
        file.write_text("not a database, but long enough to look at" * 100)
    elif trouble == "empty":
        file.write_bytes(b"")
    else:
        connection = apsw.Connection(str(file))
        if trouble in PLANTED:
            connection.execute(PLANTED[trouble])
        elif trouble == "newer":
            connection.pragma("user_version", 99)
        else:
            connection.pragma("application_id", 7)
        connection.close()


def test_f34_a_store_with_a_trigger_that_is_not_ours_is_not_opened(world: World) -> None:
    world.open().close()
    with apsw.Connection(str(world.path)) as connection:
        connection.execute(PLANTED["trigger"])

    with pytest.raises(StoreCorrupt, match="a trigger 'hidden' that Penstock has not made"):
        world.open()


def test_f34_a_store_of_another_program_is_neither_opened_nor_replaced(world: World) -> None:
    store = world.open()
    add(store, "a")
    world.back_up()
    store.close()
    other = World(world.folder / "other")
    other.folder.mkdir()
    connection = apsw.Connection(str(other.path))
    connection.execute("create table songs (name text)")
    connection.close()
    before = other.path.read_bytes()

    with pytest.raises(StoreForeign, match="another program"):
        other.open()
    with pytest.raises(StoreForeign, match="another program"):
        Restore(world.folder / "backup.db", other.path, other.ids).run()

    assert other.path.read_bytes() == before


def test_f34_a_backup_that_cannot_be_finished_leaves_nothing(world: World) -> None:
    store = world.open()
    add(store, *(f"k{n}" for n in range(300)))
    store.close()
    spoil(world.path, "flipped")

    with pytest.raises(StoreCorrupt):
        world.back_up()

    assert [name for name in listing(world.folder) if not name.startswith("store.db")] == []


APP = """
import asyncio, os
from pathlib import Path
from penstock import Context, Penstock

app = Penstock("old")

@app.task()
async def work(ctx: Context) -> str:
    Path(f"started-{ctx.job.key}").touch()
    while not Path("go").exists():
        await asyncio.sleep(0.01)
    return "old"
"""


def penstock(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_forked(
        [*PENSTOCK, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def test_f34_a_frozen_worker_that_wakes_after_a_restore_stops_with_one_sentence(
    tmp_path: Path,
) -> None:
    """Leases before and after the backup, a run that hangs, a restore: its ends reach nobody."""
    (tmp_path / "pipeline.py").write_text(APP)
    (tmp_path / "penstock.toml").write_text(
        "[runtime]\nlease_ttl_seconds = 5\nbeat_seconds = 0.5\ngrace_seconds = 1\n"
    )
    assert penstock(tmp_path, "queue", "enqueue", "work", "a").returncode == 0
    run = Forked(
        [*PENSTOCK, "queue", "run"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        wait_until((tmp_path / "started-a").exists)
        assert penstock(tmp_path, "backup", "backup.db").returncode == 0
        assert penstock(tmp_path, "queue", "enqueue", "work", "b").returncode == 0
        wait_until((tmp_path / "started-b").exists)
        refused = penstock(tmp_path, "restore", "backup.db", "--yes")
        assert refused.returncode == 1
        assert "alive on the store" in refused.stderr

        freeze(session_of(run.pid), tmp_path / ".penstock/old.db")
        wait_until(lambda: penstock(tmp_path, "restore", "backup.db", "--yes").returncode == 0)
        (tmp_path / "go").touch()
        for pid in session_of(run.pid):
            os.kill(pid, signal.SIGCONT)
        _, said = run.communicate(timeout=SECONDS)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
        run.wait()

    assert run.returncode == 1
    assert "Traceback" not in said
    sentences = [line for line in said.splitlines() if "was removed or replaced" in line]
    assert sentences
    assert "Start again what uses it" in sentences[-1]
    store = SqliteStore.open(tmp_path / ".penstock/old.db", durability="normal")
    job = store.job("a").result()
    assert job is not None
    assert (job.state, job.result) == (JobState.QUEUED, None)
    assert store.job("b").result() is None
    assert store.check().result() == []
    store.close()
