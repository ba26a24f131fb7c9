# SPDX-License-Identifier: Apache-2.0
"""F43: serialization failures, deadlocks, time-outs of the server, servers that only read."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import LiteralString

import psycopg
import pytest

from penstock.errors import (
    InternalError,
    PenstockError,
    StoreCorrupt,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    StoreUnsupported,
)
from penstock.model.job import JobId
from penstock.model.views import EnqueueReport
from penstock.stores import group_commit
from penstock.stores.postgres import open as opening
from penstock.stores.postgres.open import open_postgres
from penstock.stores.protocol import JobFilter
from tests.faults.pg_operations import OPERATIONS
from tests.faults.pg_world import (
    SECONDS,
    WORKER,
    Place,
    is_sound,
    lease,
    new_jobs,
    one_sentence,
    place,
    ref,
    register,
    request,
    states,
)
from tests.postgres.cluster import Server
from tests.postgres.fixtures import MakeCluster
from tests.waiting import wait_until

IN_THE_WAY = ("40001", "40P01", "55P03", "57014")
_LONGEST = 40  # no operation has as many statements


@pytest.mark.parametrize("name", OPERATIONS)
def test_f43_each_statement_of_each_operation_may_fail_and_the_whole_is_run_again(
    name: str, postgres_server: Server, postgres_url: str
) -> None:
    """The first, the second, … statement fails, with each state in turn, until none is left."""
    with place(postgres_server, postgres_url) as found:
        operation = OPERATIONS[name](found, len(IN_THE_WAY) * _LONGEST)
        counts = found.proxy.counts
        for state in IN_THE_WAY:
            for nth in range(1, _LONGEST):
                before = counts.errors_injected
                found.proxy.inject_error(state, every=nth)
                operation.call()
                found.proxy.forgive()
                if counts.errors_injected == before:
                    break
            assert 3 < nth < _LONGEST - 1, "begin, something and commit"

        operation.audit()


@pytest.mark.parametrize("state", IN_THE_WAY)
def test_f43_what_fails_again_and_again_is_given_up_and_nothing_is_left_of_it(
    state: str,
    postgres_server: Server,
    postgres_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_commit, "AGAIN_SECONDS", 0.2)
    with place(postgres_server, postgres_url) as found:
        found.proxy.inject_error(state, "somebody was in the way", when="penstock.hot", n=100_000)

        with pytest.raises(StoreUnavailable) as refusal:
            found.store.enqueue(new_jobs(2)).result(SECONDS)

        one_sentence(refusal.value, "somebody was in the way", "Nothing was changed")
        assert found.proxy.counts.errors_injected > 1
        found.proxy.forgive()
        assert found.ask("select count(*) from penstock.jobs") == 0
        assert found.store.enqueue(new_jobs(2)).result(SECONDS).created == {"k0", "k1"}
        assert is_sound(found.store)


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("53100", StoreFull),
        ("53200", StoreUnavailable),
        ("42501", StoreUnsupported),
        ("25006", StoreReadOnly),
        ("22012", InternalError),
    ],
)
def test_f43_other_refusals_are_told_in_one_sentence_and_the_store_goes_on(
    state: str, kind: type[PenstockError], postgres_server: Server, postgres_url: str
) -> None:
    with place(postgres_server, postgres_url) as found:
        found.proxy.inject_error(state, "the server says no", when="penstock.hot", n=100)

        with pytest.raises(kind) as refusal:
            found.store.enqueue(new_jobs(2)).result(SECONDS)

        one_sentence(refusal.value, found.store.url)
        found.proxy.forgive()
        assert found.ask("select count(*) from penstock.jobs") == 0
        assert found.store.enqueue(new_jobs(2)).result(SECONDS).created == {"k0", "k1"}
        assert is_sound(found.store)


def test_f43_damage_that_the_server_finds_ends_the_store(
    postgres_server: Server, postgres_url: str
) -> None:
    with place(postgres_server, postgres_url) as found:
        found.proxy.inject_error("XX001", "invalid page in block 7", when="penstock.hot")

        for _ in range(2):
            with pytest.raises(StoreCorrupt) as refusal:
                found.store.enqueue(new_jobs(2)).result(SECONDS)

            one_sentence(refusal.value, found.store.url, "invalid page in block 7")


@pytest.mark.parametrize("limit", ["LOCK_MS", "STATEMENT_MS"])
def test_f43_a_table_that_is_locked_by_somebody_is_waited_for(
    limit: str, postgres_server: Server, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server gives up a statement that waits; the transaction is run again until it works."""
    monkeypatch.setattr(opening, limit, 500)
    with place(postgres_server, postgres_url) as found:
        with found.server.connect(found.database) as foreign:
            found.proxy.count_statements()
            foreign.execute("begin")
            foreign.execute("lock table penstock.hot in access exclusive mode")
            reply = found.store.enqueue(new_jobs(2))
            wait_until(lambda: _begun(found) > 2)
            assert not reply.done
            foreign.execute("rollback")

        assert reply.result(SECONDS).created == {"k0", "k1"}
        assert states(found.store) == {"queued": 2}
        assert is_sound(found.store)


def _begun(found: Place) -> int:
    """How many transactions were opened?"""
    return sum(n for text, n in found.proxy.statements.items() if text.startswith("begin "))


def test_f43_a_deadlock_is_run_again(postgres_server: Server, postgres_url: str) -> None:
    """A foreign session holds the second key and asks for the first while we do the opposite."""
    insert: LiteralString = (
        "insert into penstock.jobs (key, lane_id, priority, payload, created_at)"
        " values (%s, 1, 0, '{}', 0)"
    )
    waiting: LiteralString = (
        "select count(*) from pg_stat_activity"
        " where datname = current_database() and wait_event_type = 'Lock'"
    )
    with place(postgres_server, postgres_url) as found:
        reports: list[EnqueueReport] = []
        with found.server.connect(found.database) as foreign:
            foreign.execute("set deadlock_timeout = '60s'")
            foreign.execute("begin")
            foreign.execute(insert, ("k1",))
            caller = threading.Thread(
                target=lambda: reports.append(found.store.enqueue(new_jobs(2)).result(SECONDS))
            )
            caller.start()
            wait_until(lambda: found.ask(waiting) == 1)
            foreign.execute(insert, ("k0",))
            foreign.execute("rollback")
        caller.join(SECONDS)

        assert [report.created for report in reports] == [{"k0", "k1"}]
        assert states(found.store) == {"queued": 2}
        assert is_sound(found.store)


@pytest.mark.parametrize(("user", "database"), [("nobody", "postgres"), ("penstock", "nowhere")])
def test_f43_a_server_that_does_not_let_us_in_is_named_at_once(
    user: str, database: str, postgres_server: Server
) -> None:
    url = postgres_server.url(database).replace("penstock@", f"{user}@")

    with pytest.raises(StoreUnsupported) as refusal:
        open_postgres(url)

    one_sentence(refusal.value, "does not exist", "Check user, password, database")


def test_f43_a_standby_is_named_read_when_that_will_do_and_never_written(
    make_cluster: MakeCluster,
) -> None:
    primary = make_cluster()
    url = primary.create_database("shop")
    with closing(open_postgres(url)) as store:
        store.enqueue(new_jobs(3)).result(SECONDS)
    with closing(primary.standby()) as standby:
        there = standby.url("shop")

        with pytest.raises(StoreReadOnly) as refusal:
            open_postgres(there)
        one_sentence(refusal.value, "standby", "Name the primary")
        with closing(open_postgres(there, reading_will_do=True)) as store:
            assert states(store) == {"queued": 3}
            jobs = store.jobs(JobFilter(), JobId(0), 10).result(SECONDS)
            assert [job.key for job in jobs] == ["k0", "k1", "k2"]
            with pytest.raises(StoreReadOnly) as refusal:
                store.enqueue(new_jobs(1)).result(SECONDS)
            one_sentence(refusal.value, "standby", "Name the primary")
            assert states(store) == {"queued": 3}


def test_f43_a_primary_that_becomes_read_only_is_named_and_goes_on_afterwards(
    postgres_server: Server, postgres_url: str
) -> None:
    with place(postgres_server, postgres_url) as found:
        register(found.store)
        found.store.enqueue(new_jobs(2)).result(SECONDS)
        jobs = lease(found.store, 1)
        found.ask(f"alter database {found.database} set default_transaction_read_only = on")
        found.proxy.cut()

        for call in (found.store.enqueue(new_jobs(1, "n")), found.store.lease(request(1))):
            with pytest.raises(StoreReadOnly) as refusal:
                call.result(SECONDS)
            one_sentence(refusal.value, "read-only by a setting")
        assert states(found.store) == {"queued": 1, "in_progress": 1}

        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("set default_transaction_read_only = off")
            connection.execute(
                f"alter database {found.database} reset default_transaction_read_only".encode()
            )
        found.proxy.cut()
        assert found.store.release(WORKER, [ref(jobs[0])]).result(SECONDS) == 1
        assert is_sound(found.store)
