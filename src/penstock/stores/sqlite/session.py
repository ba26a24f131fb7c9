# SPDX-License-Identifier: Apache-2.0
"""How does the writer's thread talk to the file?"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import apsw

from penstock.clock import MICROSECONDS, BootClock, Clock
from penstock.errors import StoreBusy, StoreError
from penstock.stores.sqlite.connection import BUSY_MILLISECONDS, as_store_error, mapped_errors
from penstock.stores.sqlite.transaction import Transaction
from penstock.stores.sqlite.turn import Turn


class SqliteSession:
    """Owns the write connection and the turn. Used by one thread at a time."""

    def __init__(
        self,
        path: Path,
        connection: apsw.Connection,
        queries: dict[str, str],
        clock: Clock,
        boot_clock: BootClock,
    ) -> None:
        self._path = path
        self._connection = connection
        self._queries = queries
        self._clock = clock
        self._boot_clock = boot_clock
        self._turn = Turn(path)
        self._tx: Transaction | None = None
        self._mark: tuple[Any, ...] = ()
        self._began_monotonic = 0.0

    def begin(self, *, wait: bool) -> Transaction:
        if not self._turn.take(wait=wait):
            raise StoreBusy(f"It is another writer's turn at the store {str(self._path)!r}.")
        try:
            if not wait:
                self._connection.set_busy_timeout(0)
            with mapped_errors(self._path, "waiting for the store"):
                self._connection.execute(self._queries["begin_write"]).fetchall()
        except BaseException:
            self.rollback()
            raise
        finally:
            if not wait:
                self._connection.set_busy_timeout(BUSY_MILLISECONDS)
        self._began_monotonic = self._clock.monotonic()
        self._tx = Transaction(
            self._connection,
            self._queries,
            round(self._clock.now() * MICROSECONDS),
            self._boot_clock.boot_time(),
        )
        return self._tx

    def translated(self, error: BaseException) -> BaseException:
        if not isinstance(error, apsw.Error):
            return error
        mapped = as_store_error(error, self._path, "using the store")
        mapped.__cause__ = error
        return error if type(mapped) is StoreError else mapped  # a wrong statement is our bug

    def elapsed(self) -> float:
        return self._clock.monotonic() - self._began_monotonic

    def savepoint(self) -> None:
        self._execute("savepoint")
        self._mark = self._current().mark()

    def release_savepoint(self) -> None:
        self._execute("release_savepoint")

    def rollback_savepoint(self) -> None:
        self._execute("rollback_savepoint")
        self._execute("release_savepoint")
        self._current().reset(self._mark)

    def commit(self) -> None:
        with mapped_errors(self._path, "writing to the store"):
            self._current().finish()
            self._connection.execute(self._queries["commit"]).fetchall()
        self._tx = None
        self._turn.give()

    def rollback(self) -> None:
        with contextlib.suppress(apsw.Error):
            if self._connection.in_transaction:
                self._connection.execute(self._queries["rollback"]).fetchall()
        self._tx = None
        self._turn.give()

    def close(self) -> None:
        with contextlib.suppress(apsw.Error):
            self._connection.close()
        self._turn.close()

    def _current(self) -> Transaction:
        if self._tx is None:
            raise RuntimeError("no transaction is open")
        return self._tx

    def _execute(self, query: str) -> None:
        with mapped_errors(self._path, "writing to the store"):
            self._connection.execute(self._queries[query]).fetchall()
