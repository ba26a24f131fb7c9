# SPDX-License-Identifier: Apache-2.0
"""F26: what happens with a file that is damaged, cut, foreign, or of another version?"""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import apsw
import pytest
from msgspec.structs import replace

from penstock.errors import SchemaTooNew, StoreCorrupt, StoreError
from penstock.model.job import JobId, JobState, WorkerId
from penstock.model.lease import ConfiguredCaps, JobEnd, LeaseRequest, WorkerInfo
from penstock.stores.protocol import JobFilter
from penstock.stores.sqlite.open import APPLICATION_ID
from tests.faults import sqlite_world as world
from tests.faults.test_sqlite_read_only import leave_behind

FLIPS = 25  # the soak has 200 for each of several seeds
REMEDIES = ("penstock restore FILE", "--store", "Put it back", "Upgrade Penstock")


def make_sound(path: Path) -> None:
    """A store with jobs in several states, closed in good order."""
    store = world.open_store(path)
    store.enqueue(world.new_jobs(400, 300)).result()
    world.register(store)
    store.ack(world.WORKER, world.lease_all(store, 100, size=300)).result()
    world.lease_all(store, 20)
    store.close()
    assert not path.with_name("store.db-wal").exists()


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "store.db"
    make_sound(path)
    return path


@pytest.fixture
def path(tmp_path: Path, sound: Path) -> Path:
    return Path(shutil.copy(sound, tmp_path / "store.db"))


def use(path: Path) -> None:
    """What a worker and its people do with a store."""
    with closing(world.open_store(path)) as store:
        store.stats().result()
        store.enqueue(world.new_jobs(500, 300, prefix="new")).result()
        store.register(WorkerInfo(id=WorkerId("w-2"), run_id="r", tasks=("t",)), 60).result()
        for _ in range(4):
            request = LeaseRequest(
                worker=WorkerId("w-2"), tasks=("t",), limit=100, caps=ConfiguredCaps()
            )
            jobs = store.lease(request).result().jobs
            ends = [JobEnd(job, JobState.DONE, 1, 2) for job in jobs]
            store.ack(WorkerId("w-2"), ends).result()
        for n in range(0, 400, 40):
            store.job(f"k{n}").result()
        store.jobs(JobFilter(), JobId(0), 1_000).result()


def refused(path: Path, kind: type[StoreError] = StoreCorrupt) -> str:
    """Opening or using it is refused, and its bytes stay; the sentence."""
    before = path.read_bytes()
    with pytest.raises(kind) as raised:
        use(path)
    text = world.one_sentence(raised.value, path)
    assert any(remedy in text for remedy in REMEDIES), text
    assert path.read_bytes() == before
    return text


def flip(path: Path, seed: int, offset: int) -> None:
    data = bytearray(path.read_bytes())
    noise = random.Random(seed).randbytes(16)
    data[offset : offset + len(noise)] = noise
    path.write_bytes(data[: len(path.read_bytes())])


def survey_of_flips(sound: Path, folder: Path, count: int, seed: int) -> dict[str, int]:
    """Damage a copy at each of many places and use it; how it ended, by kind.

    A damage inside a text cannot be seen by anybody. All others must be told as one sentence.
    """
    chosen = random.Random(seed)
    outcomes = {"told": 0, "unseen": 0}
    size = sound.stat().st_size
    for number in range(count):
        path = folder / "store.db"
        for left in folder.glob("store.db*"):
            left.unlink()
        shutil.copy(sound, path)
        offset = chosen.randrange(0, size - 16)
        flip(path, seed * 1_000 + number, offset)
        try:
            use(path)
            outcomes["unseen"] += 1
        except StoreError as error:
            world.one_sentence(error, path)
            outcomes["told"] += 1
        except BaseException as error:
            raise AssertionError(f"seed {seed}, flip {number} at {offset}: {error!r}") from error
        assert path.stat().st_size > 0
    return outcomes


def test_f26_random_damage_is_told_in_one_sentence_or_harmless(sound: Path, tmp_path: Path) -> None:
    outcomes = survey_of_flips(sound, tmp_path, FLIPS, seed=1)

    assert outcomes["told"] > FLIPS // 4, outcomes


@pytest.mark.parametrize("left", [0, 100, 5_000, 100_000])
def test_f26_a_file_that_was_cut_is_refused_and_not_made_anew(path: Path, left: int) -> None:
    assert path.stat().st_size > left
    with path.open("r+b") as file:
        file.truncate(left)

    text = refused(path)

    if not left:
        assert "is empty (0 bytes)" in text


def test_f26_an_empty_file_with_a_log_beside_it_keeps_its_log(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    leave_behind(path)
    log = path.with_name("store.db-wal")
    before = log.read_bytes()
    path.write_bytes(b"")

    with pytest.raises(StoreCorrupt):
        world.open_store(path)

    assert log.read_bytes() == before


def test_f26_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.write_text("these are my notes\n" * 500)

    assert "not a sound database" in refused(path)


@pytest.mark.parametrize("application_id", [0, 0x12345678])
def test_f26_a_database_of_another_program_is_refused_and_left_as_it_is(
    tmp_path: Path, application_id: int
) -> None:
    path = tmp_path / "store.db"
    with closing(apsw.Connection(str(path))) as other:
        other.execute("create table theirs (x)")
        other.pragma("application_id", application_id)

    assert "a database of another program" in refused(path)
    assert not path.with_name("store.db-wal").exists()


def test_f26_a_new_store_carries_our_mark(path: Path) -> None:
    with closing(apsw.Connection(str(path))) as connection:
        assert connection.pragma("application_id") == APPLICATION_ID


@pytest.mark.parametrize(
    ("version", "kind", "said"),
    [
        (-1, StoreCorrupt, "its schema version is -1"),
        (0, StoreCorrupt, "its schema version is 0, but it has tables"),
        (1, StoreCorrupt, "schema 1 without 'manifests_committed'"),
        (99, SchemaTooNew, "has schema 99, made by a newer Penstock"),
    ],
)
def test_f26_a_wrong_or_newer_version_is_refused(
    path: Path, version: int, kind: type[StoreError], said: str
) -> None:
    with closing(apsw.Connection(str(path))) as connection:
        connection.pragma("user_version", version)

    assert said in refused(path, kind)


def test_f26_a_schema_that_is_not_what_its_version_says_is_refused(path: Path) -> None:
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("create view manifests_committed as select 1")  # schema 1 has the name
        connection.pragma("user_version", 1)

    assert "its schema does not match its version" in refused(path, StoreCorrupt)


def test_f26_a_store_without_one_of_its_tables_is_refused(path: Path) -> None:
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("drop table counters")

    assert "without 'counters'" in refused(path)


def test_f26_a_log_that_was_deleted_after_a_crash_is_missed(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    leave_behind(path)
    log = path.with_name("store.db-wal")
    kept = log.read_bytes()
    log.unlink()

    text = refused(path)
    assert f"The log {str(log)!r} is missing" in text

    log.write_bytes(kept)
    with closing(world.open_store(path)) as store:
        assert world.states(store) == {"queued": 3}


def test_f26_a_copy_without_its_log_is_an_older_state_and_sound(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    leave_behind(path)
    copy = tmp_path / "copy.db"
    shutil.copy(path, copy)

    with closing(world.open_store(copy)) as store:
        assert world.states(store) == {}
        assert store.check().result() == []


@pytest.mark.parametrize("gone", ["store.db", "store.db-wal"])
def test_f26_a_file_that_is_removed_while_it_is_used_stops_the_store(path: Path, gone: str) -> None:
    with closing(world.open_store(path)) as store:
        store.enqueue(world.new_jobs(1, prefix="before")).result()
        path.with_name(gone).unlink()

        for _ in range(2):
            with pytest.raises(StoreError, match="was removed or replaced") as raised:
                store.enqueue(world.new_jobs(1, prefix="after")).result()
            world.one_sentence(raised.value, path)
    assert not path.with_name(gone).exists()


# ── The commands ─────────────────────────────────────────────────────────────────────────────────


def spoil(path: Path) -> None:
    """Overwrite every page but the first, as a broken disk would."""
    with path.open("r+b") as file:
        for offset in range(4_096, path.stat().st_size, 4_096):
            file.seek(offset)
            file.write(b"\xde\xad" * 1_000)


def test_f26_a_run_on_a_damaged_store_ends_with_one_sentence_and_code_1(
    tmp_path: Path, sound: Path
) -> None:
    path = world.project(tmp_path)
    shutil.copy(sound, path)
    spoil(path)

    ended = world.penstock(tmp_path, "queue", "run", "--drain")

    assert ended.returncode == 1, ended
    assert "Traceback" not in ended.stderr
    world.one_sentence(ended.stderr.strip().splitlines()[-1], path)
    assert "penstock restore FILE" in ended.stderr


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[Path, world.Running]]:
    path = world.project(tmp_path)
    with closing(world.open_store(path)) as store:
        jobs = world.new_jobs(3_000, prefix="j", task="work", payload='{"n":2000}')
        store.enqueue(jobs).result()
    with world.Running(tmp_path) as run:
        yield path, run


def test_f26_damage_that_appears_while_a_worker_runs_ends_it_with_one_sentence(
    running: tuple[Path, world.Running],
) -> None:
    path, run = running
    run.wait_for_file(path.with_name("store.db-wal"))
    until = time.monotonic() + world.SECONDS
    while run.process.poll() is None and time.monotonic() < until:
        with suppress(OSError):
            spoil(path)  # again and again: what is written anew is sound for a moment
        time.sleep(0.2)

    code, said = run.end()

    assert code == 1, said
    assert "Traceback" not in said, said
    assert "penstock restore FILE" in said.splitlines()[-1], said
    assert run.process.returncode != -signal.SIGKILL


def with_a_stale_index(path: Path, change: str, index: str = "jobs_ready") -> None:
    """Change rows behind the back of an index, as swapped pages do."""
    with closing(apsw.Connection(str(path))) as connection:
        kept = connection.execute(
            "select type, name, tbl_name, rootpage, sql from sqlite_schema where name = ?", (index,)
        ).fetchall()
        connection.execute("pragma writable_schema = on")
        connection.execute("delete from sqlite_schema where name = ?", (index,))
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute(change)
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("pragma writable_schema = on")
        connection.executemany("insert into sqlite_schema values (?, ?, ?, ?, ?)", kept)


def test_f26_a_job_that_is_ready_by_its_index_alone_is_not_run_again(path: Path) -> None:
    """A run counted 4,846 jobs done of 300, since ended ones were handed out once more."""
    with_a_stale_index(path, "update jobs set row_state = 5 where row_state = 2")

    with closing(world.open_store(path)) as store:
        store.register(WorkerInfo(id=WorkerId("w-2"), run_id="r", tasks=("t",)), 60).result()
        with pytest.raises(StoreCorrupt) as told:
            world.lease_all(store, 20, worker=WorkerId("w-2"))

    assert "jobs_ready" in str(told.value)
    assert "penstock restore FILE" in str(told.value)


#: An index that leases rest on → what rows become before it is hidden, and what they become then.
FIRST = """select id from jobs where lane_id = lanes.id and row_state = 2
    order by priority desc, available_at, id limit 1"""
HIDDEN = {
    "lanes_ready": ("update lanes set head_id = null", f"update lanes set head_id = ({FIRST})"),
    "jobs_due": (
        "update jobs set row_state = 7 where row_state = 1",
        "update jobs set row_state = 1 where row_state = 7",
    ),
    "jobs_suspect": (
        "update lanes set head_id = null",
        "update jobs set row_state = 3 where row_state = 2",
    ),
    "jobs_ready": (
        "update jobs set row_state = 7 where row_state = 2",
        "update jobs set row_state = 2 where row_state = 7",
    ),
}


@pytest.mark.parametrize("index", HIDDEN)
def test_f26_a_drain_that_would_wait_for_ever_for_jobs_that_no_index_finds_ends(
    tmp_path: Path, index: str
) -> None:
    path = world.project(tmp_path)
    delay = 0.1 if index == "jobs_due" else 0.0
    with closing(world.open_store(path)) as store:
        jobs = world.new_jobs(20, prefix="j", task="work", payload='{"n":1}')
        store.enqueue([replace(job, delay_seconds=delay) for job in jobs]).result()
    before, after = HIDDEN[index]
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute(before)
    with_a_stale_index(path, after, index)

    ended = world.penstock(tmp_path, "queue", "run", "--drain")

    assert ended.returncode == 1, ended
    assert "Traceback" not in ended.stderr
    last = ended.stderr.strip().splitlines()[-1]
    world.one_sentence(last, path)
    assert index in last
    assert "penstock restore FILE" in last
