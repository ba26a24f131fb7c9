# SPDX-License-Identifier: Apache-2.0
"""Which PostgreSQL does a test get?

One careless server serves a whole test run. Whoever needs it first starts it, under a lock; it ends
with the process that began the run. A run without such a test pays nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, LiteralString, Protocol

import pytest

from tests.waiting import wait_until

if TYPE_CHECKING:  # psycopg would cost a tenth of a second in runs that do not use it
    from psycopg import Connection

    from tests.postgres.cluster import Cluster, Server

_RUN = "PENSTOCK_TEST_POSTGRES"
_CONNECTIONS = 200

# Dropping what is there costs a third of a new database. Whoever is still connected is thrown out
# first, since a lock of his would stop us.
_EMPTY: LiteralString = """
do $$
declare
    found record;
begin
    while (
        select count(pg_terminate_backend(pid)) from pg_stat_activity
        where datname = current_database() and pid <> pg_backend_pid()
            and backend_type = 'client backend'
    ) > 0 loop
        perform pg_sleep(0.001), pg_stat_clear_snapshot();
    end loop;
    for found in
        select nspname from pg_namespace
        where nspname !~ '^pg_' and nspname <> 'information_schema'
    loop
        execute format('drop schema %I cascade', found.nspname);
    end loop;
    create schema public;
    if exists (
        select from pg_db_role_setting as s join pg_database as d on d.oid = s.setdatabase
        where d.datname = current_database()
    ) then
        execute format('alter database %I reset all', current_database());
    end if;
end
$$
"""


class MakeCluster(Protocol):
    def __call__(
        self,
        *,
        durable: bool = False,
        tcp: bool = False,
        settings: dict[str, str | int] | None = None,
    ) -> Cluster: ...


def pytest_configure(config: pytest.Config) -> None:
    """Name the run's folder where the run begins; the processes that it starts inherit the name."""
    if not hasattr(config, "workerinput"):
        os.environ[_RUN] = f"/tmp/penstock-pg-{os.getpid()}-{secrets.token_hex(3)}"


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        _end_of_run()


@pytest.fixture(scope="session")
def postgres_server() -> Server:
    """The server of this run: fast, and careless of power cuts. Do not stop it."""
    try:
        return _start_or_join()
    except _no_postgres() as error:
        pytest.skip(f"no PostgreSQL: {error}")


@pytest.fixture(scope="session")
def _own_database(postgres_server: Server) -> Iterator[tuple[str, Connection[Any]]]:
    """This process's database: its URL, and a connection to it."""
    name = "test_" + os.environ.get("PYTEST_XDIST_WORKER", "main")
    url = postgres_server.create_database(name)
    connection = postgres_server.connect(name)
    yield url, connection
    connection.close()


@pytest.fixture
def fresh_postgres(_own_database: tuple[str, Connection[Any]]) -> Iterator[Callable[[], str]]:
    """Empty this process's database, as often as a test likes; its URL."""
    url, connection = _own_database

    def empty() -> str:
        connection.execute(_EMPTY)
        return url

    yield empty
    empty()


@pytest.fixture
def postgres_url(fresh_postgres: Callable[[], str]) -> str:
    """The URL of an empty database that nobody else uses."""
    return fresh_postgres()


@pytest.fixture
def make_cluster() -> Iterator[MakeCluster]:
    """Start servers that a test may hurt; they end with it."""
    from tests.postgres.cluster import Cluster

    with contextlib.ExitStack() as stack:

        def make(
            *,
            durable: bool = False,
            tcp: bool = False,
            settings: dict[str, str | int] | None = None,
        ) -> Cluster:
            try:
                with _run_folder() as folder:
                    pristine = _pristine(folder)
                made = Cluster(durable=durable, tcp=tcp, settings=settings, pristine=pristine)
                return stack.enter_context(made)
            except _no_postgres() as error:
                pytest.skip(f"no PostgreSQL: {error}")

        yield make


@pytest.fixture
def durable_cluster(make_cluster: MakeCluster) -> Cluster:
    """A server of one's own that keeps what it has committed, on TCP too."""
    return make_cluster(durable=True, tcp=True)


def _no_postgres() -> type[Exception]:
    from tests.postgres.binaries import NoPostgres

    return NoPostgres


@contextlib.contextmanager
def _run_folder() -> Iterator[Path]:
    """The folder of this run, ours alone for a moment; whoever is first makes it."""
    from tests.postgres.guard import GuardedFolder

    folder = Path(os.environ[_RUN])
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "guard.pid").exists():
            GuardedFolder(folder, owner=_owner(folder)).leave()
        yield folder


def _owner(folder: Path) -> int:
    return int(folder.name.split("-")[2])


def _pristine(folder: Path) -> Path:
    """Fresh data of `initdb`, made once in a run."""
    from tests.postgres.cluster import Cluster

    made = folder / "pristine"
    if not made.exists():
        Cluster(home=made).prepare()
    return made / "data"


def _start_or_join() -> Server:
    from tests.postgres.cluster import Cluster, Server

    with _run_folder() as folder:
        note = folder / "port"
        if not note.exists():
            settings = {"max_connections": _CONNECTIONS}
            cluster = Cluster(home=folder / "run", pristine=_pristine(folder), settings=settings)
            cluster.start()
            cluster.leave()
            note.write_text(str(cluster.port))
        return Server(folder / "run", int(note.read_text()))


def _end_of_run() -> None:
    folder = Path(os.environ[_RUN])
    with contextlib.suppress(OSError, ValueError):
        os.kill(int((folder / "guard.pid").read_text()), signal.SIGTERM)
        wait_until(lambda: not folder.exists())
