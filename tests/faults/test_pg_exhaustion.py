# SPDX-License-Identifier: Apache-2.0
"""F42: no connections are left. Leases are kept, the error says what is missing, work goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing

import psycopg
import pytest

from penstock.errors import StoreUnavailable
from penstock.model.job import WorkerId
from penstock.model.lease import Verdict
from penstock.stores import group_commit
from penstock.stores.postgres import read
from penstock.stores.postgres.open import open_postgres
from tests.faults.pg_world import (
    SECONDS,
    TTL_SECONDS,
    WORKER,
    done,
    is_sound,
    lease,
    new_jobs,
    one_sentence,
    register,
    states,
)
from tests.postgres.cluster import Cluster
from tests.postgres.fixtures import MakeCluster
from tests.waiting import wait_until

_CONNECTIONS: dict[str, str | int] = {
    "max_connections": 12,
    "superuser_reserved_connections": 0,
    "max_wal_senders": 0,
    "autovacuum": "off",
}
_OWN = "select pid from pg_stat_activity where application_name = 'ours' order by backend_start"


@pytest.fixture
def cluster(make_cluster: MakeCluster) -> Cluster:
    cluster = make_cluster(settings=_CONNECTIONS)
    cluster.create_database("shop")
    return cluster


@pytest.fixture
def crowd(cluster: Cluster) -> Iterator[ExitStack]:
    """Others, who take every connection that is free."""
    with ExitStack() as crowd:
        yield crowd


def _fill(cluster: Cluster, crowd: ExitStack) -> None:
    try:
        while True:
            crowd.enter_context(closing(cluster.connect()))
    except psycopg.OperationalError:
        return


def _wait_for_room(cluster: Cluster) -> None:
    """Back ends end some time after their clients have left."""

    def has_room() -> bool:
        try:
            used = cluster.ask("select count(*) from pg_stat_activity where datname is not null")
        except psycopg.OperationalError:
            return False
        return int(used) <= int(_CONNECTIONS["max_connections"]) // 2

    wait_until(has_room)


def test_f42_beats_have_a_connection_of_their_own_so_leases_are_kept(
    cluster: Cluster, crowd: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "AGAIN_SECONDS", 0.5)
    monkeypatch.setattr(read, "ASK_SECONDS", 0.5)
    with closing(open_postgres(cluster.url("shop") + "&application_name=ours")) as store:
        register(store)
        store.enqueue(new_jobs(3)).result(SECONDS)
        jobs = lease(store, 2)
        assert store.beat([WORKER], TTL_SECONDS).result(SECONDS) == {WORKER}
        admin = crowd.enter_context(closing(cluster.connect()))
        _fill(cluster, crowd)
        writer, _ = [pid for (pid,) in admin.execute(_OWN).fetchall()]

        admin.execute("select pg_terminate_backend(%s, 60000)", (writer,))
        _fill(cluster, crowd)

        for reply in (store.enqueue(new_jobs(1, "n")), store.stats()):
            with pytest.raises(StoreUnavailable) as refusal:
                reply.result(SECONDS)
            one_sentence(refusal.value, "no connection left", "max_connections")
        assert store.beat([WORKER], TTL_SECONDS).result(SECONDS) == {WORKER}
        crowd.close()
        _wait_for_room(cluster)
        verdicts = store.ack(WORKER, [done(job) for job in jobs]).result(SECONDS)
        assert verdicts == [Verdict.ACCEPTED] * 2
        assert states(store) == {"done": 2, "queued": 1}
        assert is_sound(store)


def test_f42_stores_that_cannot_be_opened_say_why_and_the_others_do_all_the_work(
    cluster: Cluster,
) -> None:
    """More stores than the server has connections: each that got in gets its work done."""
    with ExitStack() as opened:
        stores = [
            opened.enter_context(closing(open_postgres(cluster.url("shop"))))
            for _ in range(int(_CONNECTIONS["max_connections"]))
        ]
        with pytest.raises(StoreUnavailable) as refusal:
            open_postgres(cluster.url("shop"))
        one_sentence(refusal.value, "no connection left", "max_connections")

        stores[0].enqueue(new_jobs(len(stores))).result(SECONDS)
        for number, store in enumerate(stores):
            worker = WorkerId(f"w-{number}")
            register(store, worker)
            (job,) = lease(store, 1, worker)
            assert store.ack(worker, [done(job)]).result(SECONDS) == [Verdict.ACCEPTED]
    _wait_for_room(cluster)
    with closing(open_postgres(cluster.url("shop"))) as store:
        assert states(store) == {"done": len(stores)}
        assert is_sound(store)
