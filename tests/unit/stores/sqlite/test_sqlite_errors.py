# SPDX-License-Identifier: Apache-2.0
"""Is every trouble with the file told in one sentence, and does nothing get lost?"""

from __future__ import annotations

import os
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from penstock.errors import (
    SchemaTooNew,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFailed,
    StoreFull,
    StoreReadOnly,
    StoreUnsupported,
)
from penstock.model.job import JobState, NewJob, WorkerId
from penstock.model.lease import ConfiguredCaps, JobEnd, LeaseRequest, Verdict, WorkerInfo
from penstock.stores.sql.statements import read_migrations
from penstock.stores.sqlite import location_check
from penstock.stores.sqlite.connection import mapped_errors
from penstock.stores.sqlite.location_check import file_system_of
from penstock.stores.sqlite.open import PACKAGE
from penstock.stores.sqlite.store import SqliteStore
from tests.faults.sqlite_world import NOBODY, as_nobody

WORKER = WorkerId("w-1")


def open_store(path: Path) -> SqliteStore:
    return SqliteStore.open(path, durability="normal")


def new_jobs(count: int, size: int = 10) -> list[NewJob]:
    payload = '{"text":"' + "x" * size + '"}'
    return [NewJob(key=f"k{n}", task="t", payload=payload, group="g") for n in range(count)]


def lease(store: SqliteStore, limit: int) -> list[JobEnd]:
    store.register(WorkerInfo(id=WORKER, run_id="r", tasks=("t",)), 60).result()
    request = LeaseRequest(worker=WORKER, tasks=("t",), limit=limit, caps=ConfiguredCaps())
    jobs = store.lease(request).result().jobs
    return [JobEnd(job, JobState.DONE, 1, 2, result='"' + "y" * 5_000 + '"') for job in jobs]


def one_sentence(error: pytest.ExceptionInfo[StoreError], path: Path) -> None:
    text = str(error.value)
    assert str(path) in text
    assert "\n" not in text
    assert text.endswith(".")
    assert len(text) < 400


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "store.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    store = open_store(path)
    yield store
    store.close()


def limit_pages(store: SqliteStore, more: int | None) -> None:
    """Let the file grow by so many pages and no more; None lifts the limit."""
    connection: apsw.Connection = store._writer._session._connection  # type: ignore[union-attr]
    pages = connection.pragma("page_count")
    connection.pragma("max_page_count", pages + more if more is not None else 2**30)


def test_a_full_disk_in_the_middle_of_a_statement_is_store_full_and_changes_nothing(
    store: SqliteStore, path: Path
) -> None:
    store.enqueue(new_jobs(5)).result()
    limit_pages(store, 3)

    with pytest.raises(StoreFull) as error:
        store.enqueue([NewJob(key="big", task="t", payload="1" * 500_000, group="g")]).result()

    one_sentence(error, path)
    assert store.job("big").result() is None
    assert store.stats().result().states[JobState.QUEUED] == 5
    limit_pages(store, None)
    store.enqueue([NewJob(key="big", task="t", payload="1" * 500_000, group="g")]).result()
    assert store.check().result() == []


def test_an_acknowledgement_on_a_full_disk_can_be_repeated_when_there_is_space(
    store: SqliteStore,
) -> None:
    store.enqueue(new_jobs(20)).result()
    ends = lease(store, 20)
    limit_pages(store, 2)

    with pytest.raises(StoreFull):
        store.ack(WORKER, ends).result()

    assert store.stats().result().states[JobState.IN_PROGRESS] == 20
    limit_pages(store, None)
    assert store.ack(WORKER, ends).result() == [Verdict.ACCEPTED] * 20
    assert store.check().result() == []


def test_a_full_disk_refuses_the_whole_transaction_with_the_same_word(store: SqliteStore) -> None:
    limit_pages(store, 3)
    outcomes: list[type[BaseException] | None] = []

    def put(n: int) -> None:
        try:
            store.enqueue(
                [NewJob(key=f"b{n}", task="t", payload="1" * 300_000, group="g")]
            ).result()
            outcomes.append(None)
        except BaseException as error:
            outcomes.append(type(error))

    threads = [threading.Thread(target=put, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert outcomes == [StoreFull] * 6
    limit_pages(store, None)


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (apsw.BusyError, StoreBusy),
        (apsw.LockedError, StoreBusy),
        (apsw.FullError, StoreFull),
        (apsw.ReadOnlyError, StoreReadOnly),
        (apsw.PermissionsError, StoreReadOnly),
        (apsw.CantOpenError, StoreReadOnly),
        (apsw.CorruptError, StoreCorrupt),
        (apsw.NotADBError, StoreCorrupt),
        (apsw.FormatError, StoreCorrupt),
        (apsw.IOError, StoreFailed),
        (apsw.SQLError, StoreError),
    ],
)
def test_every_error_of_sqlite_has_a_sentence_with_the_file(
    raised: type[apsw.Error], expected: type[StoreError], path: Path
) -> None:
    with pytest.raises(expected) as error, mapped_errors(path, "testing"):
        raise raised("details")

    assert type(error.value) is expected
    one_sentence(error, path)


def test_an_error_inside_an_operation_is_told_as_ours(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.stores.sql import workers

    def broken(*args: object) -> None:
        raise apsw.IOError("disk I/O error")

    monkeypatch.setattr(workers, "set_paused", broken)

    with pytest.raises(StoreFailed):
        store.set_paused(True).result()
    with pytest.raises(StoreFailed):  # the fate of the last transaction is unknown
        store.enqueue(new_jobs(1)).result()


def test_a_text_file_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("these are my notes, do not lose them\n" * 100)
    before = path.read_bytes()

    with pytest.raises(StoreCorrupt) as error:
        open_store(path)

    one_sentence(error, path)
    assert path.read_bytes() == before


def test_a_damaged_file_is_refused_and_its_bytes_stay(path: Path) -> None:
    store = open_store(path)
    store.enqueue(new_jobs(500, size=200)).result()
    store.close()
    data = bytearray(path.read_bytes())
    assert len(data) > 60_000
    for offset in range(4_096, len(data), 4_096):
        data[offset : offset + 64] = b"\xde\xad" * 32
    path.write_bytes(data)

    with pytest.raises(StoreCorrupt) as error:
        _use(path)

    one_sentence(error, path)
    assert path.read_bytes()[4_096 : 4_096 + 64] == b"\xde\xad" * 32


def _use(path: Path) -> None:
    store = open_store(path)
    try:
        store.stats().result()
        store.enqueue(new_jobs(600)).result()
    finally:
        store.close()


def test_a_folder_in_the_place_of_the_file_is_told_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as error:
        open_store(tmp_path)

    one_sentence(error, tmp_path)


def test_a_file_in_the_place_of_the_folder_is_told_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(StoreError) as error:
        open_store(tmp_path / "file" / "store.db")

    one_sentence(error, tmp_path / "file" / "store.db")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody who is refused")
@pytest.mark.parametrize("case", ["file", "folder", "missing"])
def test_a_store_that_may_not_be_written_is_told_in_one_sentence(case: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        path = folder / "store.db"
        if case != "missing":
            store = open_store(path)
            store.enqueue(new_jobs(3)).result()
            store.close()
            path.chmod(0o644)
        if case == "folder":
            os.chown(path, NOBODY, NOBODY)

        kind, _, sentence = as_nobody(lambda: open_store(path)).partition(" ")

        assert kind == "StoreReadOnly", sentence
        assert str(path) in sentence
        assert "\n" not in sentence
        if case != "missing":
            store = open_store(path)
            assert store.stats().result().states[JobState.QUEUED] == 3
            store.close()


def test_a_newer_schema_is_refused_and_nothing_is_changed(path: Path) -> None:
    open_store(path).close()
    known = len(read_migrations(PACKAGE))
    connection = apsw.Connection(str(path))
    connection.pragma("user_version", known + 1)
    connection.close()
    before = path.read_bytes()

    with pytest.raises(SchemaTooNew) as error:
        open_store(path)

    one_sentence(error, path)
    assert f"schema {known + 1}" in str(error.value)
    assert path.read_bytes() == before


def test_a_failed_opening_leaves_no_descriptor_open(path: Path) -> None:
    open_store(path).close()
    connection = apsw.Connection(str(path))
    connection.pragma("user_version", 99)
    connection.close()
    before = len(os.listdir("/proc/self/fd"))

    for _ in range(5):
        with pytest.raises(SchemaTooNew):
            open_store(path)

    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "9p", "fuse.sshfs", "smb3"])
def test_a_network_file_system_is_refused_before_anything_is_written(
    kind: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(location_check, "file_system_of", lambda folder: kind)

    with pytest.raises(StoreUnsupported) as error:
        open_store(path)

    one_sentence(error, path)
    assert kind in str(error.value)
    assert not path.exists()


def test_the_file_system_is_that_of_the_innermost_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = (
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "30 22 0:5 / /srv rw shared:1 - xfs /dev/sdb1 rw\n"
        "31 30 0:6 / /srv/my\\040share rw - nfs4 server:/share rw\n"
        "32 30 0:7 / /srv/my rw master:2 shared:3 - tmpfs tmpfs rw\n"
    )
    read_text = Path.read_text

    def fake(self: Path, *args: str, **kwargs: str) -> str:
        return table if str(self) == "/proc/self/mountinfo" else read_text(self, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", fake)

    assert file_system_of(Path("/home/me")) == "ext4"
    assert file_system_of(Path("/srv")) == "xfs"
    assert file_system_of(Path("/srv/data")) == "xfs"
    assert file_system_of(Path("/srv/my share/x")) == "nfs4"
    assert file_system_of(Path("/srv/my/x")) == "tmpfs"


def test_files_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path = tmp_path / "made" / "store.db"
        store = open_store(path)
        store.enqueue(new_jobs(10)).result()

        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        names = {entry.name for entry in path.parent.iterdir()}
        assert {"store.db", "store.db-wal", "store.db-shm", "store.db-turn"} <= names
        for entry in path.parent.iterdir():
            assert stat.S_IMODE(entry.stat().st_mode) == 0o600, entry
        store.close()
    finally:
        os.umask(before)


def test_another_connection_that_holds_the_file_is_waited_for(store: SqliteStore) -> None:
    path = Path(store.url.removeprefix("sqlite:///"))
    other = apsw.Connection(str(path))
    other.execute("begin immediate")
    reply = store.enqueue(new_jobs(1))

    began = time.monotonic()
    with pytest.raises(TimeoutError):  # certain: nothing happened
        reply.result(0.05)
    assert time.monotonic() - began < 10  # not until the file is free, which it is not
    second = store.enqueue(new_jobs(2))
    threading.Timer(0.1, lambda: other.execute("rollback")).start()

    assert second.result(10).created == {"k0", "k1"}
    other.close()


def test_a_store_that_is_closed_refuses_everything_and_closes_again(path: Path) -> None:
    store = open_store(path)
    store.close()
    store.close()

    for reply in (store.enqueue(new_jobs(1)), store.stats(), store.job("k")):
        with pytest.raises(StoreError):
            reply.result(1)


def test_f88_a_store_that_every_user_may_change_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "store.db"
    SqliteStore.open(path).close()

    for file, mode in ((path, 0o666), (path.parent, 0o777)):
        before = file.stat().st_mode
        file.chmod(mode)
        with pytest.raises(StoreUnsupported, match=f"mode {mode:04o}. Close it with 'chmod o-w"):
            SqliteStore.open(path)
        file.chmod(before)

    path.parent.chmod(0o1777)  # as /tmp: others cannot replace what is ours
    SqliteStore.open(path).close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("end", ["-wal", "-shm", "-journal", "-turn"])
@pytest.mark.parametrize("is_new", [True, False])
def test_what_another_user_has_put_beside_a_store_is_not_taken_for_a_part_of_it(
    tmp_path: Path, end: str, is_new: bool
) -> None:
    """In a folder such as /tmp: a log of his would hold, and show him, what we write."""
    path = tmp_path / "shared" / "store.db"
    path.parent.mkdir(mode=0o777)
    path.parent.chmod(0o1777)
    if not is_new:
        SqliteStore.open(path).close()
    planted = path.with_name(path.name + end)
    planted.unlink(missing_ok=True)
    planted.touch()
    os.chown(planted, NOBODY, NOBODY)

    with pytest.raises(StoreUnsupported, match="belongs to another user") as refused:
        SqliteStore.open(path)
    planted.unlink()
    mine = tmp_path / "mine"
    mine.write_text("precious")
    mine.chmod(0o644)
    planted.symlink_to(mine)
    with pytest.raises(StoreUnsupported, match="is not a file"):
        SqliteStore.open(path)

    assert str(planted) in str(refused.value)
    assert (mine.read_text(), mine.stat().st_mode & 0o777) == ("precious", 0o644)
    planted.unlink()
    SqliteStore.open(path).close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_members_of_a_group_share_a_store_that_their_group_may_write(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    SqliteStore.open(path).close()
    path.chmod(0o660)
    turn = path.with_name("store.db-turn")
    os.chown(turn, NOBODY, -1)
    turn.chmod(0o660)

    SqliteStore.open(path).close()
