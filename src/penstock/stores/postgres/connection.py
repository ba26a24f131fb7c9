# SPDX-License-Identifier: Apache-2.0
"""Connects to the server, and identifies the server's present life (since its last start)."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import quote

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.numeric import Int8Dumper

from penstock.clock import Clock
from penstock.errors import ConfigError, StoreUnsupported
from penstock.stores.sql.statements import Row

APPLICATION = "penstock"

#: What libpq says of a parameter; only if its name is plain, lest it is a piece of a password.
_UNKNOWN = re.compile(r'query parameter: "([a-z_]{1,40})"')

#: How long the way to the server may be silent. The URL may say otherwise.
_PATIENCE: dict[str, str] = {
    "connect_timeout": "5",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}


class Address(NamedTuple):
    """Where a store is, for libpq and for people."""

    conninfo: dict[str, str]
    shown: str  # a URL without password

    @classmethod
    def of(cls, url: str) -> Address:
        """Read a URL; ConfigError if libpq cannot."""
        try:
            given = {name: str(value) for name, value in conninfo_to_dict(url).items()}
        except psycopg.Error as error:
            unknown = _UNKNOWN.search(str(error))
            if unknown is not None:
                raise ConfigError(
                    "The URL of the PostgreSQL store has a parameter that libpq does not know: "
                    f"{unknown[1]!r}. Correct its name, or leave it out."
                ) from None
            raise ConfigError(
                "The URL of the PostgreSQL store cannot be read; write "
                "postgresql://user@host:5432/database, and special characters of a password "
                "percent-encoded."
            ) from None
        given.setdefault("application_name", APPLICATION)
        given["client_encoding"] = "utf8"  # a role may have another one
        return cls(_PATIENCE | given, _shown(given))


def _shown(given: dict[str, str]) -> str:
    user = f"{quote(given['user'], safe='')}@" if given.get("user") else ""
    host = given.get("host") or given.get("hostaddr") or ""
    database = quote(given.get("dbname") or "", safe="")
    if host.startswith("/"):
        return f"postgresql://{user}/{database}?host={quote(host)}"
    port = f":{given['port']}" if given.get("port") else ""
    return f"postgresql://{user}{host}{port}/{database}"


CALL_SECONDS = 10.0  # a statement that takes longer is given up with its connection
WATCH_SECONDS = 0.5  # how often the watch looks

AnyConnection = psycopg.Connection[Any]


def _break(connection: AnyConnection) -> None:
    """Let whoever waits for this connection wake with an error."""
    if connection.closed:
        return
    with contextlib.suppress(OSError, psycopg.Error):
        copy = socket.socket(fileno=os.dup(connection.fileno()))
        with copy:
            copy.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def given_up_after(connection: AnyConnection, seconds: float) -> Iterator[None]:
    """For the first question, when nobody watches over the connection so far."""
    timer = threading.Timer(seconds, _break, (connection,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


class Guard:
    """Until when a connection's present call must be answered. Armed and disarmed by its user."""

    def __init__(self) -> None:
        self.until: float | None = None  # monotonic; None: nothing is being asked
        self._connection: AnyConnection | None = None
        self._lock = threading.Lock()  # a connection is not broken while it is being exchanged

    def watch_over(self, connection: AnyConnection | None) -> None:
        """From now on this one; None before it is closed: its descriptor may become another's."""
        with self._lock:
            self._connection = connection
            self.until = None

    def give_up(self) -> None:
        """Break the connection, so that whoever waits for it wakes with an error."""
        with self._lock:
            self._give_up()

    def give_up_if_late(self, now: float) -> None:
        """The same, if the call should have been answered by now."""
        with self._lock:
            if self.until is not None and now > self.until:
                self._give_up()

    def _give_up(self) -> None:
        self.until = None
        if self._connection is not None:
            _break(self._connection)


class Watch:
    """A thread that breaks connections whose call takes too long."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._guards: list[Guard] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="penstock-watch", daemon=True)
        self._thread.start()

    def guard(self) -> Guard:
        guard = Guard()
        self._guards.append(guard)
        return guard

    def close(self) -> None:
        self._ended.set()

    def _loop(self) -> None:
        while not self._ended.wait(WATCH_SECONDS):
            now = self._clock.monotonic()
            for guard in self._guards:
                guard.give_up_if_late(now)


OLDEST_VERSION = 140_000

PgConnection = psycopg.Connection[Row]


def _is_news(record: logging.LogRecord) -> bool:
    """A pipeline that ends with its connection is told of by the error that we raise."""
    return not str(record.msg).startswith("error ignored terminating")


logging.getLogger("psycopg").addFilter(_is_news)


class Server(NamedTuple):
    """The columns of `who_and_where`."""

    system: str
    is_standby: bool
    timeline: str | None
    version: int
    database: str
    user: str
    pid: int
    encoding: str
    schema: int  # the number of the schema, another one after a restore into the same server
    start: str  # another one after each start and each crash of the server

    @property
    def life(self) -> str:
        """Changes when the data may have lost its last commits: a restored copy, a promoted one."""
        return f"{self.system}/{self.timeline}/{self.schema}"


class Connected(NamedTuple):
    """A connection and the server that it leads to."""

    connection: PgConnection
    server: Server
    is_direct: bool  # False: a pooler is in between, so the session is not ours


def connect(address: Address, queries: dict[str, str]) -> Connected:
    """A connection with autocommit; psycopg's errors, or StoreUnsupported."""
    connection: PgConnection = psycopg.Connection.connect(
        **address.conninfo,  # type: ignore[arg-type]  # libpq's names and texts
        autocommit=True,
        prepare_threshold=None,
        cursor_factory=psycopg.RawCursor,
    )
    try:
        connection.adapters.register_dumper(int, Int8Dumper)  # one type, so one plan
        with given_up_after(connection, CALL_SECONDS):
            connection.execute(queries["own_path"], (connection.info.backend_pid,))
            server = ask_server(connection, queries)
        if server.version < OLDEST_VERSION:
            raise StoreUnsupported(
                f"The server of {address.shown} is PostgreSQL {server.version // 10_000}; Penstock "
                f"needs {OLDEST_VERSION // 10_000} or newer."
            )
        if server.encoding != "UTF8":
            raise StoreUnsupported(
                f"The database of {address.shown} has encoding {server.encoding}; Penstock needs "
                "UTF8. Make it with 'create database NAME encoding UTF8 template template0'."
            )
    except BaseException:
        connection.close()
        raise
    is_direct = server.pid == connection.info.backend_pid
    if is_direct:
        connection.prepare_threshold = 2
    return Connected(connection, server, is_direct)


def ask_server(connection: PgConnection, queries: dict[str, str]) -> Server:
    """The server that this connection leads to."""
    (row,) = connection.execute(queries["who_and_where"]).fetchall()
    return Server(*row)


def closed_quietly(connection: PgConnection | None) -> None:
    if connection is not None:
        with contextlib.suppress(psycopg.Error, OSError):
            connection.close()
