# SPDX-License-Identifier: Apache-2.0
"""F32 and F33: where may a store be, under which names, and with which SQLite?"""

from __future__ import annotations

import mmap
import os
import subprocess
import threading
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from penstock.errors import StoreUnsupported
from penstock.stores.sqlite import location_check
from penstock.stores.sqlite.lock_holders import write_lock_holders
from penstock.stores.sqlite.store import SqliteStore
from tests.faults import sqlite_world as world
from tests.faults.busy_storm import storm
from tests.faults.tiny_fuse import mount_fuse

#: Whatever SQLite the system has, as in a person's shell. Old ones look at one lock only.
CLOSER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("select count(*) from jobs").fetchall()
connection.close()
"""


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("nfs", "a network file system (nfs)"),
        ("nfs4", "a network file system (nfs4)"),
        ("cifs", "a network file system (cifs)"),
        ("smb3", "a network file system (smb3)"),
        ("9p", "a network file system (9p)"),
        ("glusterfs", "a network file system (glusterfs)"),
        ("fuse.sshfs", "not known to be local (fuse.sshfs)"),
        ("fuse.s3fs", "not known to be local (fuse.s3fs)"),
        ("fuse.rclone", "not known to be local (fuse.rclone)"),
        ("fuse", "not known to be local (fuse)"),
    ],
)
def test_f32_a_file_system_that_is_not_local_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, told: str
) -> None:
    monkeypatch.setattr(location_check, "file_system_of", lambda folder: kind)
    path = tmp_path / "new" / "store.db"

    with pytest.raises(StoreUnsupported) as raised:
        world.open_store(path)

    assert told in world.one_sentence(raised.value, path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["fuseblk", "fuse.ntfs-3g", "overlay", "ext4", "something-new"])
def test_f32_a_local_file_system_is_accepted_if_it_can_share_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(location_check, "file_system_of", lambda folder: kind)
    with closing(world.open_store(tmp_path / "store.db")) as store:
        store.enqueue(world.new_jobs(1)).result()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["store.db", "store.db-turn"]


def test_f32_a_file_system_without_shared_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def private(descriptor: int, length: int) -> object:
        return real(-1, length or mmap.PAGESIZE)  # what one writes, no other sees

    real = mmap.mmap
    monkeypatch.setattr(location_check, "file_system_of", lambda folder: "fuse.bindfs")
    monkeypatch.setattr(mmap, "mmap", private)
    path = tmp_path / "store.db"

    with pytest.raises(StoreUnsupported, match="cannot share memory") as raised:
        world.open_store(path)

    world.one_sentence(raised.value, path)
    assert list(tmp_path.iterdir()) == []


def on_fuse(name: str) -> None:
    """A real FUSE mount that calls itself sshfs. Runs in a process with mounts of its own."""
    folder = Path(name)
    with mount_fuse(folder, "sshfs"):
        assert location_check.file_system_of(folder) == "fuse.sshfs"
        with pytest.raises(StoreUnsupported, match=r"fuse\.sshfs") as raised:
            world.open_store(folder / "store.db")
        world.one_sentence(raised.value, folder / "store.db")


def test_f32_a_real_fuse_mount_is_refused(tmp_path: Path) -> None:
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("needs /dev/fuse")
    world.in_own_mounts(f"{__name__}:on_fuse", str(tmp_path))


def on_overlay(name: str) -> None:
    """A real overlay, and a file that was mounted alone. Runs with mounts of its own."""
    folder = Path(name)
    for part in ("base", "lower", "upper", "work", "merged"):
        (folder / part).mkdir()
    world.mount("tmpfs", folder / "base")
    (folder / "base/upper").mkdir()
    (folder / "base/work").mkdir()
    below = folder / "lower/store.db"
    with closing(world.open_store(below)) as store:
        store.enqueue(world.new_jobs(3)).result()
    options = f"lowerdir={folder / 'lower'},upperdir={folder / 'base/upper'},"
    options += f"workdir={folder / 'base/work'}"
    world.mount("overlay", folder / "merged", "-o", options)
    path = folder / "merged/store.db"
    assert location_check.file_system_of(path.parent) == "overlay"
    with closing(world.open_store(path)) as one, closing(world.open_store(path)) as two:
        one.enqueue(world.new_jobs(5)).result()
        assert world.states(two) == {"queued": 5}
        assert two.check().result() == []
    with closing(world.open_store(below)) as store:
        assert world.states(store) == {"queued": 3}

    alone = folder / "upper/alone.db"
    alone.write_bytes(b"")
    subprocess.run(["mount", "--bind", str(below), str(alone)], check=True)
    with pytest.raises(StoreUnsupported, match="mounted alone") as raised:
        world.open_store(alone)
    world.one_sentence(raised.value, alone)


def test_f32_an_overlay_works_and_a_file_that_is_mounted_alone_is_refused(tmp_path: Path) -> None:
    world.in_own_mounts(f"{__name__}:on_overlay", str(tmp_path))


def test_f32_two_names_by_a_link_are_one_store_with_one_turn(tmp_path: Path) -> None:
    path = tmp_path / "real" / "store.db"
    link = tmp_path / "link.db"
    link.symlink_to(path)
    (tmp_path / "folder").symlink_to(path.parent)
    names = (link, path, tmp_path / "folder" / "store.db")
    stores = [world.open_store(name) for name in names]  # the first makes it, through the link

    assert {store.url for store in stores} == {f"sqlite:///{path}"}
    for number, store in enumerate(stores):
        store.enqueue(world.new_jobs(1, prefix=f"s{number}-")).result()
    assert {tuple(world.states(store).items()) for store in stores} == {(("queued", 3),)}
    for store in stores:
        store.close()
    found = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()}
    assert found == {"link.db", "real/store.db", "real/store.db-turn"}


def test_f32_a_second_hard_link_is_refused_until_it_is_gone(tmp_path: Path) -> None:
    path, second = tmp_path / "store.db", tmp_path / "second.db"
    with closing(world.open_store(path)) as store:
        store.enqueue(world.new_jobs(1)).result()
    os.link(path, second)

    for name in (path, second):
        with pytest.raises(StoreUnsupported, match=r"has 2 names \(hard links\)") as raised:
            world.open_store(name)
        world.one_sentence(raised.value, name)

    second.unlink()
    with closing(world.open_store(path)) as store:
        assert world.states(store) == {"queued": 1}


def held_by_us(path: Path) -> list[str]:
    """The bytes of a file that this process has locked."""
    table = Path("/proc/locks")
    if not table.exists():
        pytest.skip("needs /proc/locks")
    lines = [line.split() for line in table.read_text().splitlines()]
    inode = f":{path.stat().st_ino}"
    return [
        f"{line[6]}-{line[7]}"
        for line in lines
        if line[4] == str(os.getpid()) and line[5].endswith(inode)
    ]


def test_f32_opening_a_store_again_leaves_the_locks_of_the_first_alone(tmp_path: Path) -> None:
    """POSIX locks of a process go when it closes *any* descriptor of the file. Another process
    would then think that it is the last, and remove the log that we still write to."""
    path = tmp_path / "store.db"
    log = path.with_name("store.db-wal")
    with closing(world.open_store(path)) as first:
        first.enqueue(world.new_jobs(1)).result()
        inode, locked = log.stat().st_ino, held_by_us(path)
        assert locked
        second = world.open_store(path)
        assert held_by_us(path) == locked
        second.close()
        assert held_by_us(path) == locked

        process = world.start_python(CLOSER, str(path))
        said, _ = process.communicate(timeout=world.SECONDS)
        assert process.returncode == 0, said
        assert log.stat().st_ino == inode
        first.enqueue(world.new_jobs(2)).result()
    with closing(world.open_store(path)) as store:
        assert world.states(store) == {"queued": 2}


def test_f32_a_store_is_made_by_one_of_many_who_want_it_at_once(tmp_path: Path) -> None:
    path = tmp_path / "new" / "store.db"
    stores: list[SqliteStore] = []
    barrier = threading.Barrier(8)

    def make() -> None:
        barrier.wait()
        stores.append(world.open_store(path))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, store in enumerate(stores):
        store.enqueue(world.new_jobs(1, prefix=f"s{number}-")).result()

    assert len(stores) == 8
    assert world.states(stores[0]) == {"queued": 8}
    assert write_lock_holders(path) == []
    for store in stores:
        store.close()
    assert sorted(file.name for file in path.parent.iterdir()) == ["store.db", "store.db-turn"]


@pytest.mark.parametrize(
    ("version", "affected"),
    [
        ((3, 6, 23), False),
        ((3, 7, 0), True),
        ((3, 40, 1), True),
        ((3, 44, 5), True),
        ((3, 44, 6), False),
        ((3, 45, 0), True),
        ((3, 50, 6), True),
        ((3, 50, 7), False),
        ((3, 51, 2), True),
        ((3, 51, 3), False),
        ((3, 52, 0), True),
        ((3, 53, 0), False),
        ((4, 0, 0), False),
    ],
)
def test_f33_the_wal_reset_bug_is_known_by_version(
    version: tuple[int, ...], affected: bool
) -> None:
    assert location_check.has_wal_reset_bug(version) == affected


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("3.40.1", "has the WAL-reset bug"),
        ("3.52.0", "has the WAL-reset bug"),
        ("3.50.7", "is too old"),
        ("3.6.23", "is too old"),
    ],
)
def test_f33_an_affected_or_old_sqlite_opens_no_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, told: str
) -> None:
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: version)

    with pytest.raises(StoreUnsupported) as raised:
        world.open_store(tmp_path / "store.db")

    text = str(raised.value)
    assert f"SQLite {version} {told}" in text
    assert "install apsw >= 3.53" in text
    assert text.endswith(".")
    assert list(tmp_path.iterdir()) == []


def test_f33_the_sqlite_that_we_bring_is_sound() -> None:
    location_check.refuse_library(location_check.sqlite_version())


def test_f33_checkpointers_and_writers_together_corrupt_nothing(tmp_path: Path) -> None:
    found = storm(tmp_path / "store.db", processes=4, seconds=1.0, checkpointers=2)

    assert found.problems == [], found
    assert found.checkpoints > 0, found
