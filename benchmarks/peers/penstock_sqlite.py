# SPDX-License-Identifier: Apache-2.0
"""How is Penstock on SQLite driven?"""

from __future__ import annotations

from pathlib import Path

import apsw

from benchmarks.peers.driver import Mark, read_pragmas
from benchmarks.peers.penstock_peer import PenstockPeer


class PenstockSqlite(PenstockPeer):
    """Its connections are those of the library in this process."""

    def durability(self) -> dict[str, str]:
        writers = [found for found in apsw.connections() if not found.readonly("main")]
        weakest = min(writers, key=lambda writer: int(writer.pragma("synchronous")))
        return read_pragmas(weakest.pragma)


def open_peer(place: str, mark: Mark) -> PenstockSqlite:
    return PenstockSqlite(f"sqlite:///{Path(place, 'penstock.db')}", mark)
