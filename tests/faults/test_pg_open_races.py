# SPDX-License-Identifier: Apache-2.0
"""F72: another process migrates a store on a server while it is opened, used or examined.

Nothing is wrong with such a store, so nobody may be told to put a backup in its place. A store
reads its statements from a table; here that table lets the other process act before one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg
import pytest

from penstock.clock import SystemClock
from penstock.errors import SchemaTooNew, StoreBusy, StoreCorrupt, StoreUnavailable
from penstock.model.job import NewJob
from penstock.stores.postgres import doctor
from penstock.stores.postgres import open as opening
from penstock.stores.postgres.connection import Address, connect
from penstock.stores.postgres.doctor import postgres_findings
from penstock.stores.postgres.open import known_steps, open_postgres, statements_for
from penstock.stores.postgres.store import PostgresStore
from penstock.stores.sql.statements import Migration
from tests.postgres.old_stores import build
from tests.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.integration]

NEWEST = len(known_steps())
JOB = NewJob(key="a", task="sell", payload="{}", group="g")
RENAMED = """
alter table penstock.jobs rename column key to name;
alter table penstock.counters rename column n to total;
"""
ANOTHER_MEANING = "update penstock.changes set n = -n"


class Meanwhile(dict[str, str]):
    """The statements of a store; the other process acts once, before the first use of one."""

    def __init__(self, name: str, act: Callable[[], object]) -> None:
        super().__init__(statements_for("normal"))
        self._name = name
        self.left = [act]

    def __getitem__(self, name: str) -> str:
        if name == self._name and self.left:
            self.left.pop()()
        return super().__getitem__(name)


def migrate(url: str, script: str) -> None:
    """Open the store as a newer Penstock does."""
    step = Migration(NEWEST + 1, "of_the_test.sql", script)
    open_postgres(url, durability="normal", migrations=(*known_steps(), step)).close()


@pytest.fixture
def url(postgres_url: str) -> str:
    """A store with a job."""
    with closing(open_postgres(postgres_url, durability="normal")) as store:
        store.enqueue([JOB]).result()
    return postgres_url


def test_f72_an_old_reader_is_told_of_the_newer_schema(url: str) -> None:
    with closing(open_postgres(url, durability="normal")) as old:
        old.stats().result()
        migrate(url, RENAMED)

        for _ in range(2):
            with pytest.raises(SchemaTooNew, match=f"brought to schema {NEWEST + 1}"):
                old.stats().result()


def test_f72_an_old_writer_is_told_of_the_newer_schema_within_its_transaction(url: str) -> None:
    """The version was read with the transaction's begin; the tables are touched a moment later."""
    address = Address.of(url)
    queries = Meanwhile("open_job", lambda: migrate(url, RENAMED))
    first = connect(address, queries)
    with closing(PostgresStore(address, queries, SystemClock(), NEWEST, first)) as old:
        for _ in range(2):
            with pytest.raises(SchemaTooNew, match=f"brought to schema {NEWEST + 1}"):
                old.cancel(["a"]).result()
    assert not queries.left


@pytest.mark.parametrize("script", [RENAMED, ANOTHER_MEANING], ids=["columns", "meaning"])
def test_f72_a_store_that_a_newer_process_migrates_while_it_is_examined_is_newer(
    url: str, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = Meanwhile("check_task_counts", lambda: migrate(url, script))
    monkeypatch.setattr(doctor, "statements", lambda: queries)

    (told,) = [
        found.text
        for found in postgres_findings(url, full=True)
        if not found.ok and found.check != "durability"
    ]

    assert not queries.left
    assert f"has schema {NEWEST + 1}, made by a newer Penstock" in told


def test_f72_a_schema_that_goes_while_it_is_opened_is_made_as_if_it_had_been_missing(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drop() -> None:
        with psycopg.connect(url) as connection:
            connection.execute("drop schema penstock cascade")

    queries = Meanwhile("schema_version", drop)
    monkeypatch.setattr(opening, "statements_for", lambda _: queries)

    with closing(open_postgres(url)) as store:
        assert store.check().result() == []
    assert not queries.left


def test_f72_whether_a_schema_is_a_store_is_read_from_one_state(postgres_url: str) -> None:
    """Else a store that is being made in an empty schema may look like another program's."""
    query = statements_for("normal")["schema_exists"]
    with psycopg.connect(postgres_url, autocommit=True) as other:
        other.execute("create schema penstock")
        with psycopg.connect(postgres_url) as connection:
            connection.execute("set transaction isolation level repeatable read")
            connection.execute("select 1")  # its state begins here
            open_postgres(postgres_url).close()

            assert connection.execute(query.encode()).fetchone() == (True, False, False)
        assert other.execute(query.encode()).fetchone() == (True, True, True)


def test_f72_damage_is_told_all_the_same(url: str) -> None:
    with closing(open_postgres(url, durability="normal")) as store:
        with psycopg.connect(url) as connection:
            connection.execute(RENAMED.encode())
        with pytest.raises(StoreCorrupt, match="is incomplete"):
            store.stats().result()
        with pytest.raises(StoreCorrupt, match="is incomplete"):
            store.cancel(["a"]).result()


@pytest.mark.parametrize("asked", ["schema_exists", "schema_version"])
def test_a_store_whose_connection_is_lost_while_it_is_opened_is_waited_for(
    url: str, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    """Not called a bug of ours: whoever opens it tries again while it is unavailable."""
    open_postgres(url).close()

    def cut() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where application_name = 'penstock' and datname = current_database()"
            )

    queries = Meanwhile(asked, cut)
    monkeypatch.setattr(opening, "statements_for", lambda _: queries)

    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        open_postgres(url)
    assert not queries.left


def test_a_store_that_another_process_keeps_locked_while_it_is_opened_is_busy(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = statements_for("normal") | {"migrate_at_leisure": "set local lock_timeout = '50ms'"}
    monkeypatch.setattr(opening, "statements_for", lambda _: queries)
    with psycopg.connect(postgres_url) as other:
        other.execute(queries["lock_migrations"].encode())

        with pytest.raises(StoreBusy, match="interfered while opening"):
            open_postgres(postgres_url)


def test_a_migration_repeats_when_a_worker_of_the_older_schema_crosses_it(
    postgres_url: str,
) -> None:
    """A worker holds one table and wants another; the migration has taken them the other way."""
    build(postgres_url, NEWEST - 1)
    with psycopg.connect(postgres_url) as worker, ThreadPoolExecutor(1) as pool:
        worker.execute("set deadlock_timeout = '1h'")  # so the server ends the migration
        worker.execute("lock table penstock.calls in row exclusive mode")
        opened = pool.submit(open_postgres, postgres_url, durability="normal")
        wait_until(lambda: waits_for_lock(postgres_url) > 0)
        worker.execute("select count(*) from penstock.lanes")
        worker.commit()

        with closing(opened.result()) as store:
            assert store.check().result() == []


def waits_for_lock(url: str) -> int:
    """How many transactions of the database wait for a lock."""
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "select count(*) from pg_locks join pg_database on pg_database.oid = database"
            " where not granted and datname = current_database()"
        ).fetchone()
    return int(row[0]) if row is not None else 0
