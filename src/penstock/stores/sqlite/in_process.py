# SPDX-License-Identifier: Apache-2.0
"""The store of one process, in memory: the statements of the SQLite store, run by their caller.

It has neither a file nor a thread, so every answer is there when the call returns. That is what
virtual time needs; preflights and plans that need no file use it, too.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import apsw

from penstock.clock import BootTime, Clock, to_micros
from penstock.errors import PenstockError
from penstock.model.lease import LeaseBatch, LeaseRequest
from penstock.stores.group_commit import closed
from penstock.stores.sql import lease
from penstock.stores.sql.store import SqlStore
from penstock.stores.sql.transaction import Transaction
from penstock.stores.sqlite.open import known_steps, statements
from penstock.stores.sqlite.read import SqliteReader
from penstock.stores.sqlite.transaction import SqliteTransaction
from penstock.stores.store_future import Reply

WAIT_SECONDS = 1.0  # who waits for work looks again after this long: jobs fall due, leases end
STATEMENTS_KEPT = 400  # prepared statements of a connection: all that there are

_BOOT_ID = "in process"
_PLACE = Path(":memory:")

T = TypeVar("T")


class InProcessStore(SqlStore):
    """Owns a database in memory, which ends with it. Any thread may call, one at a time."""

    _reader: SqliteReader
    _writer: _InlineWriter

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._cursor = lease.LeaseCursor()
        connection = _connection()
        self._reader = SqliteReader(_PLACE, connection, statements(), len(known_steps()))
        self._writer = _InlineWriter(connection, self._reader.lock, self._times, self._committed)

    @property
    def url(self) -> str:
        return "memory:"

    def lease(self, request: LeaseRequest) -> Reply[LeaseBatch]:
        reply = self._submit(lambda tx: lease.lease(tx, request, self._cursor))
        with suppress(PenstockError):
            if not reply.result().more:  # all that was made so far has been seen
                self._waiters.saw()
        return reply

    def close(self) -> None:
        self._writer.close()
        self._reader.close()
        self._waiters.wake()

    async def _wait(self, timeout: float | None, woken: asyncio.Event) -> None:
        if self._waiters.has_news:
            return
        seconds = WAIT_SECONDS if timeout is None else min(timeout, WAIT_SECONDS)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await woken.wait()

    def _times(self) -> tuple[int, BootTime]:
        boot = BootTime(_BOOT_ID, to_micros(self._clock.monotonic()))
        return to_micros(self._clock.now()), boot

    def _read(self, question: Callable[[], T]) -> Reply[T]:
        try:
            return Reply.of(question())
        except PenstockError as error:
            return Reply.failed(error)


class _InlineWriter:
    """Runs each operation at once, in a transaction of its own. Owns no connection."""

    def __init__(
        self,
        connection: apsw.Connection,
        lock: threading.Lock,
        times: Callable[[], tuple[int, BootTime]],
        committed: Callable[[Transaction], None],
    ) -> None:
        self._connection = connection
        self._queries = statements()
        self._lock = lock  # of all who use the connection
        self._times = times
        self._committed = committed
        self._closed = False

    def submit(
        self,
        run: Callable[[Transaction], T],
        *,
        urgent: bool = False,
        atomic: bool = False,
        lazy: bool = False,
        opening: Callable[[], None] | None = None,
    ) -> Reply[T]:
        """Run it now; an operation that is refused is undone, which makes every one atomic."""
        with self._lock:
            if self._closed:
                return Reply.failed(closed())
            tx = SqliteTransaction(self._connection, self._queries, *self._times())
            try:
                with self._connection:  # one transaction
                    value = run(tx)
                    tx.finish()
            except Exception as error:
                return Reply.failed(error)
        self._committed(tx)
        return Reply.of(value)

    def close(self) -> None:
        self._closed = True


def _connection() -> apsw.Connection:
    """An empty store of the present schema."""
    connection = apsw.Connection(":memory:", statementcachesize=STATEMENTS_KEPT)
    connection.deserialize("main", _empty())
    connection.pragma("temp_store", "memory")
    return connection


@lru_cache(maxsize=1)
def _empty() -> bytes:
    """What every store begins with: to copy it costs a hundredth of running the migrations."""
    connection = apsw.Connection(":memory:")
    for step in known_steps():
        connection.execute(step.script).fetchall()
    connection.pragma("user_version", len(known_steps()))
    return connection.serialize("main")
