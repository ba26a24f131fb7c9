# SPDX-License-Identifier: Apache-2.0
"""Connects to the database file, and maps SQLite's errors to ours."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import apsw
import msgspec

from penstock.errors import (
    PenstockError,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFailed,
    StoreFull,
    StoreReadOnly,
)
from penstock.sentences import command
from penstock.stores.sqlite import fork_guard, lock_holders
from penstock.stores.sqlite.location_check import has_log

BUSY_MILLISECONDS = 2_000  # one wait for a foreign lock; the writer repeats it
WAL_BYTES_MAX = 64 * 1024 * 1024  # the log's file is cut back to this when it begins anew
CACHE_KIB = 16 * 1024

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def _remedy() -> str:
    restore, doctor = command("restore", "FILE"), command("doctor")
    return f"Restore a backup with '{restore}', or see what is left: '{doctor}'."


_WRITER_PRAGMAS = (
    "pragma journal_mode = wal",
    "pragma foreign_keys = off",
    "pragma trusted_schema = off",
    f"pragma journal_size_limit = {WAL_BYTES_MAX}",
    f"pragma cache_size = -{CACHE_KIB}",
    "pragma temp_store = memory",
)


def connect(path: Path) -> apsw.Connection:
    """A connection that may write; nothing is changed before `prepare_to_write`."""
    return _connected(path, str(path), apsw.SQLITE_OPEN_READWRITE)


def prepare_to_write(path: Path, connection: apsw.Connection, durability: str) -> None:
    """Our settings; they turn the file into one with a log."""
    with mapped_errors(path, "opening the store", connection):
        for pragma in _WRITER_PRAGMAS:
            connection.execute(pragma).fetchall()
        connection.pragma("synchronous", "full" if durability == "full" else "normal")


def connect_to_read(path: Path, *, alone: bool = False) -> apsw.Connection:
    """A connection that can only read.

    `alone`: nobody has the store open, and this user may not make the files that SQLite needs to
    notice others. Then the file is read as one that never changes.
    """
    flags = apsw.SQLITE_OPEN_READONLY
    name = str(path)
    if alone and not has_log(path):
        flags |= apsw.SQLITE_OPEN_URI
        name = f"file:{quote(name)}?immutable=1"
    connection = _connected(path, name, flags)
    with mapped_errors(path, "reading the store", connection):
        connection.pragma("query_only", True)
    return connection


def _connected(path: Path, name: str, flags: int) -> apsw.Connection:
    fork_guard.refuse_inherited(path)
    with mapped_errors(path, "opening the store"):
        connection = apsw.Connection(name, flags=flags)
        connection.set_busy_timeout(BUSY_MILLISECONDS)
    fork_guard.opened(connection, path)
    return connection


def disconnect(connection: apsw.Connection, *, sound: bool = True) -> None:
    """Close it; a store that is not sound any more is left as it is on the disk."""
    with contextlib.suppress(apsw.Error):
        if not sound:
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.close()
    fork_guard.closed(connection)


@contextmanager
def mapped_errors(
    path: Path,
    doing: str = "using the store",
    connection: apsw.Connection | None = None,
    *,
    committing: bool = False,
) -> Generator[None]:
    """Turn SQLite's errors into ours, with the file and what to do."""
    try:
        yield
    except apsw.Error as error:
        raise as_store_error(error, path, doing, connection, committing=committing) from error


@contextmanager
def snapshot(connection: apsw.Connection, queries: dict[str, str]) -> Generator[None]:
    """All that is read within is of one state of the store, whatever others commit meanwhile."""
    if connection.in_transaction:
        yield
        return
    connection.execute(queries["begin_read"]).fetchall()
    try:
        yield
    finally:
        with contextlib.suppress(apsw.Error):  # an I/O error has ended it already
            connection.execute(queries["rollback"]).fetchall()


def as_store_error(
    error: apsw.Error,
    path: Path,
    doing: str,
    connection: apsw.Connection | None = None,
    *,
    committing: bool = False,
) -> StoreError:
    """What an error of SQLite means; a plain StoreError unless disk, lock or file caused it."""
    name = repr(str(path))
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return busy(path)
    if isinstance(error, apsw.FullError) or _lacks_space(error, connection, committing):
        return StoreFull(
            f"No space left while {doing} ({name}); nothing was changed. Free space, then run "
            f"'{command('doctor')}'."
        )
    if isinstance(error, apsw.ReadOnlyError | apsw.PermissionsError | apsw.CantOpenError):
        return StoreReadOnly(
            f"Cannot write the store {name}: {error}. Give this user write access to the file "
            f"and its folder, or name another place with --store."
        )
    if isinstance(error, apsw.CorruptError | apsw.NotADBError | apsw.FormatError) or (
        _code(error) in {apsw.SQLITE_IOERR_SHORT_READ, apsw.SQLITE_IOERR_CORRUPTFS}
    ):
        return corrupt(path, str(error))
    if isinstance(error, apsw.IOError):
        fate = (
            "The last change may or may not be there" if committing else "Nothing more is written"
        )
        return StoreFailed(
            f"I/O error while {doing} ({name}): {error}. {fate}; check the disk, start again, then "
            f"run '{command('doctor')}'."
        )
    return StoreError(f"SQLite refused while {doing} ({name}): {error}.")


def _code(error: apsw.Error) -> int:
    return int(getattr(error, "extendedresult", 0))


def _lacks_space(error: apsw.Error, connection: apsw.Connection | None, committing: bool) -> bool:
    """A quota or a limit on files is a full disk, too.

    But if the log's index cannot grow in a commit, the commit itself may be in the log already.
    """
    if connection is None or connection.system_errno not in _NO_SPACE:
        return False
    if _code(error) == apsw.SQLITE_IOERR_SHMSIZE:
        return not committing
    return _code(error) == apsw.SQLITE_IOERR_WRITE


def busy(path: Path) -> StoreBusy:
    """Somebody else holds the database; who, if it can be known."""
    holders = lock_holders.named(lock_holders.writers(path))
    return StoreBusy(
        f"The store {str(path)!r} is held by {holders}; nothing was changed. Wait, or end what "
        "holds it."
    )


def corrupt(path: Path, failed_check: str) -> StoreCorrupt:
    """The file is damaged; what was found wrong."""
    return StoreCorrupt(
        f"The store {str(path)!r} is not a sound database ({failed_check}); nothing more is "
        f"written to it. {_remedy()}"
    )


class ImpossibleRows(Exception):
    """Rows and indexes contradict each other, which SQLite's own checks do not see in all cases."""


def as_damage(
    error: Exception, path: Path, connection: apsw.Connection, queries: dict[str, str]
) -> Exception:
    """An error that no sound file could cause is a damage; any other is our bug, and stays."""
    if isinstance(error, PenstockError):
        return error
    found = ""
    if isinstance(error, msgspec.DecodeError | UnicodeDecodeError):
        found = f"it holds something unreadable: {error}"
    elif isinstance(error, ImpossibleRows):
        found = str(error)
    else:
        try:
            found = str(connection.execute(queries["first_damage"]).fetchall()[0][0])
        except apsw.Error as damage:
            found = str(damage)
    return error if found == "ok" else _caused(corrupt(path, found), error)


def _caused(error: StoreCorrupt, cause: Exception) -> StoreCorrupt:
    error.__cause__ = cause
    return error
