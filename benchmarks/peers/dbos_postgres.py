# SPDX-License-Identifier: Apache-2.0
"""How is DBOS on PostgreSQL driven?"""

from __future__ import annotations

from benchmarks.peers.dbos_peer import DbosPeer
from benchmarks.peers.driver import Mark, read_server_settings


class DbosPostgres(DbosPeer):
    """On PostgreSQL it has a schema of its own."""

    def unfinished(self) -> int:
        return self.count_unfinished("dbos.workflow_status")

    def durability(self) -> dict[str, str]:
        return read_server_settings(self.ask)


def open_peer(place: str, mark: Mark, concurrency: int) -> DbosPostgres:
    return DbosPostgres(place, mark, concurrency)
