# SPDX-License-Identifier: Apache-2.0
"""F24: what happens when there is no space left?"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import time
from pathlib import Path

import pytest

from penstock import Context, Penstock
from penstock.errors import StoreFull
from penstock.model.job import JobState
from penstock.model.lease import Verdict
from penstock.stores.sqlite import checkpoint
from penstock.stores.sqlite.store import SqliteStore
from tests.faults import sqlite_world as world
from tests.faults.faulty_disk import faulty_disk


def fill(folder: Path) -> Path:
    """Take all space that is left; the file to remove."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as out, contextlib.suppress(OSError):
        while True:
            out.write(b"\0" * 4096)
    return filler


def refused(raised: pytest.ExceptionInfo[StoreFull], path: Path) -> None:
    text = world.one_sentence(raised.value, path)
    assert text.startswith("No space left while")
    assert "nothing was changed" in text
    assert "penstock doctor" in text


def in_small_folder(name: str) -> None:
    """Everything the store does, on 4 MiB. Runs in a process with mounts of its own."""
    folder = Path(name)
    world.mount("tmpfs", folder, "-o", "size=4m")
    path = folder / "store.db"
    store = world.open_store(path)
    store.enqueue(world.new_jobs(40, 5_000)).result()
    world.register(store)
    ends = world.lease_all(store, 20, size=20_000)
    filler = fill(folder)

    with pytest.raises(StoreFull) as raised:
        store.enqueue(world.new_jobs(50, 20_000, prefix="late")).result()
    refused(raised, path)
    with pytest.raises(StoreFull) as raised:
        store.ack(world.WORKER, ends).result()
    refused(raised, path)
    assert world.states(store) == {"queued": 20, "in_progress": 20}  # reading goes on
    assert store.job("late0").result() is None

    filler.unlink()
    assert store.ack(world.WORKER, ends).result() == [Verdict.ACCEPTED] * 20
    assert len(store.enqueue(world.new_jobs(50, 20_000, prefix="late")).result().created) == 50
    assert store.check().result() == []
    store.close()

    fill(folder)
    with pytest.raises(StoreFull) as raised:
        world.open_store(folder / "another.db")
    refused(raised, folder / "another.db")
    assert not (folder / "another.db").exists()


def test_f24_disk_full_in_enqueue_and_ack_changes_nothing_and_is_over_when_there_is_space(
    tmp_path: Path,
) -> None:
    world.in_own_mounts(f"{__name__}:in_small_folder", str(tmp_path))


def read_in_full_folder(name: str) -> None:
    """What reads, on a full disk, when nobody has the store open. Has mounts of its own."""
    folder = Path(name)
    mounted = folder / "mounted"
    mounted.mkdir()
    world.mount("tmpfs", mounted, "-o", "size=4m")
    world.project(folder)
    path = mounted / "store.db"
    store = world.open_store(path)
    store.enqueue(world.new_jobs(3)).result()
    store.close()
    fill(mounted)

    for _ in range(2):  # the first leaves nothing behind that hinders the second
        store = SqliteStore.open(path, reading_will_do=True)
        assert world.states(store) == {"queued": 3}
        assert store.job("k1").result() is not None
        with pytest.raises(StoreFull) as raised:
            store.enqueue(world.new_jobs(1, prefix="late")).result()
        refused(raised, path)
        store.close()
        with pytest.raises(StoreFull):
            world.open_store(path)
    at = ("--store", f"sqlite:///{path}")
    for words in (("queue", "retry-failed", "--dry-run"), ("backup", "backup.db")):
        ended = world.penstock(folder, *words, *at)
        assert ended.returncode == 0, ended.stderr
    copy = world.open_store(folder / "backup.db")
    assert world.states(copy) == {"queued": 3}
    copy.close()


def test_f24_a_store_on_a_full_disk_that_nobody_has_open_can_be_read_and_backed_up(
    tmp_path: Path,
) -> None:
    world.in_own_mounts(f"{__name__}:read_in_full_folder", str(tmp_path))


def under_file_limit(name: str) -> None:
    """The same without root: files may not grow beyond a limit. Runs in a process of its own."""
    path = Path(name)
    store = world.open_store(path)
    store.enqueue(world.new_jobs(40, 5_000)).result()
    world.register(store)
    ends = world.lease_all(store, 40, size=20_000)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    largest = max(file.stat().st_size for file in path.parent.iterdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, hard))

    for _ in range(2):
        with pytest.raises(StoreFull) as raised:
            store.ack(world.WORKER, ends).result()
        refused(raised, path)
    assert world.states(store) == {"in_progress": 40}

    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert store.ack(world.WORKER, ends).result() == [Verdict.ACCEPTED] * 40
    assert store.check().result() == []
    store.close()


def test_f24_a_limit_on_file_sizes_is_a_full_disk(tmp_path: Path) -> None:
    code = f"import sys; from {__name__} import under_file_limit as f; f(sys.argv[1])"
    process = world.start_python(code, str(tmp_path / "store.db"))
    said, _ = process.communicate(timeout=world.SECONDS)
    assert process.returncode == 0, said


def test_f24_disk_full_in_a_checkpoint_loses_nothing_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store.db"
    with faulty_disk() as disk:
        store = world.open_store(path)
        store.enqueue(world.new_jobs(600, 5_000)).result()
        world.register(store)
        log_bytes = path.with_name("store.db-wal").stat().st_size
        assert log_bytes < checkpoint.CHECKPOINT_PAGES * 4096
        database = path.stat().st_size
        disk.cannot_grow = ("store.db",)
        wanted = 0
        with caplog.at_level(logging.WARNING, "penstock.store"):
            while wanted < 10 and store._writer._session._checkpoints._pages < 1_100:  # type: ignore[union-attr]
                store.enqueue(world.new_jobs(100, 5_000, prefix=f"more{wanted}-")).result()
                wanted += 1
        told = [r.getMessage() for r in caplog.records if "No space left to move" in r.getMessage()]

        assert len(told) == 1, told
        assert str(path) in told[0]
        assert path.stat().st_size == database
        assert store.stats().result().states[JobState.QUEUED] == 600 + 100 * wanted
        disk.cannot_grow = ()
        for _ in range(3):
            store.beat([world.WORKER], 60).result()
            time.sleep(checkpoint.AGAIN_SECONDS / 2)
        assert path.stat().st_size > database
        assert store.check().result() == []
        store.close()


def test_f24_a_worker_begins_nothing_while_full_and_goes_on_by_itself_when_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "penstock.toml").write_text(
        'durability = "normal"\n[runtime]\nlease_ttl_seconds = 60\nasync_slots = 4\n'
    )
    app = Penstock("full", store=f"sqlite:///{tmp_path / 'store.db'}")
    began: list[int] = []
    seen: list[int] = []

    with faulty_disk() as disk:

        @app.task()
        async def big(ctx: Context, n: int) -> str:
            began.append(n)
            disk.cannot_grow = ("",) if not seen else ()
            await asyncio.sleep(0.05)
            return "x" * 200_000

        async def free_space() -> None:
            for _ in range(2_000):
                if any("have to wait" in r.getMessage() for r in caplog.records):
                    break
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)  # the first four have ended; acknowledgements are repeated
            first = len(began)
            await asyncio.sleep(0.3)
            assert len(began) == first, "something was begun that could not be acknowledged"
            seen.append(first)
            disk.cannot_grow = ()

        async def run() -> None:
            helper = asyncio.create_task(free_space())
            report = await app.run_async(drain=True)
            await helper
            assert (report.done, report.errors) == (30, 0)

        app.enqueue_many([big.job(n=n) for n in range(30)])
        asyncio.run(asyncio.wait_for(run(), world.SECONDS))

        assert sorted(began) == list(range(30)), "each ran once"
        assert app.store.check().result() == []
        app.close()
    told = [r.getMessage() for r in caplog.records if "have to wait" in r.getMessage()]
    assert len(told) == 1, told
    assert "nothing was changed" in told[0]
