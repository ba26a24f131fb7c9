# SPDX-License-Identifier: Apache-2.0
"""Is a store of an older schema brought up to date with its jobs, copied, and looked at unharmed?

tests/faults/test_version_skew.py does the same for deaths in mid-migration on SQLite.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import SchemaTooNew, StoreError, StoreReadOnly, StoreUnsupported
from penstock.ids import SystemIds
from penstock.model.job import JobId, JobState, WorkerId
from penstock.model.lease import JobRef
from penstock.stores.protocol import JobFilter
from penstock.stores.sql.statements import Migration, read_migrations
from penstock.stores.sqlite.backup import back_up
from penstock.stores.sqlite.open import PACKAGE
from penstock.stores.sqlite.restore import Restore
from penstock.stores.sqlite.store import SqliteStore
from tests.faults.old_stores import build, rows_of
from tests.postgres.fixtures import MakeCluster

WORKER = WorkerId("w2")
NEWEST = len(read_migrations(PACKAGE))
POSTGRES_NEWEST = len(read_migrations("penstock.stores.postgres"))


@pytest.fixture
def first(postgres_url: str) -> tuple[str, tuple[Migration, ...]]:
    """A database with the first schema and jobs of every state in it."""
    from penstock.stores.postgres.open import known_steps
    from tests.postgres import old_stores

    old_stores.build(postgres_url, 1)
    return postgres_url, known_steps()


@pytest.mark.parametrize("version", range(1, POSTGRES_NEWEST + 1))
def test_an_older_postgres_store_is_upgraded_with_everything_in_it(
    postgres_url: str, version: int
) -> None:
    from penstock.stores.postgres.open import open_postgres
    from tests.postgres import old_stores

    old_stores.build(postgres_url, version)
    before = old_stores.rows_of(postgres_url)

    store = open_postgres(postgres_url, durability="normal")

    assert len(before) >= 10
    assert old_stores.rows_of(postgres_url) == before
    jobs = store.jobs(JobFilter(), JobId(0), 100).result()
    assert {job.state for job in jobs} == set(JobState)
    assert store.check().result() == []
    assert store.job_context("ready").result().held[0].count == 2  # type: ignore[union-attr]
    assert {job.task: job.kind for job in jobs} == {
        job.task: old_stores.KINDS.get(job.task, "job") for job in jobs
    }
    number = store.ask(WORKER, JobRef(JobId(1), 1)).result()
    assert [question.id for question in store.inbox(WORKER).result().questions] == [number]
    store.close()


def test_a_process_of_the_first_schema_writes_nothing_more_after_the_upgrade(
    first: tuple[str, tuple[Migration, ...]],
) -> None:
    from penstock.stores.postgres.open import open_postgres

    url, steps = first
    old = open_postgres(url, durability="normal", migrations=steps[:1])
    assert old.beat([WORKER], 600).result() == frozenset()  # it may write so far
    open_postgres(url, durability="normal").close()

    writes: list[Callable[[], object]] = [
        lambda: old.beat([WORKER], 600).result(),
        lambda: old.publish(WORKER, "{}").result(),
        lambda: old.cancel(["ready"]).result(),
    ]
    for write in writes:
        with pytest.raises(SchemaTooNew, match=f"schema {len(steps)} by a newer version"):
            write()
    old.close()
    with pytest.raises(SchemaTooNew, match="made by a newer Penstock"):
        open_postgres(url, migrations=steps[:1])


def test_many_that_upgrade_at_once_apply_each_step_once(
    first: tuple[str, tuple[Migration, ...]],
) -> None:
    from penstock.stores.postgres.open import open_postgres

    url, _ = first
    failed: list[BaseException] = []

    def upgrade() -> None:
        try:
            open_postgres(url, durability="normal").close()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=upgrade) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failed == []


def test_a_step_that_fails_leaves_the_older_schema_as_it_was(
    first: tuple[str, tuple[Migration, ...]],
) -> None:
    from penstock.stores.postgres.open import open_postgres
    from tests.postgres import old_stores

    url, steps = first
    broken = Migration(len(steps) + 1, "of_the_test.sql", "drop table penstock.meta; select 1/0")

    with pytest.raises(StoreError):
        open_postgres(url, migrations=(*steps, broken))

    open_postgres(url, durability="normal", migrations=steps[:1]).close()
    assert len(old_stores.rows_of(url)) == 10


def test_a_doctor_says_that_a_first_schema_will_be_upgraded_and_leaves_it(
    first: tuple[str, tuple[Migration, ...]],
) -> None:
    from penstock.stores.postgres.doctor import postgres_facts, postgres_findings
    from penstock.stores.postgres.open import open_postgres

    url, steps = first

    (schema,) = [found for found in postgres_findings(url) if found.check == "schema"]

    assert schema.ok
    assert schema.text == f"1; the next open brings it to {len(steps)}"
    assert postgres_facts(url) is None
    open_postgres(url, migrations=steps[:1]).close()


ROLES = (
    "create role queue_owner login",
    "create role queue_worker login",
    "create schema penstock authorization queue_owner",
    "grant usage on schema penstock to queue_worker",
    "alter default privileges for role queue_owner in schema penstock "
    "grant select, insert, update, delete on tables to queue_worker",
    "alter default privileges for role queue_owner in schema penstock "
    "grant usage, select on sequences to queue_worker",
)


def test_a_role_that_owns_nothing_waits_for_the_owner_and_may_then_ask(
    make_cluster: MakeCluster,
) -> None:
    """The roles of docs/operations/postgresql.md over an upgrade."""
    from penstock.stores.postgres.open import known_steps, open_postgres

    cluster = make_cluster(tcp=True)
    for statement in ROLES:
        cluster.ask(statement)
    owner = cluster.url().replace("penstock@", "queue_owner@")
    guest = cluster.url().replace("penstock@", "queue_worker@")
    open_postgres(owner, migrations=known_steps()[:1]).close()

    with pytest.raises((StoreUnsupported, StoreReadOnly), match="permission denied") as refused:
        open_postgres(guest)
    assert "\n" not in str(refused.value)
    open_postgres(owner).close()

    store = open_postgres(guest)
    number = store.ask(WORKER, JobRef(JobId(1), 1)).result()
    assert store.answer(number, "{}").result() is True
    store.close()


def test_an_older_file_is_copied_restored_and_upgraded_with_its_jobs(tmp_path: Path) -> None:
    path, backup, target = (tmp_path / name for name in ("a.db", "b.db", "c.db"))
    build(path, NEWEST - 1)
    before = rows_of(path)

    report = back_up(path, backup, SystemIds())
    Restore(backup, target, SystemIds()).run()

    assert report.jobs == len(before)
    assert [row[0] for row in rows_of(target)] == [row[0] for row in before]
    store = SqliteStore.open(target, durability="normal")
    assert store.check().result() == []
    assert store.inbox(WORKER).result().questions == []
    store.close()


def test_an_older_file_that_may_not_be_written_is_told_and_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.db"
    build(path, NEWEST - 1)
    before = rows_of(path)

    def refuse(_: Path) -> None:
        raise StoreReadOnly("not for us")

    monkeypatch.setattr("penstock.stores.sqlite.location_check.refuse_unwritable", refuse)
    with pytest.raises(StoreReadOnly, match=f"its schema {NEWEST - 1} is older"):
        SqliteStore.open(path, reading_will_do=True)

    monkeypatch.undo()
    assert rows_of(path) == before
