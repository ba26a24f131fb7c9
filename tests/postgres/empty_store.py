# SPDX-License-Identifier: Apache-2.0
"""How does a test get an empty store quickly? Making its schema takes a tenth of a second."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, LiteralString

import pytest

if TYPE_CHECKING:
    from psycopg import Connection

    from tests.postgres.cluster import Server

_EMPTY: LiteralString = """
do $$
declare
    found record;
    used boolean;
    names text[] := '{}';
begin
    perform pg_terminate_backend(pid) from pg_stat_activity
    where datname = current_database() and pid <> pg_backend_pid()
        and backend_type = 'client backend';
    for found in
        select relname from pg_class
        where relnamespace = 'penstock'::regnamespace and relkind = 'r'
            and relname <> 'schema_versions'
    loop
        execute format('select exists (select from penstock.%I)', found.relname) into used;
        if used then
            names := names || format('penstock.%I', found.relname);
        end if;
    end loop;
    if names <> '{}' then
        execute 'truncate ' || array_to_string(names, ', ');
    end if;
    for found in
        select relname from pg_class
        where relnamespace = 'penstock'::regnamespace and relkind = 'S'
    loop
        execute format('alter sequence penstock.%I restart', found.relname);
    end loop;
    insert into penstock.meta (name, value) values ('token_floor', '0'), ('commit_seq', '0');
    insert into penstock.apps (no, name) values (1, '');
end
$$
"""


@pytest.fixture(scope="session")
def _store_database(postgres_server: Server) -> Iterator[tuple[str, Connection[Any]]]:
    """This process's store: its URL, and a connection that knows how to empty it."""
    from penstock.stores.postgres.open import open_postgres

    name = "store_" + os.environ.get("PYTEST_XDIST_WORKER", "main")
    url = postgres_server.create_database(name)
    open_postgres(url).close()
    with postgres_server.connect(name) as connection:
        yield url, connection


@pytest.fixture
def empty_store(_store_database: tuple[str, Connection[Any]]) -> Callable[[], str]:
    """Empty this process's store, as often as a test likes; its URL. Nobody may be using it."""
    url, connection = _store_database

    def empty() -> str:
        connection.execute(_EMPTY)
        return url

    return empty
