# SPDX-License-Identifier: Apache-2.0
"""The writer's session with the file: transactions under the write lock."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
from pathlib import Path
from typing import Any

import apsw

from penstock import failpoints
from penstock.clock import MICROSECONDS, BootClock, Clock
from penstock.errors import (
    InternalError,
    StoreBusy,
    StoreError,
    StoreFailed,
    StoreFull,
    StoreReplaced,
)
from penstock.sentences import command
from penstock.stores.retry import Outage
from penstock.stores.sql.statements import Row, newer_schema
from penstock.stores.sqlite.checkpoint import Checkpoints
from penstock.stores.sqlite.connection import (
    BUSY_MILLISECONDS,
    as_damage,
    as_store_error,
    disconnect,
)
from penstock.stores.sqlite.location_check import beside
from penstock.stores.sqlite.transaction import SqliteTransaction
from penstock.stores.sqlite.write_lock import WriteLock

_HERE = -100  # AT_FDCWD
_INODE = 0x100  # STATX_INO: the device comes with it

_FileId = tuple[int, ...] | None  # None: there is no such file, or it cannot be seen


class _Answer(ctypes.Structure):
    """What is read here of the kernel's `struct statx`, which has 256 bytes."""

    _fields_ = (
        ("_before", ctypes.c_uint64 * 4),
        ("inode", ctypes.c_uint64),
        ("_between", ctypes.c_uint64 * 12),
        ("device_major", ctypes.c_uint32),
        ("device_minor", ctypes.c_uint32),
        ("_after", ctypes.c_uint64 * 14),
    )


_statx = getattr(ctypes.CDLL(None), "statx", None)  # not on every system


class FileIdentity:
    """Remembers which file had the name at first. Used by one thread at a time."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._encoded = os.fsencode(path)
        self._answer = _Answer()
        self._address = ctypes.c_void_p(ctypes.addressof(self._answer))
        self._ask = self._without_times
        self._first = self._ask()
        if self._first is None:  # as in a container that knows no statx
            self._ask = self._with_times
            self._first = self._ask()

    def is_the_same(self) -> bool:
        return self._first is not None and self._ask() == self._first

    def _without_times(self) -> _FileId:
        if _statx is None or _statx(_HERE, self._encoded, 0, _INODE, self._address):
            return None
        answer = self._answer
        return answer.inode, answer.device_major, answer.device_minor

    def _with_times(self) -> _FileId:
        try:
            about = os.stat(self._path)
        except OSError:
            return None
        return about.st_ino, about.st_dev


log = logging.getLogger("penstock.store")


class SqliteSession:
    """Owns the write connection and the write lock. Used by one thread at a time."""

    def __init__(
        self,
        path: Path,
        connection: apsw.Connection,
        queries: dict[str, str],
        clock: Clock,
        boot_clock: BootClock,
        schema: int,
    ) -> None:
        self._path = path
        self._connection = connection
        self._queries = queries
        self._clock = clock
        self._boot_clock = boot_clock
        self._schema = schema
        self._write_lock = WriteLock(path)
        self._checkpoints = Checkpoints(path, connection, clock)
        self._log = FileIdentity(str(beside(path, "-wal")))  # there is one since we are connected
        self._moved = ctypes.c_int(0)
        self._busy = Outage(log, clock, "Writing has to wait", "The store is free again")
        self._full = False
        self._tx: SqliteTransaction | None = None
        self._mark: tuple[Any, ...] = ()
        self._began_monotonic = 0.0

    def begin(self, *, wait: bool) -> SqliteTransaction:
        if not self._write_lock.acquire(wait=wait):
            raise StoreBusy(f"It is another writer's turn at the store {str(self._path)!r}.")
        began = self._clock.monotonic()
        try:
            if not wait:
                self._connection.set_busy_timeout(0)
            self._execute("begin_write")
            ((version,),) = self._execute("schema_version")
            if version != self._schema:
                raise newer_schema(repr(str(self._path)), version, self._schema)
            self._look_at_files()
        except StoreBusy as error:
            self.rollback()
            if wait:
                self._busy.began(error, began)
            raise
        except BaseException:
            self.rollback()
            raise
        finally:
            if not wait:
                self._connection.set_busy_timeout(BUSY_MILLISECONDS)
        self._began_monotonic = self._clock.monotonic()
        self._busy.ended()
        self._tx = SqliteTransaction(
            self._connection,
            self._queries,
            round(self._clock.now() * MICROSECONDS),
            self._boot_clock.boot_time(),
        )
        return self._tx

    def _look_at_files(self) -> None:
        """What is written to a file that was removed or replaced is lost: see it, and stop.

        SQLite is asked of the database itself, and its log is looked at by name: a restore that
        died took the log away and left the database. We hold the lock that a restore takes, so
        that no write slips between.
        """
        answer = ctypes.addressof(self._moved)
        self._connection.file_control("main", apsw.SQLITE_FCNTL_HAS_MOVED, answer)
        if self._moved.value:
            raise StoreReplaced(
                f"The store {str(self._path)!r} was removed or replaced while it was in use; "
                "nothing was changed. Start again what uses it; if the file is missing, put it "
                f"back or restore a backup with '{command('restore', 'FILE')}'."
            )
        if not self._log.is_the_same():
            raise StoreFailed(
                f"The log of the store {str(self._path)!r} was removed or replaced while it was in "
                "use; nothing was changed now, but what the log held may be lost. Stop all that "
                "use the store, put the log back or restore a backup with "
                f"'{command('restore', 'FILE')}', "
                "and start again."
            )

    def translated(self, error: BaseException) -> BaseException:
        if isinstance(error, apsw.Error):
            mapped = self._mapped(error, "writing to the store")
            mapped.__cause__ = error
            if type(mapped) is not StoreError:  # else a wrong statement: our bug, or a damage
                error = mapped
        self._full = isinstance(error, StoreFull)
        if not isinstance(error, Exception):
            return error
        return as_damage(error, self._path, self._connection, self._queries)

    def elapsed(self) -> float:
        return self._clock.monotonic() - self._began_monotonic

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def savepoint(self) -> None:
        self._execute("savepoint")
        self._mark = self._current().mark()

    def release_savepoint(self) -> None:
        self._execute("release_savepoint")

    def rollback_savepoint(self) -> bool:
        self._execute("rollback_savepoint")
        self._execute("release_savepoint")
        self._current().reset(self._mark)
        return True

    def commit(self, *, more: bool) -> None:
        failpoints.hit("commit.begin")
        try:
            self._current().finish()
        except apsw.Error as error:
            raise self._mapped(error, "writing to the store") from error
        try:
            self._connection.execute(self._queries["commit"]).fetchall()
        except apsw.Error as error:
            raise self._mapped(error, "committing to the store", committing=True) from error
        self._tx = None

    def after_commit(self) -> None:
        try:
            failpoints.hit("checkpoint.begin")
            self._checkpoints.run_if_due()
        except apsw.Error as error:
            raise self._mapped(error, "moving the log into the store") from error
        finally:
            self._write_lock.release()

    def rollback(self) -> None:
        with contextlib.suppress(apsw.Error):
            if self._connection.in_transaction:
                self._connection.execute(self._queries["rollback"]).fetchall()
            if self._full:  # a log that was moved can be written over: small changes go on
                self._full = False
                self._checkpoints.run()
        self._tx = None
        self._write_lock.release()

    def close(self, *, sound: bool) -> None:
        disconnect(self._connection, sound=sound)
        self._write_lock.close()

    def _current(self) -> SqliteTransaction:
        if self._tx is None:
            raise InternalError(
                "No transaction is open. This is a bug of Penstock; please report it."
            )
        return self._tx

    def _execute(self, query: str) -> list[Row]:
        try:  # no context manager: this is the hot path
            return self._connection.execute(self._queries[query]).fetchall()
        except apsw.Error as error:
            raise self._mapped(error, "writing to the store") from error

    def _mapped(self, error: apsw.Error, doing: str, *, committing: bool = False) -> StoreError:
        return as_store_error(error, self._path, doing, self._connection, committing=committing)
