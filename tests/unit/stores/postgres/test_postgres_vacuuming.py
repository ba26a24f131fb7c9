# SPDX-License-Identifier: Apache-2.0
"""Do jobs that pass leave tables of a bounded size where autovacuum does not come?"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from penstock.stores.postgres import vacuum
from penstock.stores.postgres.doctor import postgres_findings
from penstock.stores.postgres.open import open_postgres
from penstock.stores.postgres.vacuum import (
    DEAD_ROWS,
    DEAD_SHARE,
    PAUSE_SECONDS,
    PAUSE_SECONDS_MAX,
    DeadRows,
    Pace,
)
from tests.faults.races import done, put, register, take
from tests.postgres.cluster import USER, Server
from tests.postgres.pooler import Pooler
from tests.waiting import wait_until

LONG_AGO = 1e9
MANY = DEAD_ROWS + 1
ROUNDS = 4
ROUND_JOBS = 2_000


def found(
    dead: int, *, live: int = 0, deaths: int = 0, since: float = LONG_AGO, may: bool = True
) -> DeadRows:
    return DeadRows(dead, live, deaths, since, may)


def test_few_dead_rows_are_left_to_autovacuum() -> None:
    assert not Pace().is_due(found(DEAD_ROWS), 0.0)
    assert Pace().is_due(found(MANY), 0.0)


def test_more_of_them_are_left_in_a_long_queue() -> None:
    live = 10 * DEAD_ROWS
    assert not Pace().is_due(found(MANY, live=live), 0.0)
    assert Pace().is_due(found(int(MANY + DEAD_SHARE * live), live=live), 0.0)


def test_nobody_vacuums_where_somebody_just_has() -> None:
    pace = Pace()
    assert not pace.is_due(found(MANY, since=PAUSE_SECONDS / 2), 0.0)
    assert pace.is_due(found(MANY, since=PAUSE_SECONDS), 0.0)
    assert not pace.is_due(found(MANY), PAUSE_SECONDS / 2)  # one that was skipped is not counted


def test_while_they_help_they_follow_each_other() -> None:
    pace = Pace()
    for turn in range(10):
        assert pace.is_due(found(MANY, deaths=turn * MANY), turn * PAUSE_SECONDS)


def test_while_they_do_not_help_they_become_rare_and_afterwards_they_do_not() -> None:
    pace = Pace()
    due = [0.0]
    assert pace.is_due(found(MANY), 0.0)
    for at in range(1, 1_000):
        if pace.is_due(found(MANY + at, deaths=at, since=at - due[-1]), float(at)):
            due.append(float(at))
    pauses = [later - earlier for earlier, later in pairwise(due)]

    assert pauses[:4] == [2.0, 4.0, 8.0, 16.0]
    assert set(pauses[5:]) == {PAUSE_SECONDS_MAX}

    pace.is_due(found(0), 2_000.0)
    assert pace.is_due(found(MANY), 2_001.0)
    assert pace.is_due(found(MANY, deaths=MANY), 2_001.0 + PAUSE_SECONDS)


def test_who_may_not_vacuum_or_could_not_leaves_it_for_a_while() -> None:
    pace = Pace()
    assert not pace.is_due(found(MANY, may=False), 0.0)
    assert not pace.is_due(found(MANY), PAUSE_SECONDS)
    assert pace.is_due(found(MANY), PAUSE_SECONDS_MAX)
    pace.did_not_work(PAUSE_SECONDS_MAX)
    assert not pace.is_due(found(MANY), 2 * PAUSE_SECONDS_MAX - 1)


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vacuum, "LOOK_LEASES", 1)
    monkeypatch.setattr(vacuum, "DEAD_ROWS", 1_000)
    monkeypatch.setattr(vacuum, "PAUSE_SECONDS", 0.0)


@pytest.mark.integration
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("pooled", [False, True], ids=["direct", "pooler"])
def test_what_passes_through_the_queue_does_not_make_it_grow(
    postgres_server: Server, postgres_url: str, pooled: bool
) -> None:
    database = str(conninfo_to_dict(postgres_url)["dbname"])
    with Pooler(postgres_server, size=4) as pooler:
        url = pooler.url(database) if pooled else postgres_url
        with closing(open_postgres(url, durability="normal")) as store:
            postgres_server.ask(
                "alter table penstock.hot set (autovacuum_enabled = off)", database=database
            )
            worker = register(store, "w", ttl=1e6)
            passed = 0

            def let_pass(count: int) -> None:
                nonlocal passed
                put(store, *(f"k{n}" for n in range(passed, passed + count)))
                store.ack(worker, [done(job) for job in take(store, worker, count)]).result()
                passed += count

            def vacuums() -> int:
                return int(
                    postgres_server.ask(
                        "select vacuum_count from pg_stat_user_tables where relname = 'hot'",
                        database=database,
                    )
                )

            def is_vacuumed_again(before: int) -> bool:
                let_pass(1)  # so that it looks again, until the server has counted
                return vacuums() > before

            sizes = []
            for _ in range(ROUNDS):
                before = vacuums()
                for _ in range(ROUND_JOBS // 100):
                    let_pass(100)
                wait_until(lambda before=before: is_vacuumed_again(before))  # type: ignore[misc]
                sizes.append(
                    postgres_server.ask(
                        "select pg_total_relation_size('penstock.hot')", database=database
                    )
                )
            assert store.check().result() == []
    # Unvacuumed it would be ROUNDS times as large; how soon a busy machine vacuums is luck.
    assert sizes[-1] <= 0.75 * ROUNDS * sizes[0]
    wait_until(lambda: "penstock-vacuum" not in {thread.name for thread in threading.enumerate()})


@contextmanager
def _worker_role(owner_url: str) -> Iterator[str]:
    """The URL of a role that may use the tables, and owns none."""
    name = f"worker_{secrets.token_hex(4)}"
    role = sql.Identifier(name)
    with psycopg.connect(owner_url, autocommit=True) as owner:
        for statement in (
            "create role {} login",
            "grant usage on schema penstock to {}",
            "grant select, insert, update, delete on all tables in schema penstock to {}",
            "grant usage, select on all sequences in schema penstock to {}",
        ):
            owner.execute(sql.SQL(statement).format(role))
        try:
            parts = urlsplit(owner_url)
            yield parts._replace(netloc=parts.netloc.replace(USER, name)).geturl()
        finally:
            owner.execute(sql.SQL("drop owned by {}").format(role))
            owner.execute(sql.SQL("drop role {}").format(role))


@pytest.mark.integration
def test_a_role_that_owns_no_table_is_told_that_autovacuum_is_alone(postgres_url: str) -> None:
    open_postgres(postgres_url).close()
    with _worker_role(postgres_url) as url:
        (theirs,) = [found for found in postgres_findings(url) if found.check == "vacuum"]
    (ours,) = [found for found in postgres_findings(postgres_url) if found.check == "vacuum"]

    assert theirs.ok
    assert "may not vacuum" in theirs.text
    assert "may not vacuum" not in ours.text
