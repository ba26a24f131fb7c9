# SPDX-License-Identifier: Apache-2.0
"""What do commands do with a store that is kept by a server?"""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from penstock.errors import StoreUnavailable
from penstock.model.job import LeasedJob, NewJob, WorkerId
from penstock.model.lease import ConfiguredCaps, JobRef, LeaseRequest, WorkerInfo
from penstock.stores.protocol import Store
from penstock.stores.sqlite.in_process import InProcessStore
from penstock.testing import ManualClock
from tests.postgres_modules import put_module
from tests.unit.cli.conftest import Command

SERVER = "postgresql://me:hunter2@h/db"


class Served(InProcessStore):
    """A store on a server, as its commands see it."""

    url = "postgresql://me@h/db"

    def close(self) -> None:
        """It is looked at afterwards."""


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Served:
    store = Served(ManualClock())
    jobs = [NewJob(key=key, task="visit", payload="{}", group="g") for key in "abc"]
    store.enqueue(jobs).result()
    put_module(monkeypatch, "open", open_postgres=lambda url, **_: store)
    return store


def leased(store: Served, name: str = "w-1") -> tuple[WorkerId, list[LeasedJob]]:
    worker = WorkerId(name)
    store.register(WorkerInfo(id=worker, run_id="r", tasks=("visit",)), 30.0).result()
    request = LeaseRequest(worker=worker, tasks=("visit",), limit=2, caps=ConfiguredCaps({}))
    return worker, list(store.lease(request).result().jobs)


def test_after_a_restore_by_the_server_nobody_from_before_owns_anything(
    project: Path, command: Command, served: Served
) -> None:
    worker, jobs = leased(served)
    arguments = ["restore", "--after-pg-restore", "--store", SERVER]

    asked = command(*arguments)
    assert asked.code == 2
    assert asked.sentence == (
        "Every lease of the store postgresql://me@h/db would be voided; workers alive: 1. Stop "
        "them, then add --yes to do it."
    )
    assert served.stats().result().workers == 1

    done = command(*arguments, "--yes")
    assert done.code == 0
    assert done.out == (
        "2 leases of postgresql://me@h/db were voided: those jobs are ready again, uncharged, and "
        "their former holders are refused.\n"
    )
    assert "hunter2" not in done.out + done.err
    refs = [JobRef(job.id, job.token) for job in jobs]
    assert served.release(worker, refs).result() == 0
    _, again = leased(served, "w-2")
    assert min(job.token for job in again) > 1_700_000_000_000_000
    document = command(*arguments, "--yes", "--json").document
    assert document == {"store": "postgresql://me@h/db", "voided_leases": 2}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["restore"], "Name the file of a backup to restore."),
        (["restore", "x.db", "--after-pg-restore"], "--after-pg-restore takes no file"),
        (["restore", "--after-pg-restore"], "is a file: 'penstock restore FILE' voids its leases"),
        (
            ["restore", "x.db", "--store", SERVER],
            "The store postgresql://[redacted]@h/db is restored by PostgreSQL's own tools, such as "
            "pg_restore; then run 'penstock restore --after-pg-restore --store "
            "'postgresql://[redacted]@h/db'', which voids every lease from before the restore.",
        ),
    ],
)
def test_each_kind_of_store_has_its_own_restore(
    project: Path, command: Command, arguments: list[str], said: str
) -> None:
    ended = command(*arguments)

    assert ended.code == 2
    assert said in ended.sentence


def test_commands_work_on_a_server_and_never_tell_its_password(
    project: Path, command: Command, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_STORE", SERVER)
    said = [
        command(*arguments)
        for arguments in (
            ["queue", "stats"],
            ["queue", "list"],
            ["queue", "enqueue", "visit", "d", '{"host": "x"}'],
            ["queue", "cancel", "a"],
            ["queue", "pause"],
            ["config", "show"],
            ["config", "show", "--json"],
        )
    ]

    assert [ended.code for ended in said] == [0] * len(said)
    assert "postgresql://me@h/db" in said[0].out
    assert "postgresql://[redacted]@h/db" in said[-1].out
    for ended in said:
        assert "hunter2" not in ended.out + ended.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["queue", "list"],
        ["queue", "stats", "--json"],
        ["queue", "show", "k"],
        ["queue", "pause"],
        ["queue", "resume"],
        ["queue", "cancel", "k"],
        ["queue", "limit", "host:a", "1"],
        ["queue", "retry-failed"],
        ["queue", "purge", "--older-than", "1d", "--yes"],
        ["restore", "--after-pg-restore", "--yes"],
    ],
    ids=" ".join,
)
@pytest.mark.integration
def test_looking_at_an_empty_database_makes_nothing_and_says_what_to_do(
    project: Path, command: Command, postgres_url: str, arguments: list[str]
) -> None:
    ended = command(*arguments, "--store", postgres_url)

    assert (ended.code, ended.out) == (2, "")
    assert ended.sentence.startswith("There is no store postgresql://penstock@")
    assert "yet. Enqueue a job first, or name another with --store." in ended.sentence
    with psycopg.connect(postgres_url) as connection:
        found = connection.execute("select to_regnamespace('penstock')").fetchone()
    assert found == (None,)
    assert (
        command("queue", "enqueue", "visit", "k", '{"host": "x"}', "--store", postgres_url).code
        == 0
    )
    assert command("queue", "list", "--store", postgres_url).code == 0


def test_a_server_that_cannot_be_reached_is_told_in_one_sentence(
    project: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "The server of postgresql://me@h/db cannot be reached: nobody is there."

    def gone(url: str, **_: object) -> Store:
        raise StoreUnavailable(said)

    put_module(monkeypatch, "open", open_postgres=gone)

    for arguments in (["queue", "stats"], ["queue", "cancel", "k"], ["queue", "list", "--json"]):
        ended = command(*arguments, "--store", SERVER)
        assert (ended.code, ended.sentence, ended.out) == (1, said, "")
