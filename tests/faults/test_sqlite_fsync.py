# SPDX-License-Identifier: Apache-2.0
"""F30: what happens when the disk says that it could not keep what was written?"""

from __future__ import annotations

import shutil
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from penstock.errors import StoreFailed
from penstock.model.job import JobState, NewJob
from penstock.stores.sqlite import checkpoint
from penstock.stores.sqlite.store import SqliteStore
from tests.faults import sqlite_world as world
from tests.faults.faulty_disk import faulty_disk

SYNCS = 16  # the soak lets each of the first 50 fail


def work_until_it_fails(store: SqliteStore, rounds: int) -> tuple[list[str], list[str]]:
    """Enqueue, lease and acknowledge until the store fails; keys kept, and ends kept."""
    kept: list[str] = []
    ended: list[str] = []
    try:
        world.register(store)
        for number in range(rounds):
            jobs = world.new_jobs(3, 2_000, prefix=f"r{number}-")
            kept += sorted(store.enqueue(jobs).result().created)
            ends = world.lease_all(store, 1)
            store.ack(world.WORKER, ends).result()
            ended += [end.job.key for end in ends]
    except StoreFailed:
        return kept, ended
    raise AssertionError("nothing failed")


def fail_at(path: Path, number: int) -> tuple[str, list[str], list[str]]:
    """Let one sync fail and see that nothing goes on; the sentence, and what was promised."""
    with faulty_disk() as disk:
        store = world.open_store(path, durability="full")
        disk.fail_sync_at = disk.syncs + number
        kept, ended = work_until_it_fails(store, rounds=100)
        failed_at = disk.syncs

        sentences = set()
        for refused in (
            store.enqueue(world.new_jobs(1, prefix="late")),
            store.beat([world.WORKER], 60),
            store.stats(),
            store.job("r0-0"),
        ):
            with pytest.raises(StoreFailed) as raised:
                refused.result(world.SECONDS)
            sentences.add(world.one_sentence(raised.value, path))
        store.close()

        assert disk.syncs == failed_at == disk.fail_sync_at, "a sync was tried again"
    assert len(sentences) == 1, sentences
    return sentences.pop(), kept, ended


def fail_at_each(folder: Path, syncs: int) -> set[str]:
    """Let each sync fail in turn, and open what is left; what was being done."""
    seen: set[str] = set()
    for number in range(1, syncs + 1):
        path = folder / str(number) / "store.db"
        sentence, kept, ended = fail_at(path, number)
        assert "I/O error while" in sentence
        seen.add(sentence.partition(" (")[0])

        with closing(world.open_store(path)) as store:
            assert store.check().result() == [], number
            assert all(store.job(key).result() is not None for key in kept), number
            for key in ended:
                job = store.job(key).result()
                assert job is not None
                assert job.state is JobState.DONE, number
            assert store.job("late0").result() is None
    return seen


def test_f30_after_a_failed_sync_nothing_goes_on_and_nothing_promised_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "CHECKPOINT_PAGES", 40)  # so that moving the log fails, too

    assert fail_at_each(tmp_path, SYNCS) == {
        "I/O error while committing to the store",
        "I/O error while moving the log into the store",
    }


def test_f30_a_failed_sync_in_a_commit_says_that_its_fate_is_unknown(tmp_path: Path) -> None:
    sentence, _, _ = fail_at(tmp_path / "store.db", 1)

    assert "The last change may or may not be there" in sentence
    assert "penstock doctor" in sentence


def test_f30_a_store_whose_making_failed_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    for number in range(1, 4):
        with faulty_disk() as disk:
            disk.fail_sync_at = number
            with pytest.raises(StoreFailed, match="I/O error") as raised:
                world.open_store(path, durability="full")
            assert str(path) in str(raised.value)
        assert not path.exists()
    with closing(world.open_store(path)) as store:
        assert store.check().result() == []


def test_f30_a_run_whose_disk_fails_ends_with_the_sentence_and_code_1(tmp_path: Path) -> None:
    """With real system calls: the kernel's answer is replaced by EIO."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("needs strace, to let fsync fail")
    probe = subprocess.run([strace, "-qq", "-o", "/dev/null", "true"], check=False)
    if probe.returncode:
        pytest.skip("needs the permission to trace a process")
    path = world.project(tmp_path)
    jobs = [NewJob(key=f"k{n}", task="work", payload='{"n":1}', group="g") for n in range(50)]
    with closing(world.open_store(path)) as store:
        store.enqueue(jobs).result()
    calls = tmp_path / "calls.txt"
    before = (
        *(strace, "-f", "-qq", "-o", str(calls), "-e", "trace=fsync,fdatasync"),
        *("-e", "inject=fsync,fdatasync:error=EIO:when=4"),
    )

    with world.Running(tmp_path, before=before) as run:
        code, said = run.end()

    assert code == 1, said
    assert "Traceback" not in said, said
    last = world.one_sentence(said.strip().splitlines()[-1], path)
    assert "I/O error while" in last
    by_thread: dict[str, list[str]] = {}
    for line in calls.read_text().splitlines():
        thread, _, call = line.partition(" ")
        if "sync(" in call:
            by_thread.setdefault(thread, []).append(call)
    failed = [calls for calls in by_thread.values() if "EIO" in "".join(calls)]
    assert failed, by_thread
    assert all("EIO" in calls[-1] for calls in failed), f"a sync was tried again: {by_thread}"
    with closing(world.open_store(path)) as store:
        assert store.check().result() == []
        assert sum(store.stats().result().states.values()) == 50
