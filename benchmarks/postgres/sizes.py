# SPDX-License-Identifier: Apache-2.0
"""How large are the tables of a store, and which of them are hot?

A table is hot if its rows are changed or deleted; one into which rows are only ever put is history
and may grow.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.postgres.server import connect

MIB = 1024 * 1024
QUERY = """
select relname, pg_table_size(relid), pg_indexes_size(relid),
    coalesce(n_tup_upd, 0) + coalesce(n_tup_del, 0) > 0, coalesce(n_dead_tup, 0)
from pg_stat_user_tables order by relname
"""


@dataclass(frozen=True, slots=True)
class TableSize:
    """One table at one moment."""

    name: str
    table_mib: float
    index_mib: float
    hot: bool
    dead_rows: int

    @property
    def mib(self) -> float:
        return self.table_mib + self.index_mib


def table_sizes(url: str) -> list[TableSize]:
    """All tables of the database, with their indexes."""
    with connect(url) as connection:
        return [
            TableSize(str(name), table / MIB, index / MIB, bool(hot), int(dead))
            for name, table, index, hot, dead in connection.execute(QUERY).fetchall()
        ]


def hot_mib(tables: list[TableSize]) -> float:
    """The hot tables and their indexes together."""
    return sum(table.mib for table in tables if table.hot)


def vacuum(url: str) -> None:
    """Do at once what the server would do by itself in a while."""
    with connect(url) as connection:
        connection.execute("vacuum analyze")
