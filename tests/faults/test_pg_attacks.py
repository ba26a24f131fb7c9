# SPDX-License-Identifier: Apache-2.0
"""What do odd jobs, odd settings of the server and odd moments do to the PostgreSQL store?"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from penstock.model.job import Edge, LeasedJob, NewJob
from penstock.stores.postgres import bulk_insert
from penstock.stores.postgres.open import open_postgres
from penstock.stores.protocol import Store
from tests.faults.pg_world import (
    SECONDS,
    WORKER,
    done,
    is_sound,
    lease,
    new_jobs,
    place,
    register,
    request,
    states,
)
from tests.postgres.cluster import Server
from tests.postgres.fixtures import MakeCluster
from tests.waiting import wait_until

HURTFUL = {
    "isolation": {"default_transaction_isolation": "serializable"},
    "limits": {
        "statement_timeout": "1s",
        "lock_timeout": "10ms",
        "idle_in_transaction_session_timeout": "100ms",
    },
    "path": {"search_path": "nowhere"},
    "arrays": {"array_nulls": "off"},
    "texts": {
        "standard_conforming_strings": "off",
        "backslash_quote": "off",
        "client_encoding": "LATIN1",
        "bytea_output": "escape",
    },
    "times": {"TimeZone": "Asia/Kathmandu", "DateStyle": "SQL, DMY", "IntervalStyle": "iso_8601"},
    "plans": {
        "enable_indexscan": "off",
        "enable_nestloop": "off",
        "work_mem": "64kB",
        "plan_cache_mode": "force_custom_plan",
    },
}


def database_of(url: str) -> str:
    return str(conninfo_to_dict(url)["dbname"])


@contextmanager
def set_for(server: Server, url: str, settings: dict[str, str]) -> Iterator[None]:
    """What an administrator has set for a database."""
    name = sql.Identifier(database_of(url))
    with server.connect("postgres") as connection:
        for setting, value in settings.items():
            connection.execute(
                sql.SQL("alter database {} set {} = {}").format(
                    name, sql.Identifier(setting), sql.Literal(value)
                )
            )
        try:
            yield
        finally:
            connection.execute(sql.SQL("alter database {} reset all").format(name))


def work_off(store: Store, count: int) -> None:
    register(store)
    jobs = lease(store, count)
    store.ack(WORKER, [done(job) for job in jobs]).result(SECONDS)


@pytest.mark.parametrize("name", HURTFUL)
def test_what_an_administrator_has_set_for_others_does_not_hurt(
    name: str, postgres_server: Server, postgres_url: str
) -> None:
    with (
        set_for(postgres_server, postgres_url, HURTFUL[name]),
        closing(open_postgres(postgres_url)) as store,
    ):
        store.enqueue(new_jobs(5, prefix="😀\\\"'{null}")).result(SECONDS)
        store.enqueue(new_jobs(2, prefix="é", limit_keys=("host:\\x",))).result(SECONDS)
        store.enqueue([NewJob(key="last", task="t", payload='"\\\\😀"', group="g")]).result(SECONDS)
        late = NewJob(key="late", task="t", payload="{}", group="g", after=(Edge("last"),))
        store.enqueue([late]).result(SECONDS)

        work_off(store, 8)
        store.ack(WORKER, [done(job) for job in lease(store, 1)]).result(SECONDS)

        assert states(store) == {"done": 9}
        assert is_sound(store)


@pytest.mark.parametrize(
    "settings",
    [{"default_transaction_isolation": "serializable"}, {"statement_timeout": "200ms"}],
    ids=["serializable", "impatient"],
)
def test_who_waits_for_his_turn_to_make_the_schema_finds_it_made(
    settings: dict[str, str], postgres_server: Server
) -> None:
    url = postgres_server.create_database(f"turn_{'_'.join(settings)[-12:]}_{time.monotonic_ns()}")
    database = database_of(url)
    opened: list[Store | BaseException] = []

    def open_it() -> None:
        try:
            opened.append(open_postgres(url))
        except Exception as error:
            opened.append(error)

    def waiting() -> int:
        return int(
            postgres_server.ask(
                "select count(*) from pg_stat_activity where datname = %s and"
                " wait_event_type = 'Lock'",
                database,
            )
        )

    with set_for(postgres_server, url, settings):
        threads = [threading.Thread(target=open_it) for _ in range(3)]
        with postgres_server.connect(database) as other:
            other.execute("begin")
            other.execute("select pg_advisory_xact_lock(7308, 1)")
            for thread in threads:
                thread.start()
            wait_until(lambda: waiting() == 3 or bool(opened))
            time.sleep(0.3)  # longer than the limit
            other.execute("rollback")
        for thread in threads:
            thread.join(SECONDS)
    for store in opened:
        if not isinstance(store, BaseException):
            store.close()
    postgres_server.ask(f'drop database "{database}" with (force)')

    assert [error for error in opened if isinstance(error, BaseException)] == []


def test_a_lane_with_long_names_is_a_lane_as_any_other(postgres_url: str) -> None:
    """An index holds 2,704 bytes; a group and some limit keys may have more."""
    long = "".join(chr(0x10000 + 7919 * n % 0x100000) for n in range(250))
    keys = tuple(f"d{n}:{long[n:]}" for n in range(4))
    other = (*keys[:-1], keys[-1][:-1])
    with closing(open_postgres(postgres_url)) as store:
        store.enqueue(new_jobs(2, limit_keys=keys)).result(SECONDS)
        store.enqueue(new_jobs(1, prefix="alone", limit_keys=keys)).result(SECONDS)
        store.enqueue(new_jobs(1, prefix="other", limit_keys=other)).result(SECONDS)

        found = {key: store.job(key).result(SECONDS) for key in ("k0", "k1", "alone0", "other0")}
        assert {key: job.limit_keys for key, job in found.items() if job is not None} == {
            "k0": keys,
            "k1": keys,
            "alone0": keys,
            "other0": other,
        }
        work_off(store, 4)
        assert is_sound(store)


def test_ends_that_free_more_keys_than_the_server_has_locks_for_are_accepted(
    make_cluster: MakeCluster,
) -> None:
    server = make_cluster(settings={"max_locks_per_transaction": 30, "max_connections": 20})
    jobs = [
        NewJob(key=f"k{n}", task="t", payload="{}", group=f"g{n % 9}", limit_keys=keys)
        for n in range(1_500)
        for keys in [(f"a:{n}", f"b:{n}", f"c:{n}")]
    ]
    with closing(open_postgres(server.url())) as store:
        store.enqueue(jobs).result(SECONDS)
        register(store)
        leased: list[LeasedJob] = []
        while len(leased) < len(jobs):  # a lease that met only empty lanes has none
            leased += store.lease(request(len(jobs))).result(SECONDS).jobs
        store.ack(WORKER, [done(job) for job in leased]).result(SECONDS)

        assert states(store) == {"done": len(jobs)}
        assert store.holders(10).result(SECONDS) == {}
        assert is_sound(store)


def test_a_lost_connection_is_told_of_in_our_words_only(
    postgres_server: Server, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    database = database_of(postgres_url)
    ours = "from pg_stat_activity where datname = %s and application_name = 'penstock'"
    with closing(open_postgres(postgres_url)) as store:
        postgres_server.ask("select pg_terminate_backend(pid) " + ours, database)
        wait_until(lambda: postgres_server.ask("select count(*) " + ours, database) == 0)
        store.enqueue(new_jobs(2)).result(SECONDS)

    assert [record.name for record in caplog.records if record.name == "psycopg"] == []


def test_a_batch_with_large_payloads_is_written_by_several_statements(
    postgres_server: Server, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is bounded in time by the server; together they are still all or nothing."""
    monkeypatch.setattr(bulk_insert, "INSERT_CHARACTERS", 5_000)
    jobs = [
        NewJob(
            key=f"k{n % 8}",
            task="t",
            payload=f'"{n}{"x" * 2_000}"',
            group="g",
            after=(Edge(f"k{n - 1}"),) if n in (1, 5) else (),
        )
        for n in range(10)
    ]
    with place(postgres_server, postgres_url) as found:
        found.proxy.count_statements()
        report = found.store.enqueue(jobs).result(SECONDS)

        inserts = [n for text, n in found.proxy.statements.items() if "into penstock.jobs" in text]
        assert sum(inserts) == 5
        assert report.created == {f"k{n}" for n in range(8)}
        first = found.store.job("k1").result(SECONDS)
        assert first is not None
        assert first.payload.startswith('"1x')
        assert states(found.store) == {"queued": 6, "waiting": 2}
        assert is_sound(found.store)


#: Better matches for calls of the store than the server's own functions and operators.
OVERLOADS = """
create schema {schema};
create function {schema}.noted() returns void language plpgsql as $$ begin
    raise exception 'a function of another user has run';
end $$;
create function {schema}.concat(numeric, text, timestamptz) returns text language plpgsql
    as $$ begin perform {schema}.noted(); return ''; end $$;
create function {schema}.times(numeric, integer) returns numeric language plpgsql
    as $$ begin perform {schema}.noted(); return 0; end $$;
create operator {schema}.* (leftarg = numeric, rightarg = integer, function = {schema}.times);
create function {schema}.now() returns timestamptz language plpgsql
    as $$ begin perform {schema}.noted(); return null; end $$;
"""


@pytest.mark.parametrize("path", ['"$user", overloads', "overloads, pg_catalog"])
def test_functions_that_others_have_put_into_the_search_path_are_not_called(
    path: str, postgres_server: Server, postgres_url: str
) -> None:
    """A schema that everybody may write to (`public`, before PostgreSQL 15) is in most paths."""
    name = database_of(postgres_url)
    with postgres_server.connect(name) as connection:
        connection.execute("drop schema if exists overloads cascade")
        connection.execute(OVERLOADS.format(schema="overloads"))
        database = sql.Identifier(name)
        connection.execute(
            sql.SQL("alter database {} set search_path = {}").format(database, sql.SQL(path))
        )
        try:
            with closing(open_postgres(postgres_url)) as store:
                store.enqueue(new_jobs(5)).result(SECONDS)
                work_off(store, 5)

                assert states(store) == {"done": 5}
                assert is_sound(store)
        finally:
            connection.execute(sql.SQL("alter database {} reset search_path").format(database))
            connection.execute("drop schema overloads cascade")
