# SPDX-License-Identifier: Apache-2.0
"""Does what relies on a session fail behind the pooler, and the rest work?"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg.errors import InvalidSqlStatementName, QueryCanceled

from tests.postgres.cluster import Server
from tests.postgres.pooler import Pooler
from tests.waiting import wait_until

pytestmark = pytest.mark.integration


@pytest.fixture
def pooler(postgres_server: Server) -> Iterator[Pooler]:
    with Pooler(postgres_server, size=2) as pooler:
        yield pooler


@pytest.fixture
def url(pooler: Pooler, postgres_url: str) -> str:
    return pooler.url(postgres_url.split("?")[0].rsplit("/")[-1])


@contextlib.contextmanager
def client(url: str, **options: Any) -> Iterator[psycopg.Connection[Any]]:
    options = {"prepare_threshold": None, **options}
    with contextlib.closing(psycopg.connect(url, **options)) as connection:
        yield connection


def value(connection: psycopg.Connection[Any], statement: bytes, *values: object) -> Any:
    row = connection.execute(statement, values or None).fetchone()
    assert row is not None
    return row[0]


def test_each_transaction_runs_on_another_back_end(pooler: Pooler, url: str) -> None:
    seen = []
    with client(url) as connection:
        for _ in range(4):
            first, second = (value(connection, b"select pg_backend_pid()") for _ in range(2))
            assert first == second
            connection.commit()
            seen.append(first)

    assert seen == [seen[0], seen[1]] * 2
    assert seen[0] != seen[1]
    assert pooler.counts.transactions == 4


def test_setting_of_a_session_is_not_there_in_the_next_transaction(url: str) -> None:
    with client(url, autocommit=True) as connection:
        connection.execute("set search_path = elsewhere")

        assert value(connection, b"show search_path") != "elsewhere"
        assert value(connection, b"show search_path") == "elsewhere"


def test_advisory_lock_of_a_session_cannot_be_given_back(url: str) -> None:
    with client(url, autocommit=True) as connection:
        connection.execute("select pg_advisory_lock(1)")

        assert value(connection, b"select pg_advisory_unlock(1)") is False


def test_prepared_statements_are_missed(url: str) -> None:
    at_once = client(url, prepare_threshold=0, autocommit=True)

    with at_once as connection, pytest.raises(InvalidSqlStatementName):
        value(connection, b"select %s::int", 1)


def test_unprepared_statements_work_also_in_pipelines(url: str) -> None:
    with client(url) as connection:
        for number in range(3):
            assert value(connection, b"select %s::int", number) == number
            connection.commit()
        with connection.pipeline():
            connection.execute("create table kept (id int)")
            connection.execute("insert into kept values (%s)", [1])
            connection.commit()

        assert value(connection, b"select count(*) from kept") == 1


def test_notifications_are_lost(pooler: Pooler, url: str, postgres_url: str) -> None:
    with client(url, autocommit=True) as connection:
        connection.execute("listen news")
        with client(postgres_url, autocommit=True) as other:
            other.execute("notify news")

        wait_until(lambda: pooler.counts.lost_notifications == 1)
        assert list(connection.notifies(timeout=0)) == []


def test_many_clients_share_few_back_ends(pooler: Pooler, url: str) -> None:
    def work(_: int) -> None:
        with client(url) as connection:
            for _ in range(10):
                value(connection, b"select 1")
                connection.commit()

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(work, range(6)))

    assert pooler.counts.transactions == 60
    assert pooler.counts.back_ends == 2


def test_transaction_of_a_client_that_went_is_rolled_back(pooler: Pooler, url: str) -> None:
    with client(url) as connection:
        connection.execute("create table lost (id int)")

    with client(url) as connection:
        for _ in range(2):
            assert value(connection, b"select to_regclass('lost')") is None
            connection.commit()
    assert pooler.counts.back_ends > 1


def test_statement_is_cancelled_through_the_pooler(
    pooler: Pooler, url: str, postgres_url: str
) -> None:
    asked = (
        b"select count(*) from pg_stat_activity"
        b" where wait_event = 'PgSleep' and datname = current_database()"
    )
    with (
        client(postgres_url, autocommit=True) as direct,
        client(url) as connection,
        ThreadPoolExecutor() as threads,
    ):
        running = threads.submit(connection.execute, "select pg_sleep(600)")
        wait_until(lambda: value(direct, asked) == 1)

        connection.cancel_safe()

        with pytest.raises(QueryCanceled):
            running.result()
    assert pooler.counts.cancels == 1


def test_options_of_a_session_are_refused(url: str) -> None:
    with pytest.raises(psycopg.OperationalError, match="unsupported startup parameter"):
        psycopg.connect(url, options="-c search_path=elsewhere").close()


def test_refusal_of_the_server_is_told(pooler: Pooler) -> None:
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(pooler.url("nowhere")).close()
