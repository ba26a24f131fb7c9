# SPDX-License-Identifier: Apache-2.0
"""How is DBOS on SQLite driven? In WAL, 300 workflows at once."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from benchmarks.peers.dbos_peer import DbosPeer
from benchmarks.peers.driver import Mark, read_pragmas

CONCURRENCY = 300  # workflows at once; fewer and many more are slower


class DbosSqlite(DbosPeer):
    """Its own journal mode is the rollback journal; in WAL it is about twice as fast.

    A file that was put into WAL stays there.
    """

    def __init__(self, path: Path, mark: Mark) -> None:
        connection = sqlite3.connect(path)
        connection.execute("pragma journal_mode = wal")
        connection.close()
        super().__init__(f"sqlite:///{path}", mark, CONCURRENCY)

    def unfinished(self) -> int:
        return self.count_unfinished("workflow_status")

    def durability(self) -> dict[str, str]:
        return read_pragmas(lambda name: self.ask(f"pragma {name}"))


def open_peer(place: str, mark: Mark) -> DbosSqlite:
    return DbosSqlite(Path(place, "dbos.db"), mark)
