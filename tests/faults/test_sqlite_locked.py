# SPDX-License-Identifier: Apache-2.0
"""F27 and F28: what happens when others hold the store, or all want it at once?"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from penstock.errors import StoreBusy
from penstock.model.job import JobState, NewJob
from penstock.stores.sqlite import open as opening
from penstock.stores.sqlite.store import SqliteStore
from tests.faults import sqlite_world as world
from tests.faults.busy_storm import storm
from tests.waiting import wait_until

HOLDER = """
import apsw, sys
connection = apsw.Connection(sys.argv[1])
if sys.argv[2] == "whole":
    connection.pragma("locking_mode", "exclusive")
connection.execute("begin exclusive")
if sys.argv[2] == "whole":
    connection.execute("create table if not exists x_held (x); drop table x_held")
print("held", flush=True)
sys.stdin.readline()
connection.execute("rollback")
connection.close()
"""


class Holder:
    """Another process that holds the database."""

    def __init__(self, path: Path, how: str = "write") -> None:
        self.process = world.start_python(HOLDER, str(path), how)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "held\n"

    def let_go(self) -> None:
        self.process.communicate("\n", timeout=world.SECONDS)


@contextmanager
def held(path: Path, how: str = "write") -> Iterator[Holder]:
    holder = Holder(path, how)
    try:
        yield holder
    finally:
        if holder.process.poll() is None:
            holder.process.kill()
            holder.process.communicate()


def messages(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    return [r.getMessage() for r in caplog.records if words in r.getMessage()]


def test_f27_a_held_store_is_waited_for_told_once_and_renewals_go_first(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.stores.sqlite.connection.BUSY_MILLISECONDS", 300)
    monkeypatch.setattr("penstock.stores.sqlite.session.BUSY_MILLISECONDS", 300)
    path = tmp_path / "store.db"
    caplog.set_level(logging.WARNING, "penstock.store")
    with closing(world.open_store(path)) as store:
        world.register(store)
        with held(path) as holder:
            jobs = store.enqueue(world.new_jobs(2))
            beat = store.beat([world.WORKER], 60)
            order: list[str] = []
            jobs.add_done_callback(lambda: order.append("jobs"))
            beat.add_done_callback(lambda: order.append("beat"))
            assert store.stats().result().states[JobState.QUEUED] == 0  # reading goes on
            wait_until(lambda: bool(messages(caplog, "Writing has to wait")))
            time.sleep(1.0)  # it is not said again
            assert not jobs.done
            assert not beat.done
            told = messages(caplog, "Writing has to wait")
            assert len(told) == 1, told
            assert f"process {holder.process.pid} (python" in told[0]
            assert str(path) in told[0]
            holder.let_go()
            assert jobs.result(world.SECONDS).created == {"k0", "k1"}
            assert beat.result(world.SECONDS) == {world.WORKER}
        assert order == ["beat", "jobs"]
        assert len(messages(caplog, "The store is free again")) == 1


def test_f27_a_store_that_is_held_as_a_whole_stops_readers_with_the_holders_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("penstock.stores.sqlite.connection.BUSY_MILLISECONDS", 100)
    monkeypatch.setattr(opening, "OPEN_SECONDS", 2.0)
    path = tmp_path / "store.db"
    world.open_store(path).close()
    with held(path, "whole") as holder:
        with pytest.raises(StoreBusy) as raised:
            world.open_store(path)
        text = world.one_sentence(raised.value, path)
        assert f"is held by process {holder.process.pid} (python" in text
        assert "nothing was changed" in text
        assert len(messages(caplog, "Opening has to wait")) == 1

        opening_later: list[SqliteStore] = []
        monkeypatch.setattr(opening, "OPEN_SECONDS", world.SECONDS)
        thread = threading.Thread(target=lambda: opening_later.append(world.open_store(path)))
        thread.start()
        time.sleep(0.3)
        holder.let_go()
        thread.join(world.SECONDS)
    assert opening_later[0].stats().result().states[JobState.QUEUED] == 0
    opening_later[0].close()


def test_f27_a_turn_that_is_held_by_a_stopped_process_is_told_with_its_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.stores.sqlite.write_lock.TOLD_SECONDS", 0.2)
    path = tmp_path / "store.db"
    caplog.set_level(logging.WARNING, "penstock.store")
    code = (
        "import fcntl, sys; turn = open(sys.argv[1], 'r+'); fcntl.flock(turn, fcntl.LOCK_EX); "
        "print('held', flush=True); sys.stdin.readline()"
    )
    with closing(world.open_store(path)) as store:
        process = world.start_python(code, str(path) + "-turn")
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        reply = store.enqueue(world.new_jobs(1))
        with pytest.raises(TimeoutError):
            store.enqueue(world.new_jobs(1, prefix="withdrawn")).result(1.5)
        wait_until(lambda: bool(messages(caplog, "The write lock of the store")))
        told = messages(caplog, "The write lock of the store")
        process.communicate("\n", timeout=world.SECONDS)

        assert len(told) == 1, told
        assert f"process {process.pid} (python" in told[0]
        assert reply.result(world.SECONDS).created == {"k0"}
        assert store.job("withdrawn0").result() is None


def test_f27_leases_that_could_not_be_renewed_are_lost_and_the_run_goes_on(
    tmp_path: Path,
) -> None:
    """Longer than a lease lives: nothing is assumed, everything is done once more, nobody dies."""
    path = world.project(tmp_path)
    config = (tmp_path / "penstock.toml").read_text()
    config = config.replace("lease_ttl_seconds = 5.0", "lease_ttl_seconds = 1.0")
    (tmp_path / "penstock.toml").write_text(config)
    jobs = [NewJob(key=f"k{n}", task="work", payload='{"n":1}', group="g") for n in range(3)]
    with closing(world.open_store(path)) as store:
        store.enqueue(jobs).result()
        with world.Running(tmp_path) as run:
            run.wait_until(lambda: store.stats().result().states[JobState.DONE] == 3)
            with held(path) as holder:
                time.sleep(2.5)
                holder.let_go()
            store.enqueue([NewJob(key="late", task="work", payload='{"n":1}', group="g")]).result()
            run.wait_until(lambda: store.stats().result().states[JobState.DONE] == 4)
            run.process.send_signal(signal.SIGTERM)
            code, said = run.end()
        assert code == 0, said
        assert "Traceback" not in said
        assert "could not be renewed in time" in said
        assert store.check().result() == []


def test_f28_a_storm_of_writers_shows_no_busy_and_starves_nobody(tmp_path: Path) -> None:
    for number in range(5):  # once more, and for longer, if the machine itself was unfair
        found = storm(tmp_path / f"store{number}.db", processes=8, seconds=1.0 + number)
        if found.least_share >= 0.2:
            break

    assert found.problems == [], found
    assert found.worst_wait_seconds < 10.0, found  # a third of a lease's life
    assert found.least_share >= 0.2, found
