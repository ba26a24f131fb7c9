# SPDX-License-Identifier: Apache-2.0
"""How is litequeue driven? It has no worker: the loop is ours (pop, run, done)."""

from __future__ import annotations

import time
from pathlib import Path

from litequeue import LiteQueue

from benchmarks.peers.driver import Mark, read_pragmas

POLL_SECONDS = 0.001  # when it is empty
BUSY_SECONDS = 30


class LitequeueSqlite:
    """Sets synchronous = NORMAL itself; we set FULL on its public connection."""

    def __init__(self, folder: Path, mark: Mark) -> None:
        self._mark = mark
        self._queue = LiteQueue(str(folder / "litequeue.db"), timeout=BUSY_SECONDS)
        self._queue.conn.execute("pragma synchronous = full")

    def put(self, number: int) -> None:
        self._queue.put(str(number))

    def put_many(self, numbers: range) -> None:
        with self._queue.transaction():
            for number in numbers:
                self._queue.put(str(number))

    def unfinished(self) -> int:
        return int(self._queue.qsize())

    def durability(self) -> dict[str, str]:
        return read_pragmas(lambda name: self._queue.conn.execute(f"pragma {name}").fetchone()[0])

    def work(self) -> None:
        while True:
            message = self._queue.pop()
            if message is None:
                time.sleep(POLL_SECONDS)
                continue
            self._mark(int(message.data))
            self._queue.done(message.message_id)


def open_peer(place: str, mark: Mark) -> LitequeueSqlite:
    return LitequeueSqlite(Path(place), mark)
