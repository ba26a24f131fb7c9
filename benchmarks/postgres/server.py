# SPDX-License-Identifier: Apache-2.0
"""On which server is measured, and how does each measurement get a database of its own?"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from benchmarks.measuring import Answer
from benchmarks.runner import Setup, Surroundings, Table
from tests.postgres.cluster import Cluster

DURABLE = ("fsync", "synchronous_commit", "full_page_writes")  # must be on
SHOWN = (
    *DURABLE,
    "wal_sync_method",
    "shared_buffers",
    "max_wal_size",
    "autovacuum",
    "autovacuum_naptime",
)
#: Settings of our command line that change no figure.
HARMLESS = {"listen_addresses", "port", "unix_socket_directories"}
CHANGED = """
select name, current_setting(name) from pg_settings
where source in ('command line', 'environment variable') order by name
"""


@contextlib.contextmanager
def surroundings() -> Iterator[Surroundings]:
    """One throwaway server for the whole section, which keeps what it has committed."""
    with Cluster(durable=True, on_disk=True) as cluster:
        yield Surroundings(cluster.url(), (describe(cluster.url()),))


def describe(url: str) -> Table:
    """The server's version and settings; RuntimeError if it would not keep what it commits."""
    with connect(url) as connection:
        settings = {name: ask(connection, f"show {name}") for name in SHOWN}
        version = ask(connection, "show server_version")
        changed = [row for row in connection.execute(CHANGED).fetchall() if row[0] not in HARMLESS]
    careless = [name for name in DURABLE if settings[name] != "on"]
    if careless:
        raise RuntimeError(f"The server runs with {', '.join(careless)} off; figures would lie.")
    return Table(
        "The server: one throwaway cluster, PostgreSQL's own settings but for those named here",
        ("what", "is"),
        (
            ("PostgreSQL", str(version)),
            ("psycopg", f"{psycopg.__version__}, {psycopg.pq.__impl__}"),
            ("changed", ", ".join(f"{name} = {value}" for name, value in changed) or "nothing"),
            *((name, str(value)) for name, value in settings.items()),
        ),
    )


def connect(url: str) -> psycopg.Connection[tuple[Any, ...]]:
    """A connection that commits each statement."""
    return psycopg.connect(url, autocommit=True)


def ask(connection: psycopg.Connection[tuple[Any, ...]], question: str) -> Any:
    """The first value of the first row."""
    row = connection.execute(question.encode()).fetchone()
    return row[0] if row else None


def ended_connections_cpu(url: str) -> float:
    """CPU seconds of all connections that have ended, and of vacuums that ran meanwhile."""
    with connect(url) as connection:
        ours = ask(connection, "select pg_backend_pid()")
        server = _process_status(ours)[1]  # whose children all connections are
        user, system = _process_status(server)[13:15]
    return (user + system) / os.sysconf("SC_CLK_TCK")


def _process_status(pid: int) -> list[int]:
    """Numbers of `/proc/PID/stat` that follow the command: a 0 for the state, the parent, …"""
    text = Path(f"/proc/{pid}/stat").read_text()
    return [0, *map(int, text.rpartition(")")[2].split()[1:])]


def rounds_of(setup: Setup) -> int:
    """How often is measured? A new database takes long, so a smoke run does it once."""
    return 1 if setup.smoke else setup.rounds


@contextlib.contextmanager
def new_database(url: str) -> Iterator[str]:
    """The URL of an empty database; dropped afterwards, which also writes a checkpoint."""
    name = f"bench_{secrets.token_hex(4)}"
    with connect(url) as connection:
        connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    try:
        yield urlsplit(url)._replace(path=f"/{name}").geturl()
    finally:
        with connect(url) as connection:
            connection.execute(
                sql.SQL("drop database {} with (force)").format(sql.Identifier(name))
            )


def on_new_database(url: str, measure: Callable[[str], Answer]) -> Callable[[], Answer]:
    """Something to measure, on another empty database each time."""

    def run() -> Answer:
        with new_database(url) as place:
            return measure(place)

    return run
