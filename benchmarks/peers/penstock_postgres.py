# SPDX-License-Identifier: Apache-2.0
"""How is Penstock on PostgreSQL driven?"""

from __future__ import annotations

import psycopg

from benchmarks.peers.driver import Mark, read_server_settings
from benchmarks.peers.penstock_peer import PenstockPeer


class PenstockPostgres(PenstockPeer):
    """Its store keeps no session state, so a new connection has the settings of all the others."""

    def __init__(self, url: str, mark: Mark, padding: int = 0) -> None:
        super().__init__(url, mark, padding)
        self._url = url

    def durability(self) -> dict[str, str]:
        with psycopg.connect(self._url) as connection:
            return read_server_settings(
                lambda query: (connection.execute(query.encode()).fetchone() or [None])[0]
            )


def open_peer(place: str, mark: Mark, padding: int = 0) -> PenstockPostgres:
    return PenstockPostgres(place, mark, padding)
