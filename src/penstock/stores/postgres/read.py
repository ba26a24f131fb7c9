# SPDX-License-Identifier: Apache-2.0
"""Reads from the server, on a connection of its own, in a thread of its own."""

from __future__ import annotations

import queue
import sys
import threading
from array import array
from collections.abc import Callable
from typing import Any, TypeVar

import psycopg

from penstock.clock import BootTime, Clock, blocking_sleep
from penstock.errors import PenstockError, SchemaTooNew, StoreCorrupt, StoreError
from penstock.ids import SystemIds
from penstock.model.dataset import SliceMarks
from penstock.stores.group_commit import Contended, closed
from penstock.stores.postgres import errors
from penstock.stores.postgres.connection import (
    CALL_SECONDS,
    Address,
    Connected,
    Guard,
    closed_quietly,
    connect,
)
from penstock.stores.retry import RetryDelay
from penstock.stores.sql.statements import Row, newer_schema
from penstock.stores.sql.views import SqlReader
from penstock.stores.store_future import Reply

READ_SECONDS = 3 * CALL_SECONDS  # a statement for people may take longer than one of a worker
ASK_SECONDS = 10.0  # how long a question waits for an unreachable server

T = TypeVar("T")


class ServerReader(SqlReader):
    """Knows what is to be checked only here, and how many numbers come: a job has two tables."""

    def slice_marks(self, dataset: str, start: int, end: int, version: str) -> SliceMarks:
        ((seq, *columns),) = self.rows("slice_marks", dataset, start, end, version)
        ats, seqs, bases, outdated = map(_numbers, columns)
        return SliceMarks(ats=ats, seqs=seqs, bases=bases, outdated=outdated, seq=seq)

    def slice_rows(self, query: str, *parameters: object) -> tuple[int, list[Row]]:
        found = self.rows(query, *parameters)
        (seq,) = (row[0] for row in found if row[0] is not None)
        return seq, [row[1:] for row in found if row[0] is None]

    def check(self) -> list[str]:
        return super().check() + [
            f"Job {key} is stored in two tables, or in none."
            for (key,) in self.rows("check_places")
        ]


def _numbers(packed: bytes | None) -> array[int]:
    """Whole numbers of eight bytes, as a server sends them; None: there are none."""
    found = array("q", packed or b"")
    if sys.byteorder == "little":
        found.byteswap()
    return found


class PostgresReader(ServerReader):
    """Owns a connection for reading and the thread that uses it."""

    def __init__(
        self, address: Address, queries: dict[str, str], clock: Clock, guard: Guard, schema: int
    ) -> None:
        self._address = address
        self._queries = queries
        self._clock = clock
        self._guard = guard
        self._schema = schema
        self._connected: Connected | None = None
        self._asked: queue.SimpleQueue[tuple[Reply[Any], Callable[[], Any]] | None] = (
            queue.SimpleQueue()
        )
        self._closed = False
        self._closing = threading.Lock()  # nothing is asked after the thread was told to end
        self._delay = RetryDelay(SystemIds().random)
        self._thread = threading.Thread(target=self._loop, name="penstock-reader", daemon=True)
        self._thread.start()

    def ask(self, question: Callable[[], T]) -> Reply[T]:
        """Answer a question, made of calls to this reader, in its thread."""
        with self._closing:
            if self._closed:
                return Reply.failed(closed())
            reply: Reply[T] = Reply()
            self._asked.put((reply, question))
        return reply

    def rows(self, query: str, *parameters: object) -> list[Row]:
        """Rows of one statement; waits for an unreachable server, for a while."""
        until = self._clock.monotonic() + ASK_SECONDS
        while True:
            try:
                connected = self._connect()
                self._guard.until = self._clock.monotonic() + READ_SECONDS
                found = connected.connection.execute(self._queries[query], parameters).fetchall()
                self._delay.reset()
                return found
            except psycopg.Error as error:
                mapped = errors.as_store_error(error, self._address.shown, "reading")
                if not isinstance(mapped, Contended):
                    raise self._newer_schema(mapped) or mapped from error
                self._drop()
                if self._closed or self._clock.monotonic() >= until:
                    raise errors.unreachable(
                        self._address.shown, errors.first_line(error)
                    ) from error
            finally:
                self._guard.until = None
            blocking_sleep(self._delay.next_seconds())

    def _newer_schema(self, error: StoreError) -> SchemaTooNew | None:
        """Whether another process has migrated the tables, so that the statement had to fail."""
        if type(error) not in (StoreError, StoreCorrupt):
            return None
        try:
            connection = self._connect().connection
            ((found,),) = connection.execute(self._queries["schema_version"]).fetchall()
        except psycopg.Error:
            return None
        if found == self._schema:
            return None
        return newer_schema(self._address.shown, found, self._schema)

    def boot_time(self, server_time: Callable[[], int] | None) -> BootTime:
        """The server's life and time."""
        now = int(self.value("server_time")) if server_time is None else server_time()
        return BootTime(self._connect().server.life, now)

    def close(self) -> None:
        with self._closing:
            self._closed = True
            self._asked.put(None)
        self._guard.give_up()
        self._thread.join(CALL_SECONDS)

    def _loop(self) -> None:
        while (asked := self._asked.get()) is not None:
            reply, question = asked
            try:
                reply.resolve(question())
            except PenstockError as error:
                reply.refuse(closed() if self._closed else error)
            except Exception as error:
                reply.refuse(error)
        self._drop()

    def _connect(self) -> Connected:
        if self._closed:
            raise closed()
        if self._connected is None:
            self._connected = connect(self._address, self._queries)
            self._guard.watch_over(self._connected.connection)
        return self._connected

    def _drop(self) -> None:
        if self._connected is not None:
            self._guard.watch_over(None)
            closed_quietly(self._connected.connection)
            self._connected = None
