# SPDX-License-Identifier: Apache-2.0
"""How is huey on SQLite driven? WAL, fsync on, no results, one thread that polls every 10 ms."""

from __future__ import annotations

from pathlib import Path

from huey import SqliteHuey

from benchmarks.peers.driver import Mark, read_pragmas

POLL_SECONDS = 0.01  # its default is 100 ms, growing to 10 s


class HueySqlite:
    """Has no call for many jobs; a second worker thread makes it slower."""

    def __init__(self, folder: Path, mark: Mark) -> None:
        self._huey = SqliteHuey(
            "bench", filename=str(folder / "huey.db"), fsync=True, results=False
        )

        def noop(number: int) -> None:
            mark(number)

        self._task = self._huey.task()(noop)

    def put(self, number: int) -> None:
        self._task(number)

    def put_many(self, numbers: range) -> None:
        for number in numbers:
            self._task(number)

    def unfinished(self) -> int:
        return int(self._huey.storage.queue_size())

    def durability(self) -> dict[str, str]:
        return read_pragmas(
            lambda name: self._huey.storage.conn.execute(f"pragma {name}").fetchone()[0]
        )

    def work(self) -> None:
        self._huey.create_consumer(
            workers=1,
            periodic=False,
            initial_delay=POLL_SECONDS,
            max_delay=POLL_SECONDS,
            check_worker_health=False,
        ).run()


def open_peer(place: str, mark: Mark) -> HueySqlite:
    return HueySqlite(Path(place), mark)
