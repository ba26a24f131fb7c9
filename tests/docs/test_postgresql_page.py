# SPDX-License-Identifier: Apache-2.0
"""docs/operations/postgresql.md, run as a reader would run it, against a server of its own.

Plain calls of `penstock` are clones.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from penstock.config.load import load_settings
from tests.docs.test_snippets import PAGES, WITH_SERVER, blocks, run
from tests.forked import Forked
from tests.postgres.binaries import find_binaries
from tests.postgres.cluster import Cluster
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

DATABASE = "shop"


def statements(text: str) -> list[bytes]:
    """One by one, since VACUUM and others refuse to be part of a batch."""
    return [f"{part};".encode() for part in re.split(r";\n", text) if part.strip()]


def below(heading: str) -> str:
    """The first SQL snippet below a heading."""
    text = WITH_SERVER.read_text()
    found = re.search(rf"^#+ {heading}\n.*?^```sql\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found, f"there is no SQL below {heading!r}"
    return found[1]


def as_role(url: str, role: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=f"{role}@{parts.netloc.rpartition('@')[2]}").geturl()


@pytest.fixture
def server(make_cluster: Callable[..., Cluster]) -> Cluster:
    """Roles belong to a whole server, so the page gets one of its own."""
    cluster = make_cluster(
        durable=True, settings={"max_prepared_transactions": 2, "autovacuum": "off"}
    )
    cluster.create_database(DATABASE)
    return cluster


@pytest.fixture
def admin(server: Cluster) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    with server.connect(DATABASE) as connection:
        yield connection


def session(server: Cluster, database: str = DATABASE) -> psycopg.Connection[tuple[Any, ...]]:
    """A connection with transactions that somebody must end."""
    return psycopg.connect(server.url(database))


# Everything, in its order


@pytest.mark.slow
def test_the_snippets_work_in_their_order(
    server: Cluster,
    admin: psycopg.Connection[tuple[Any, ...]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = server.url(DATABASE)
    monkeypatch.setenv("PATH", f"{find_binaries()}:{os.environ['PATH']}")
    monkeypatch.setenv("ADMIN_STORE", url)
    monkeypatch.setenv("OWNER_STORE", as_role(url, "queue_owner"))
    monkeypatch.setenv("PENSTOCK_STORE", as_role(url, "queue_worker"))

    for language, text in blocks(WITH_SERVER):
        if language == "sql":
            for statement in statements(text):
                admin.execute(statement)
        elif language == "sh":
            for command in text.strip().splitlines():
                done = run(command, tmp_path, cloned=Forked)
                assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        elif language == "python":
            name = re.match(r"# (\w+\.py)\n", text)
            assert name, "a Python snippet names no file in its first line"
            (tmp_path / name[1]).write_text(text)
        else:
            assert language in {"text", "toml"}, f"an unknown kind of snippet: {language}"


def test_the_settings_of_the_page_are_settings(tmp_path: Path) -> None:
    (text,) = [text for language, text in blocks(WITH_SERVER) if language == "toml"]
    (tmp_path / "penstock.toml").write_text(text)

    store = load_settings({}, {}, tmp_path, {}).settings.store

    assert store is not None
    assert psycopg.conninfo.conninfo_to_dict(store.reveal())["user"] == "queue_worker"


def test_links_into_a_page_lead_to_a_heading() -> None:
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)]+)\)", page.read_text()):
            text = ((page.parent / target) if target else page).read_text()
            anchors = {
                re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
                for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
            }
            assert anchor in anchors, f"{page.name} links to {target}#{anchor}"


# What the statements are for


def test_a_worker_may_write_rows_and_not_change_tables(
    server: Cluster, admin: psycopg.Connection[tuple[Any, ...]]
) -> None:
    for statement in statements(below("Roles")):
        admin.execute(statement)
    url = server.url(DATABASE)
    with psycopg.connect(as_role(url, "queue_owner"), autocommit=True) as owner:
        owner.execute("create table penstock.made_later (id bigserial primary key, word text)")

    with psycopg.connect(as_role(url, "queue_worker"), autocommit=True) as worker:
        worker.execute("insert into penstock.made_later (word) values ('a')")
        worker.execute("update penstock.made_later set word = 'b'")
        worker.execute("delete from penstock.made_later")
        for refused in (
            "create table penstock.other (id int)",
            "drop table penstock.made_later",
            "create schema other",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                worker.execute(refused.encode())


def test_whoever_holds_vacuum_back_is_named(
    server: Cluster, admin: psycopg.Connection[tuple[Any, ...]]
) -> None:
    (oldest,) = statements(below("Oldest transaction"))
    server.create_database("elsewhere")
    assert admin.execute(oldest).fetchall() == []

    with (
        session(server) as writing,
        session(server) as reading,
        session(server) as prepared,
        session(server, "elsewhere") as elsewhere,
    ):
        writing.execute("create table written (id int)")
        reading.execute("set transaction isolation level repeatable read")
        reading.execute("select 1 from pg_class")
        prepared.execute("create table promised (id int)")
        prepared.execute("prepare transaction 'forgotten'")
        elsewhere.execute("create table elsewhere (id int)")

        named = [row[0] for row in admin.execute(oldest).fetchall()]

        assert sorted(named) == sorted(
            [
                f"session {writing.info.backend_pid}",
                f"session {reading.info.backend_pid}",
                "prepared forgotten",
            ]
        )
        elsewhere.rollback()
    admin.execute("rollback prepared 'forgotten'")


def test_connections_are_counted(
    server: Cluster, admin: psycopg.Connection[tuple[Any, ...]]
) -> None:
    (counting,) = statements(below("Connections in use"))

    def used() -> int:
        row = admin.execute(counting).fetchone()
        assert row is not None
        assert 0 < row[0] < row[1]
        return int(row[0])

    wait_until(lambda: used() == 1)  # who made the database may still be leaving
    with session(server):
        assert used() == 2


def test_a_role_without_rights_does_not_see_how_old_others_are(
    server: Cluster, admin: psycopg.Connection[tuple[Any, ...]]
) -> None:
    """Why the page grants pg_read_all_stats to those who run the doctor."""
    (oldest,) = statements(below("Oldest transaction"))
    admin.execute("create role nobody_special login")
    url = as_role(server.url(DATABASE), "nobody_special")

    with session(server) as writing, psycopg.connect(url, autocommit=True) as blind:
        writing.execute("create table written (id int)")
        (hidden,) = blind.execute(oldest).fetchall()
        admin.execute("grant pg_read_all_stats to nobody_special")
        (seen,) = blind.execute(oldest).fetchall()

    assert hidden[3] is None
    assert seen[3] is not None
