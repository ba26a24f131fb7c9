# SPDX-License-Identifier: Apache-2.0
"""How is persist-queue driven? It has no worker: the loop is ours (get, run, ack)."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from persistqueue import Empty, SQLiteAckQueue

from benchmarks.peers.driver import Mark, read_pragmas

POLL_SECONDS = 0.001  # when it is empty
BUSY_SECONDS = 30


class PersistqueueSqlite:
    """Opened without `auto_resume`, which would hand out again what another process runs."""

    def __init__(self, folder: Path, mark: Mark) -> None:
        self._mark = mark
        self._path = folder / "persistqueue"
        self._queue = SQLiteAckQueue(
            str(self._path), multithreading=True, timeout=BUSY_SECONDS, auto_resume=False
        )

    def put(self, number: int) -> None:
        self._queue.put(number)

    def put_many(self, numbers: range) -> None:
        for number in numbers:
            self._queue.put(number)

    def unfinished(self) -> int:
        # Its own counters are kept per process, so they do not see the worker.
        connection = sqlite3.connect(self._path / "data.db", timeout=BUSY_SECONDS)
        try:
            rows = connection.execute("select count(*) from ack_queue_default where status < 5")
            return int(rows.fetchone()[0])
        finally:
            connection.close()

    def durability(self) -> dict[str, str]:
        return read_pragmas(
            lambda name: self._queue._putter.execute(f"pragma {name}").fetchone()[0]
        )

    def work(self) -> None:
        while True:
            try:
                item = self._queue.get(block=False, raw=True)
            except Empty:
                time.sleep(POLL_SECONDS)
                continue
            self._mark(item["data"])
            self._queue.ack(id=item["pqid"])


def open_peer(place: str, mark: Mark) -> PersistqueueSqlite:
    return PersistqueueSqlite(Path(place), mark)
