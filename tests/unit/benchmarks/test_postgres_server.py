# SPDX-License-Identifier: Apache-2.0
"""Whether the section on PostgreSQL knows the server that it measures."""

from __future__ import annotations

import psycopg
import pytest

from benchmarks.postgres import server
from benchmarks.postgres.sizes import table_sizes
from tests.postgres.cluster import Server

pytestmark = pytest.mark.integration


def test_a_server_that_may_lose_what_it_commits_is_not_measured(postgres_server: Server) -> None:
    with pytest.raises(RuntimeError, match="fsync"):
        server.describe(postgres_server.url())


def test_a_database_lives_as_long_as_its_measurement(postgres_server: Server) -> None:
    with server.new_database(postgres_server.url()) as url:
        kept_open = server.connect(url)
        name = server.ask(kept_open, "select current_database()")

    assert not postgres_server.ask("select count(*) from pg_database where datname = %s", name)
    with pytest.raises(psycopg.Error):
        kept_open.execute("select 1")
    kept_open.close()


def test_a_table_is_hot_if_its_rows_change(postgres_url: str) -> None:
    with server.connect(postgres_url) as connection:
        for table in ("history", "queue"):
            connection.execute(f"create table {table} (id int primary key)".encode())
            connection.execute(f"insert into {table} select generate_series(1, 100)".encode())
        connection.execute("delete from queue where id <= 60")
        connection.execute("select pg_stat_force_next_flush()")

    found = {table.name: table for table in table_sizes(postgres_url)}

    assert {name: table.hot for name, table in found.items()} == {"history": False, "queue": True}
    assert found["queue"].dead_rows == 60
    assert found["history"].mib > 0
