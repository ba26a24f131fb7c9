# SPDX-License-Identifier: Apache-2.0
"""What may an owner do whose store was restored, or failed over to a server that knows less?"""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.model.job import JobState, LeasedJob, NewJob, WorkerId
from penstock.model.lease import Verdict
from penstock.stores.postgres.open import open_postgres
from penstock.stores.protocol import Store
from tests.faults.races import done, put, register, take
from tests.postgres.binaries import find_binaries
from tests.postgres.cluster import Cluster, Server
from tests.postgres.fixtures import MakeCluster
from tests.postgres.proxy import Proxy
from tests.waiting import wait_until

pytestmark = pytest.mark.faults

COPY = f"restored_copy_{os.getpid()}"
LEASED = "select count(*) from penstock.hot where row_state = 4"
RESTORED = "lives on another server or timeline than before"


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    return tmp_path / "store.dump"


@pytest.fixture
def source(postgres_server: Server, fresh_postgres: object) -> Iterator[tuple[Server, str]]:
    name = f"restored_{os.getpid()}"
    postgres_server.ask(f"drop database if exists {name} with (force)")
    postgres_server.create_database(name)
    yield postgres_server, name
    postgres_server.ask(f"drop database if exists {name} with (force)")


def _tool(server: Server, name: str, *arguments: str) -> None:
    program = find_binaries() / name
    if not program.exists():
        pytest.skip(f"needs {name}")
    where = ["-h", str(server.folder), "-p", str(server.port), "-U", "penstock"]
    subprocess.run([program, *where, *arguments], check=True, capture_output=True)


def _save(server: Server, database: str, dump: Path) -> None:
    _tool(server, "pg_dump", "-Fc", "-f", str(dump), database)


def _load(server: Server, database: str, dump: Path) -> None:
    _tool(server, "pg_restore", "--exit-on-error", "-d", database, str(dump))


def _owner(store: Store) -> tuple[WorkerId, LeasedJob]:
    """A worker with a lease, and one that holds a limit key."""
    put(store, "k", "other")
    limited = NewJob(key="limited", task="t", payload="{}", group="h", limit_keys=("one:a",))
    store.enqueue([limited]).result()
    owner = register(store, "owner", ttl=1e6)
    jobs = {job.key: job for job in take(store, owner, 10)}
    assert jobs.keys() == {"k", "other", "limited"}
    assert store.ack(owner, [done(jobs["other"])]).result() == [Verdict.ACCEPTED]
    return owner, jobs["k"]


def _is_fenced(
    copy: Store, owner: WorkerId, job: LeasedJob, caplog: pytest.LogCaptureFixture
) -> None:
    """The old owner's word counts for nothing, and everything is leased again above its tokens."""
    assert copy.ack(owner, [done(job)]).result() == [Verdict.STALE]
    assert copy.beat([owner], 60.0).result() == frozenset()
    heir = register(copy, "heir")
    again = {new.key: new for new in take(copy, heir, 10)}
    assert again.keys() == {"k", "limited"}
    assert all(new.token > job.token + 1_000_000 for new in again.values())
    assert copy.ack(owner, [done(job)]).result() == [Verdict.STALE]
    verdicts = copy.ack(heir, [done(new) for new in again.values()]).result()
    assert verdicts == [Verdict.ACCEPTED] * 2
    row = copy.job("k").result()
    assert row is not None
    assert row.state is JobState.DONE
    assert copy.check().result() == []
    assert sum(RESTORED in record.message for record in caplog.records) == 1


def test_f34_a_dump_restored_into_another_database_fences_the_old_owner(
    source: tuple[Server, str], dump: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server, name = source
    with closing(open_postgres(server.url(name))) as store:
        owner, job = _owner(store)
        _save(server, name, dump)
        server.ask(f"drop database if exists {COPY} with (force)")
        server.create_database(COPY)
        _load(server, COPY, dump)
        with closing(open_postgres(server.url(COPY))) as copy:
            _is_fenced(copy, owner, job, caplog)
        assert store.ack(owner, [done(job)]).result() == [Verdict.ACCEPTED]  # its own lives on
    server.ask(f"drop database {COPY} with (force)")


def test_f34_a_dump_restored_into_another_server_fences_the_old_owner(
    source: tuple[Server, str],
    dump: Path,
    make_cluster: MakeCluster,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server, name = source
    with closing(open_postgres(server.url(name))) as store:
        owner, job = _owner(store)
        _save(server, name, dump)
    cluster = make_cluster()
    _load(cluster, "postgres", dump)
    with closing(open_postgres(cluster.url())) as copy:
        _is_fenced(copy, owner, job, caplog)


def test_f34_a_dump_restored_in_place_fences_an_owner_whose_connection_never_broke(
    source: tuple[Server, str], dump: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether the owner is the first to write into the restored store, or somebody else was."""
    server, name = source
    with (
        closing(open_postgres(server.url(name))) as store,
        closing(open_postgres(server.url(name))) as other,
    ):
        owner, job = _owner(store)
        other.set_cap("one:a", 1).result()
        _save(server, name, dump)
        server.ask("drop schema penstock cascade", database=name)
        _load(server, name, dump)
        _is_fenced(store, owner, job, caplog)
        put(other, "more")  # another old connection voids nothing once more
        caplog.clear()
        heir = register(other, "second heir")
        assert [new.key for new in take(store, heir, 10)] == ["more"]
        assert not any(RESTORED in record.message for record in caplog.records)


def test_f37_a_promoted_standby_that_is_behind_fences_everybody_from_before(
    make_cluster: MakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    primary = make_cluster(tcp=True)
    with Proxy(primary) as proxy, closing(open_postgres(proxy.url("postgres"))) as store:
        put(store, "first", "k")
        owner = register(store, "owner", ttl=1e6)
        (first,) = take(store, owner, 1)
        with closing(primary.standby()) as standby:
            wait_until(lambda: standby.ask(LEASED) == 1)
            standby.detach()
            (second,) = take(store, owner, 1)  # these commits are lost
            assert store.ack(owner, [done(first)]).result() == [Verdict.ACCEPTED]
            put(store, "lost")
            _promote(primary, standby, proxy)

            with caplog.at_level(logging.WARNING):
                assert store.ack(owner, [done(second)]).result() == [Verdict.STALE]
            assert sum(RESTORED in record.message for record in caplog.records) == 1
            assert store.beat([owner], 60.0).result() == frozenset()
            heir = register(store, "heir")
            again = {job.key: job for job in take(store, heir, 10)}
            assert again.keys() == {"first", "k"}
            assert min(job.token for job in again.values()) > max(first.token, second.token)
            assert store.ack(owner, [done(first)]).result() == [Verdict.STALE]
            ends = [done(job) for job in again.values()]
            assert store.ack(heir, ends).result() == [Verdict.ACCEPTED] * 2
            assert store.job("lost").result() is None
            put(store, "lost")  # its producer, who repeats what he was not sure of
            assert store.check().result() == []


def _promote(primary: Cluster, standby: Cluster, proxy: Proxy) -> None:
    primary.stop(immediate=True)
    standby.promote()
    proxy.retarget(standby)
    proxy.cut()
