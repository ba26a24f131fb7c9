# SPDX-License-Identifier: Apache-2.0
"""Is a server that refuses us told from one that nobody can reach?"""

from __future__ import annotations

import pytest

from penstock.errors import ConfigError, StoreForeign, StoreUnavailable, StoreUnsupported
from penstock.stores.postgres.connection import Address
from penstock.stores.postgres.doctor import postgres_findings
from penstock.stores.postgres.open import open_postgres
from tests.postgres.cluster import Server, free_port
from tests.postgres.fixtures import MakeCluster

pytestmark = pytest.mark.integration

ROLE = "create role guest login password 'a-good-one'"
RULES = "host all guest 127.0.0.1/32 scram-sha-256\nhost all penstock 127.0.0.1/32 trust\n"


@pytest.fixture
def guarded(make_cluster: MakeCluster) -> Server:
    """A server that wants a password of the role `guest`."""
    cluster = make_cluster(tcp=True)
    cluster.ask(ROLE)
    cluster.ask("revoke connect on database template1 from public")
    rules = cluster.data / "pg_hba.conf"
    rules.write_text(RULES + rules.read_text())
    cluster.ask("select pg_reload_conf()")
    return cluster


@pytest.mark.parametrize(
    ("who", "database", "why"),
    [
        ("guest:a-bad-one", "postgres", 'password authentication failed for user "guest"'),
        ("guest", "postgres", "no password supplied"),
        ("guest:a-good-one", "nowhere", 'database "nowhere" does not exist'),
        ("guest:a-good-one", "template1", 'permission denied for database "template1"'),
        ("nobody", "postgres", 'role "nobody" does not exist'),
    ],
)
def test_a_refusal_at_the_door_is_told_as_one(
    guarded: Server, monkeypatch: pytest.MonkeyPatch, who: str, database: str, why: str
) -> None:
    monkeypatch.setenv("PGPASSFILE", "/dev/null")
    url = f"postgresql://{who}@127.0.0.1:{guarded.port}/{database}"

    with pytest.raises(StoreUnsupported, match="does not let this user use") as refused:
        open_postgres(url)
    (found,) = postgres_findings(url)

    assert why in str(refused.value)
    assert not found.ok
    assert found.text == str(refused.value)
    assert "a-bad-one" not in found.text


def test_a_schema_that_another_role_has_made_before_us_is_not_filled(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster(tcp=True)
    for statement in (
        "create role victim login",
        "create role squatter",
        "create database shop",
        "grant create on database shop to victim, squatter",
    ):
        cluster.ask(statement)
    url = f"postgresql://victim@127.0.0.1:{cluster.port}/shop"
    with cluster.connect("shop") as admin:
        admin.execute("create schema penstock authorization squatter")
        admin.execute("grant all on schema penstock to public")

        with pytest.raises(StoreForeign, match="made by the role 'squatter'") as refused:
            open_postgres(url)

        assert "\n" not in str(refused.value)
        assert admin.execute(
            "select count(*) from pg_tables where schemaname='penstock'"
        ).fetchone() == (0,)
        admin.execute("alter schema penstock owner to victim")
    open_postgres(url).close()


def test_a_server_that_does_not_answer_is_told_as_such() -> None:
    url = f"postgresql://guest@127.0.0.1:{free_port()}/postgres"

    with pytest.raises(StoreUnavailable, match="cannot be reached") as away:
        open_postgres(url)
    (found,) = postgres_findings(url)

    assert found.text == str(away.value)


def test_a_parameter_that_libpq_does_not_know_is_named() -> None:
    with pytest.raises(ConfigError, match="'sslmod'"):
        Address.of("postgresql://me:a-good-one@h/db?sslmod=require")
    with pytest.raises(ConfigError, match="percent-encoded") as unreadable:
        Address.of("postgresql://me:a/bad@%one@h/db")
    assert "bad" not in str(unreadable.value)
