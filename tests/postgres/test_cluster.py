# SPDX-License-Identifier: Apache-2.0
"""Does a throwaway server do what tests ask of it, and is nothing left of it?"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from tests.postgres.binaries import NoPostgres, find_binaries, within_reach
from tests.postgres.cluster import Cluster, Server
from tests.postgres.fixtures import MakeCluster
from tests.postgres.guard import clean
from tests.processes import environment_of_tests, is_alive
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

OWNER = """
import time
from tests.postgres.cluster import Cluster
cluster = Cluster()
cluster.start()
print(cluster.pid, cluster.folder, flush=True)
time.sleep(600)
"""


def test_url_leads_to_a_database_of_this_process(
    postgres_url: str, postgres_server: Server
) -> None:
    with psycopg.connect(postgres_url) as connection:
        found = connection.execute("select current_database()").fetchone()

    assert found is not None
    assert found[0].startswith("test_")
    assert postgres_server.ask("show fsync") == "off"


def test_database_is_emptied_though_somebody_holds_a_lock(
    fresh_postgres: Callable[[], str],
) -> None:
    with contextlib.closing(psycopg.connect(fresh_postgres())) as holder:
        holder.execute("create schema other create table leftovers (id int)")
        holder.execute("create table leftovers (id int)")
        holder.commit()
        holder.execute("lock table leftovers")

        url = fresh_postgres()

        with pytest.raises(psycopg.OperationalError):
            holder.execute("select 1")
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "select count(*) from pg_class where relname = 'leftovers'"
        ).fetchone()
    assert found == (0,)


def test_server_is_reached_by_socket_and_by_tcp(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(tcp=True, settings={"max_connections": 12})

    cluster.create_database("first")
    cluster.ask("create table copied (id int)", database="first")
    cluster.create_database("second", template="first")

    for tcp in (False, True):
        with psycopg.connect(cluster.url("second", tcp=tcp)) as connection:
            assert connection.execute("select count(*) from copied").fetchone() == (0,)
            assert connection.execute("show max_connections").fetchone() == ("12",)


def test_committed_rows_survive_an_immediate_restart(durable_cluster: Cluster) -> None:
    before = durable_cluster.pid
    durable_cluster.ask("create table kept (id int)")
    with contextlib.closing(psycopg.connect(durable_cluster.url())) as connection:
        connection.execute("insert into kept values (1)")
        connection.commit()
        connection.execute("insert into kept values (2)")

        durable_cluster.restart_immediate()

        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
    assert durable_cluster.pid != before
    assert durable_cluster.ask("select array_agg(id) from kept") == [1]
    assert durable_cluster.ask("show fsync") == "on"


def test_stopped_server_refuses_until_it_is_started(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(tcp=True)

    cluster.stop()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(cluster.url()).close()
    cluster.start()

    assert cluster.ask("select 1") == 1
    assert cluster.ask("show fsync") == "off"


def test_promoted_standby_lacks_what_was_committed_after_it_was_detached(
    make_cluster: MakeCluster,
) -> None:
    primary = make_cluster()
    primary.ask("create table kept (id int)")
    with contextlib.closing(primary.standby()) as standby:
        primary.ask("insert into kept values (1)")
        standby.catch_up()
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            standby.ask("insert into kept values (9)")
        before = standby.timeline()

        standby.detach()
        primary.ask("insert into kept values (2)")
        primary.stop(immediate=True)
        standby.promote()
        standby.ask("insert into kept values (3)")

        assert standby.ask("select array_agg(id order by id) from kept") == [1, 3]
        assert standby.timeline() == before + 1


def test_server_and_folder_go_with_a_killed_owner() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True, env=environment_of_tests()
    ) as owner:
        assert owner.stdout is not None
        number, folder = owner.stdout.readline().split()
        assert is_alive(int(number))

        owner.kill()

    wait_until(lambda: not Path(folder).exists())
    assert not is_alive(int(number))


def test_stranger_is_not_ended_by_a_stale_note(tmp_path: Path) -> None:
    """A killed server leaves its note; its number may be that of a stranger by then."""
    note = tmp_path / "server/data/postmaster.pid"
    note.parent.mkdir(parents=True)
    with subprocess.Popen(["sleep", "600"]) as stranger:
        note.write_text(f"{stranger.pid}\n")

        clean(tmp_path / "server")

        assert stranger.poll() is None
        assert not note.exists()
        stranger.kill()


def test_binaries_are_copied_out_of_a_folder_that_is_closed_to_others(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root runs a server as somebody else")
    home = tmp_path / "home"
    (home / "install/bin").mkdir(parents=True)
    (home / "install/bin/postgres").touch()
    home.chmod(0o700)

    found = within_reach(home / "install/bin", tmp_path)

    assert found == tmp_path / "install/bin"
    assert (found / "postgres").exists()


def test_named_binaries_must_be_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PENSTOCK_PG_BIN", str(tmp_path))

    with pytest.raises(NoPostgres, match="PENSTOCK_PG_BIN names"):
        find_binaries()
