# SPDX-License-Identifier: Apache-2.0
"""How is FlexiQ on SQLite driven? An async task, a scheduler that polls every millisecond."""

from __future__ import annotations

import logging
from pathlib import Path

import flexiq._flexiq
from flexiq import Queue
from flexiq.log_config import configure

from benchmarks.peers.driver import JOURNAL_MODE, SYNCHRONOUS, Mark

POLL_MILLISECONDS = 1  # its default is 50; its push dispatch is slower on a backlog
CLAIMS = 500  # jobs that its scheduler claims at once; its default on SQLite is 1
THREADS = 64  # they also bound what is claimed; its default is one per core
BATCH = 1_000  # jobs of one call of put_many


class FlexiqSqlite:
    """Its connections are out of reach, inside the compiled part."""

    def __init__(self, folder: Path, mark: Mark) -> None:
        self._queue = Queue(
            db_path=str(folder / "flexiq.db"),
            workers=THREADS,
            scheduler_poll_interval_ms=POLL_MILLISECONDS,
            scheduler_batch_size=CLAIMS,
        )

        async def noop(number: int) -> None:
            mark(number)

        self._task = self._queue.task(name="noop")(noop)

    def put(self, number: int) -> None:
        self._task.delay(number)

    def put_many(self, numbers: range) -> None:
        for first in range(numbers.start, numbers.stop, BATCH):
            batch = range(first, min(first + BATCH, numbers.stop))
            self._queue.enqueue_many("noop", [(number,) for number in batch])

    def unfinished(self) -> int:
        stats = self._queue.stats()
        return int(stats["pending"] + stats["running"])

    def durability(self) -> dict[str, str]:
        # Compiled in, with no option to change it.
        library = Path(flexiq._flexiq.__file__).read_bytes()
        return {
            JOURNAL_MODE: "wal" if b"PRAGMA journal_mode = WAL" in library else "unknown",
            SYNCHRONOUS: "NORMAL" if b"PRAGMA synchronous = NORMAL" in library else "unknown",
        }

    def work(self) -> None:
        configure("ERROR")  # at INFO it writes two lines per job
        logging.disable(logging.INFO)
        self._queue.run_worker()


def open_peer(place: str, mark: Mark) -> FlexiqSqlite:
    return FlexiqSqlite(Path(place), mark)
