# SPDX-License-Identifier: Apache-2.0
"""How is the server connected to, and in which life is it?"""

from __future__ import annotations

import contextlib
import logging
from typing import NamedTuple

import psycopg
from psycopg.types.numeric import Int8Dumper

from penstock.errors import StoreUnsupported
from penstock.stores.postgres.address import Address
from penstock.stores.postgres.silence import CALL_SECONDS, given_up_after
from penstock.stores.sql.statements import Row

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
    """A connection and whom it leads to."""

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
    """Whom does this connection lead to?"""
    (row,) = connection.execute(queries["who_and_where"]).fetchall()
    return Server(*row)


def closed_quietly(connection: PgConnection | None) -> None:
    if connection is not None:
        with contextlib.suppress(psycopg.Error, OSError):
            connection.close()
