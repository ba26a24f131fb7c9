# SPDX-License-Identifier: Apache-2.0
"""F72: another process opens, migrates or closes a store while it is opened or examined.

Nothing is wrong with such a store, so nobody may be told to put a backup in its place. Each test
lets the other process act at one place between two reads, on purpose.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import apsw
import pytest

from penstock.errors import SchemaTooNew, StoreBusy, StoreCorrupt, StoreReadOnly
from penstock.ids import SystemIds
from penstock.model.job import JobState
from penstock.model.views import Finding
from penstock.stores.sql.statements import read_migrations
from penstock.stores.sqlite import location_check
from penstock.stores.sqlite.backup import back_up
from penstock.stores.sqlite.doctor import Checkup, SystemProbe
from penstock.stores.sqlite.open import PACKAGE
from penstock.stores.sqlite.restore import Restore
from penstock.stores.sqlite.store import SqliteStore
from penstock.testing.clocks import ManualClock
from tests.faults import sqlite_world as world
from tests.faults.old_stores import and_one_more, build, rows_of

pytestmark = pytest.mark.faults

NEWEST = len(read_migrations(PACKAGE))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    return folder / "store.db"


def migrate(path: Path) -> None:
    SqliteStore.open(path, durability="normal").close()


@contextmanager
def meanwhile(path: Path, word: str, act: Callable[[], object]) -> Iterator[None]:
    """Another process acts once, just before the first statement on this file with this word."""
    left = [act]

    def trace(cursor: apsw.Cursor, statement: str, _: object) -> bool:
        if left and word in statement and cursor.connection.filename == str(path):
            left.pop()()
        return True

    def watch(connection: apsw.Connection) -> None:
        connection.exec_trace = trace

    apsw.connection_hooks.append(watch)
    try:
        yield
    finally:
        apsw.connection_hooks.remove(watch)
    assert not left, "the other process was never let in"


def examine(path: Path, *, full: bool = False) -> list[Finding]:
    """What a doctor says of the store itself."""
    clock = ManualClock()
    found = list(Checkup(path, SystemProbe(), clock, clock, full=full).findings())
    return [finding for finding in found if finding.check not in ("space", "private")]


def refuse_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> None:
        raise StoreReadOnly("not for us")

    monkeypatch.setattr(location_check, "refuse_unwritable", refuse)


@pytest.mark.parametrize("used", [True, False], ids=["in use", "closed"])
def test_f72_a_store_that_is_migrated_while_it_is_opened_is_opened(path: Path, used: bool) -> None:
    build(path, 1)
    before = rows_of(path)
    other = apsw.Connection(str(path))  # keeps the log, if it has read anything
    if used:
        other.pragma("user_version")

    with meanwhile(path, "from sqlite_schema", lambda: migrate(path)):
        store = SqliteStore.open(path, durability="normal")

    assert rows_of(path) == before
    assert store.check().result() == []
    store.close()
    other.close()


def test_f72_a_store_that_is_migrated_while_a_reader_opens_it_was_older(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(path, 1)
    jobs = len(rows_of(path))

    def upgrade() -> None:
        monkeypatch.undo()
        migrate(path)

    refuse_writing(monkeypatch)
    with (
        meanwhile(path, "from sqlite_schema", upgrade),
        pytest.raises(StoreReadOnly, match="its schema 1 is older"),
    ):
        SqliteStore.open(path, reading_will_do=True)

    refuse_writing(monkeypatch)
    with closing(SqliteStore.open(path, reading_will_do=True)) as store:
        assert sum(store.stats().result().states.values()) == jobs


def test_f72_pages_that_change_under_a_reader_without_locks_are_read_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who may not write reads a file that nobody uses as one that never changes."""
    migrate(path)
    sound = path.read_bytes()
    states = [sound[:4_096] + bytes(len(sound) - 4_096), sound]  # half written, and whole
    refuse_writing(monkeypatch)

    def change(_: apsw.Connection) -> None:
        if states:
            path.write_bytes(states.pop(0))

    apsw.connection_hooks.append(change)
    try:
        store = SqliteStore.open(path, reading_will_do=True)
    finally:
        apsw.connection_hooks.remove(change)

    assert store.check().result() == []
    store.close()


@pytest.mark.parametrize("used", [True, False], ids=["in use", "closed"])
def test_f72_a_store_that_is_migrated_while_it_is_examined_is_well(path: Path, used: bool) -> None:
    build(path, 1)
    path.chmod(0o600)
    other = apsw.Connection(str(path))
    if used:
        other.pragma("user_version")

    with meanwhile(path, "from sqlite_schema", lambda: migrate(path)):
        findings = examine(path)

    assert [finding.text for finding in findings if not finding.ok] == []
    other.close()


def test_f72_a_store_that_a_newer_process_migrates_while_it_is_examined_contradicts_nothing(
    path: Path,
) -> None:
    """The invariants are those of a schema, so they are read from the state that has it."""
    migrate(path)
    with closing(world.open_store(path)) as store:
        store.enqueue(world.new_jobs(3)).result()
        newer = and_one_more("update counters set n = -n")

        def upgrade() -> None:
            SqliteStore.open(path, durability="normal", migrations=newer).close()

        with meanwhile(path, "from counters", upgrade):
            findings = examine(path, full=True)

    assert [finding.text for finding in findings if not finding.ok] == []


def test_f72_a_restore_sees_who_lives_on_a_store_that_a_newer_process_migrates(
    path: Path, tmp_path: Path
) -> None:
    backup = tmp_path / "backup.db"
    newer = and_one_more("drop index jobs_due")

    def upgrade() -> None:
        SqliteStore.open(path, durability="normal", migrations=newer).close()

    with closing(world.open_store(path)) as store:
        world.register(store)
        back_up(path, backup, SystemIds())
        with (
            meanwhile(path, "from sqlite_schema", upgrade),
            pytest.raises(StoreBusy, match="1 worker is alive"),
        ):
            Restore(backup, path, SystemIds()).check()


def lose_log(path: Path) -> tuple[Path, Path]:
    """Leave a store as a process that runs has it, with its log put aside; the log and where."""
    with closing(world.open_store(path)) as store:
        store.enqueue(world.new_jobs(3)).result()
        running = path.parent / "running"
        shutil.copytree(path.parent, running)
    log = running / "store.db-wal"
    return log, log.rename(running / "aside")


@pytest.mark.parametrize("look", ["open", "examine"])
def test_f72_a_log_that_appears_while_its_index_is_read_is_not_missed(
    path: Path, look: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, aside = lose_log(path)
    read_bytes = Path.read_bytes

    def read(file: Path) -> bytes:
        if file.name == "store.db-shm" and aside.exists():
            aside.rename(log)
        return read_bytes(file)

    monkeypatch.setattr(Path, "read_bytes", read)
    if look == "examine":
        assert [
            finding.text for finding in examine(log.with_name("store.db")) if not finding.ok
        ] == []
        return

    with closing(world.open_store(log.with_name("store.db"))) as store:
        assert store.stats().result().states[JobState.QUEUED] == 3


def test_f72_a_reader_of_what_a_newer_process_has_written_does_not_call_it_damage(
    path: Path,
) -> None:
    old = world.open_store(path)
    old.enqueue(world.new_jobs(1)).result()
    newer = and_one_more("update lanes set limit_keys = 'host:1, host:2'")
    SqliteStore.open(path, durability="normal", migrations=newer).close()

    for _ in range(2):
        with pytest.raises(SchemaTooNew, match=f"brought to schema {NEWEST + 1}"):
            old.job_context("k0").result()
    old.close()


def test_f72_damage_is_told_all_the_same(path: Path) -> None:
    migrate(path)
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("drop table counters")

    with pytest.raises(StoreCorrupt, match="without 'counters'"):
        world.open_store(path)
    (ill,) = [finding for finding in examine(path) if not finding.ok]
    assert "without 'counters'" in ill.text
