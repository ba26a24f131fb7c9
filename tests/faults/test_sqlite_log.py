# SPDX-License-Identifier: Apache-2.0
"""F29: what happens when somebody keeps an old state of the store alive?"""

from __future__ import annotations

import logging
import time
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from penstock.clock import SystemBootClock
from penstock.model.job import JobId, WorkerId
from penstock.stores.protocol import JobFilter
from penstock.stores.sqlite import checkpoint
from penstock.stores.sqlite.connection import WAL_BYTES_MAX
from tests.faults import sqlite_world as world

READER = """
import apsw, sys
connection = apsw.Connection(sys.argv[1], flags=apsw.SQLITE_OPEN_READONLY)
connection.execute("begin")
print(connection.execute("select count(*) from jobs").fetchall()[0][0], flush=True)
sys.stdin.readline()
"""
MEBIBYTE = 1024 * 1024


def test_f29_a_reader_that_stays_is_named_and_the_log_shrinks_by_itself_when_it_goes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "penstock.store")
    path = tmp_path / "store.db"
    log = path.with_name("store.db-wal")
    with closing(world.open_store(path)) as store:
        store.enqueue(world.new_jobs(10)).result()
        world.register(store)
        reader = world.start_python(READER, str(path))
        assert reader.stdout is not None
        assert reader.stdout.readline() == "10\n"

        number = 0
        while log.stat().st_size < WAL_BYTES_MAX + 8 * MEBIBYTE:
            number += 1
            store.enqueue(world.new_jobs(2, 900_000, prefix=f"n{number}-")).result()
        told = [r.getMessage() for r in caplog.records if "has grown to" in r.getMessage()]

        assert 1 <= len(told) <= 3, told  # again only when it has doubled
        assert f"process {reader.pid} (python" in told[0]
        assert str(log) in told[0]
        assert " MiB" in told[0]
        reader.communicate("\n", timeout=world.SECONDS)

        until = time.monotonic() + world.SECONDS
        while log.stat().st_size > WAL_BYTES_MAX and time.monotonic() < until:
            store.beat([world.WORKER], 60).result()  # what an idle worker does
            time.sleep(0.1)
        assert log.stat().st_size <= WAL_BYTES_MAX
        assert store._writer._session._checkpoints._pages < 100  # type: ignore[union-attr]
        assert [r for r in caplog.records if "is short again" in r.getMessage()]
        assert store.job("k1").result() is not None


def test_f29_without_foreign_readers_the_log_stays_short(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with closing(world.open_store(path)) as store:
        for number in range(60):
            store.enqueue(world.new_jobs(100, 1_000, prefix=f"n{number}-")).result()
            store.stats().result()
        size = path.with_name("store.db-wal").stat().st_size
    assert size < 3 * checkpoint.CHECKPOINT_PAGES * 4096
    assert not path.with_name("store.db-wal").exists(), "the last one tidies up"


def test_f29_none_of_our_reads_keeps_a_state_alive(tmp_path: Path) -> None:
    with closing(world.open_store(tmp_path / "store.db")) as store:
        store.enqueue(world.new_jobs(300)).result()
        world.register(store)
        world.lease_all(store, 10)
        connection: apsw.Connection = store._reader._connection
        boot = SystemBootClock().boot_time()
        for ask in (
            store.stats,
            lambda: store.job("k1"),
            lambda: store.attempts("k1"),
            lambda: store.jobs(JobFilter(), JobId(0), 10),
            lambda: store.outlook(WorkerId("w"), "r"),
            store.check,
            lambda: store.manifests("d", 0, 9, 9),
            lambda: store.slice_marks("d", 0, 9, "1"),
            lambda: store.staged("p"),
            lambda: store.cursor("c"),
            store.caps,
            store.workers,
        ):
            ask().result()
            assert connection.txn_state("main") == apsw.SQLITE_TXN_NONE, ask
        assert store._reader.anything_to_lease(0, boot, 1) in {True, False}
        assert connection.txn_state("main") == apsw.SQLITE_TXN_NONE
