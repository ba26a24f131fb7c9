# SPDX-License-Identifier: Apache-2.0
"""Do several statements in one round trip answer as they would one by one?"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest

from penstock.clock import SystemClock
from penstock.model.job import NewJob
from penstock.stores.postgres.connection import Address, connect
from penstock.stores.postgres.open import known_steps, open_postgres, statements_for
from penstock.stores.postgres.pipeline import RoundTrip
from penstock.stores.postgres.store import PostgresStore
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

WAIT = 30.0
LARGE = 3_000_000  # characters; more than a socket takes at once
QUERIES = {
    "add": "select $1::bigint + $2::bigint, $3::text",
    "length": "select length($1::text)",
    "same": "select $1::text",
    "divide": "select 1 / $1::bigint",
    "nothing": "set application_name = 'a'",
    "end": "select pg_terminate_backend(pg_backend_pid())",
}


@pytest.fixture(params=[True, False], ids=["prepares", "does-not"])
def trip(request: pytest.FixtureRequest, postgres_url: str) -> Iterator[RoundTrip]:
    address = Address.of(postgres_url)
    connection = connect(address, statements_for("full")).connection
    yield RoundTrip(connection, QUERIES, prepares=request.param)
    connection.close()


def test_each_statement_answers_with_its_rows(trip: RoundTrip) -> None:
    for _ in range(2):
        assert trip.ask([("add", (1, 2, "é")), ("nothing", ()), ("add", (3, None, None))]) == [
            [(3, "é")],
            [],
            [(None, None)],
        ]


def test_the_first_error_is_told_and_the_connection_is_still_of_use(trip: RoundTrip) -> None:
    for _ in range(2):
        with pytest.raises(psycopg.errors.DivisionByZero):
            trip.ask([("add", (1, 1, None)), ("divide", (0,)), ("same", ("x",))])
        assert trip.ask([("same", ("x",)), ("divide", (1,))]) == [[("x",)], [(1,)]]


def test_large_values_go_both_ways(trip: RoundTrip) -> None:
    text = "x" * LARGE
    asked = [("same", (text,)), ("length", (text,)), ("same", (text,))]
    assert trip.ask(asked) == [[(text,)], [(LARGE,)], [(text,)]]


@pytest.mark.parametrize(
    ("text", "error"), [("a\0b", psycopg.DataError), ("\ud800", UnicodeEncodeError)]
)
def test_a_text_that_cannot_be_sent_is_refused_before_anything_is(
    trip: RoundTrip, text: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        trip.ask([("same", ("x",)), ("same", (text,))])
    assert trip.ask([("same", ("x",))]) == [[("x",)]]


def test_a_lost_connection_is_told_and_closed(trip: RoundTrip) -> None:
    for _ in range(2):
        with pytest.raises(psycopg.OperationalError):
            trip.ask([("end", ()), ("same", ("x",))])


class Noting(dict[str, str]):
    """Statements that note their use."""

    def __init__(self) -> None:
        super().__init__(statements_for("full"))
        self.used: list[str] = []

    def __getitem__(self, name: str) -> str:
        self.used.append(name)
        return super().__getitem__(name)


@pytest.fixture
def noting(postgres_url: str) -> Iterator[tuple[PostgresStore, Noting]]:
    open_postgres(postgres_url).close()
    queries, address = Noting(), Address.of(postgres_url)
    first = connect(address, queries)
    store = PostgresStore(address, queries, SystemClock(), len(known_steps()), first)
    store.enqueue([_job("first")]).result(WAIT)  # makes the lane
    queries.used.clear()
    yield store, queries
    store.close()


def _job(key: str) -> NewJob:
    return NewJob(key=key, task="t", payload="{}", group="t")


def test_a_lone_job_is_accepted_in_two_round_trips(noting: tuple[PostgresStore, Noting]) -> None:
    store, queries = noting

    assert store.enqueue([_job("a")]).result(WAIT).created == {"a"}
    assert queries.used == [
        *("begin_write", "set_up", "insert_job"),
        *("keep_heads", "add_counts", "tell", "commit"),
    ]
    assert store.enqueue([_job("a")]).result(WAIT).existing == {"a"}
    assert store.check().result(WAIT) == []


def test_what_was_accepted_with_the_begin_is_undone_when_the_server_lives_another_life(
    noting: tuple[PostgresStore, Noting], postgres_url: str
) -> None:
    store, queries = noting
    with psycopg.connect(postgres_url, autocommit=True) as other:
        other.execute("update penstock.meta set value = 'another' where name = 'cluster'")

    assert store.enqueue([_job("a")]).result(WAIT).created == {"a"}
    assert queries.used.count("insert_job") == 2
    assert store.check().result(WAIT) == []


def test_a_lane_that_another_has_just_made_known_is_held_before_the_commit(
    noting: tuple[PostgresStore, Noting], postgres_url: str
) -> None:
    """Else a lease might forget it between our look and our commit: nobody would find the job."""
    store, queries = noting
    created: list[frozenset[str]] = []
    with psycopg.connect(postgres_url) as other:
        other.execute("delete from penstock.ready_lanes")
        other.commit()
        other.execute(
            "insert into penstock.ready_lanes (lane_id, task, grp, turn) "
            "select id, task, grp, 0 from penstock.lanes"
        )
        caller = threading.Thread(
            target=lambda: created.append(store.enqueue([_job("a")]).result(WAIT).created)
        )
        caller.start()
        with psycopg.connect(postgres_url, autocommit=True) as third:
            blocked = "select count(*) from pg_locks where not granted"
            wait_until(lambda: third.execute(blocked).fetchone() != (0,))
        other.commit()
    caller.join(WAIT)

    assert created == [{"a"}]
    assert queries.used.count("keep_heads") == 2  # the first one was refused by the server
    assert queries.used.count("commit") == 2
    assert store.check().result(WAIT) == []
