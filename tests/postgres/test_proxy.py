# SPDX-License-Identifier: Apache-2.0
"""Does the proxy hurt what it is told to hurt, and nothing else?"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg.errors import DeadlockDetected, InFailedSqlTransaction, SerializationFailure

from tests.postgres.cluster import Server
from tests.postgres.proxy import Proxy
from tests.postgres.wire import SSL_REQUEST
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

PREPARED_AT_ONCE = 0
NEVER_PREPARED = None


class Yard:
    """A proxy before an empty database with one table."""

    def __init__(self, proxy: Proxy, direct: str) -> None:
        self.proxy = proxy
        self.url = proxy.url(direct.split("?")[0].rsplit("/")[-1])
        self._direct = psycopg.connect(direct, autocommit=True)
        self._direct.execute("create table kept (id int primary key)")

    @contextlib.contextmanager
    def client(self, **options: Any) -> Iterator[psycopg.Connection[Any]]:
        with contextlib.closing(psycopg.connect(self.url, **options)) as connection:
            yield connection

    def kept(self) -> list[int]:
        return [row[0] for row in self._direct.execute("select id from kept order by id")]

    def somebody_sleeps(self) -> bool:
        asked = (
            "select 1 from pg_stat_activity"
            " where wait_event = 'PgSleep' and datname = current_database()"
        )
        return self._direct.execute(asked).fetchone() is not None

    def close(self) -> None:
        self._direct.close()


@pytest.fixture
def yard(postgres_server: Server, postgres_url: str) -> Iterator[Yard]:
    with (
        Proxy(postgres_server) as proxy,
        contextlib.closing(Yard(proxy, postgres_url)) as yard,
    ):
        yield yard


def insert(connection: psycopg.Connection[Any], number: int) -> None:
    connection.execute("insert into kept values (%s)", [number])


def insert_and_commit(
    connection: psycopg.Connection[Any], numbers: list[int], pipeline: bool
) -> None:
    with connection.pipeline() if pipeline else contextlib.nullcontext():
        for number in numbers:
            insert(connection, number)
        connection.commit()


def test_statements_pass_and_are_counted(yard: Yard) -> None:
    yard.proxy.count_statements()
    with yard.client(prepare_threshold=PREPARED_AT_ONCE) as connection:
        insert(connection, 1)
        insert(connection, 2)
        connection.commit()
        rows = connection.execute("select  generate_series(1, 20000), repeat('x', 50)").fetchall()

    assert len(rows) == 20_000
    assert yard.kept() == [1, 2]
    assert yard.proxy.statements["insert into kept values ($1)"] == 2
    assert yard.proxy.statements["COMMIT"] == 1
    assert yard.proxy.counts.commits == 1
    assert yard.proxy.counts.connections == 1


@pytest.mark.parametrize("pipeline", [False, True])
def test_commit_happens_though_its_reply_is_dropped(yard: Yard, pipeline: bool) -> None:
    yard.proxy.drop_commit_replies(1)
    with yard.client() as connection, pytest.raises(psycopg.OperationalError):
        insert_and_commit(connection, [1], pipeline)

    with yard.client() as connection:
        insert(connection, 2)
        connection.commit()

    assert yard.kept() == [1, 2]
    assert yard.proxy.counts.replies_dropped == 1


@pytest.mark.parametrize("pipeline", [False, True])
def test_commit_does_not_happen_when_it_is_cut_before(yard: Yard, pipeline: bool) -> None:
    yard.proxy.cut_before_commits(1)
    with yard.client() as connection, pytest.raises(psycopg.OperationalError):
        insert_and_commit(connection, [1], pipeline)

    assert yard.kept() == []
    assert yard.proxy.counts.cut_before == 1


def test_reply_of_a_lone_statement_is_dropped_after_it_was_committed(yard: Yard) -> None:
    yard.proxy.drop_replies(1, "insert into kept")
    with yard.client(autocommit=True) as connection, pytest.raises(psycopg.OperationalError):
        insert(connection, 1)

    assert yard.kept() == [1]


def test_refused_commit_is_told_and_does_not_use_the_rule_up(yard: Yard) -> None:
    yard.proxy.drop_commit_replies(1)
    with yard.client() as connection:
        with contextlib.suppress(psycopg.errors.UndefinedTable):
            connection.execute("select * from nothing")
        connection.execute("commit")
        assert yard.proxy.counts.replies_dropped == 0

        insert(connection, 1)
        with pytest.raises(psycopg.OperationalError):
            connection.commit()

    assert yard.kept() == [1]


def test_only_commits_of_named_transactions_are_dropped_each_second_time(yard: Yard) -> None:
    yard.proxy.drop_commit_replies(1, of="insert into kept", every=2)
    with yard.client() as connection:
        for _ in range(3):
            connection.execute("select 1")
            connection.commit()
        insert(connection, 1)
        connection.commit()
        insert(connection, 2)
        with pytest.raises(psycopg.OperationalError):
            connection.commit()

    assert yard.kept() == [1, 2]


@pytest.mark.parametrize("threshold", [PREPARED_AT_ONCE, NEVER_PREPARED])
@pytest.mark.parametrize("values", [[7], None])
def test_injected_error_leaves_the_transaction_failed_and_the_connection_well(
    yard: Yard, threshold: int | None, values: list[int] | None
) -> None:
    statement = b"insert into kept values (%s)" if values else b"insert into kept values (7)"
    yard.proxy.inject_error("40001", "it's late", when="insert")
    with yard.client(prepare_threshold=threshold) as connection:
        connection.execute("select 1")
        with pytest.raises(SerializationFailure, match="it's late"):
            connection.execute(statement, values)
        with pytest.raises(InFailedSqlTransaction):
            connection.execute("select 1")
        connection.rollback()

        connection.execute(statement, values)
        connection.commit()

    assert yard.kept() == [7]
    assert yard.proxy.counts.errors_injected == 1


def test_injected_error_fails_a_pipeline_as_a_real_one_does(yard: Yard) -> None:
    yard.proxy.inject_error("40P01", when="insert", every=2)
    with yard.client(prepare_threshold=PREPARED_AT_ONCE) as connection:
        with pytest.raises(DeadlockDetected):
            insert_and_commit(connection, [1, 2, 3], pipeline=True)
        connection.rollback()

        insert_and_commit(connection, [4, 5], pipeline=True)

    assert yard.kept() == [4, 5]


def test_stalled_connection_goes_on_after_it_is_resumed(yard: Yard) -> None:
    with yard.client(autocommit=True) as connection:
        yard.proxy.stall(requests=False)
        connection.pgconn.send_query(b"insert into kept values (1)")
        wait_until(lambda: yard.kept() == [1])
        poll = select.poll()  # as descriptors may have high numbers
        poll.register(connection, select.POLLIN)
        assert poll.poll(100) == []

        yard.proxy.resume()

        result = connection.pgconn.get_result()
        assert result is not None
        assert result.command_status == b"INSERT 0 1"


def test_stalled_proxy_says_nothing_to_new_clients(yard: Yard) -> None:
    yard.proxy.stall()

    with socket.create_connection((yard.proxy.host, yard.proxy.port), timeout=0.2) as client:
        client.sendall(struct.pack("!ii", 8, SSL_REQUEST))
        with pytest.raises(TimeoutError):
            client.recv(1)
        client.settimeout(30)
        yard.proxy.resume()
        assert client.recv(1) == b"N"


def test_cut_resets_and_refusal_lasts_until_accepted_again(yard: Yard) -> None:
    with yard.client() as connection:
        yard.proxy.refuse()
        connection.execute("select 1")
        yard.proxy.cut()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")

    with pytest.raises(psycopg.OperationalError, match="refused"):
        psycopg.connect(yard.url).close()
    yard.proxy.accept()

    with yard.client() as connection:
        assert connection.execute("select 1").fetchone() == (1,)


def test_delayed_statement_is_cancelled_through_the_proxy(yard: Yard) -> None:
    yard.proxy.delay(0.01)
    with yard.client() as connection, ThreadPoolExecutor() as threads:
        running = threads.submit(connection.execute, "select pg_sleep(600)")
        wait_until(yard.somebody_sleeps)

        connection.cancel_safe()

        with pytest.raises(psycopg.errors.QueryCanceled):
            running.result()
    assert yard.proxy.counts.cancels == 1


def test_forgiven_proxy_only_passes_on(yard: Yard) -> None:
    yard.proxy.drop_commit_replies(5)
    yard.proxy.stall()

    yard.proxy.forgive()

    with yard.client() as connection:
        insert(connection, 1)
        connection.commit()
    assert yard.kept() == [1]
