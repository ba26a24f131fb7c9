# SPDX-License-Identifier: Apache-2.0
"""How is a file looked at without leaving a trace?

An ordinary read connection makes a log and its index beside a file that has none, and leaves them
there. A look makes nothing: where there is no log nobody is connected, so the file is read as one
that does not change, and read again if somebody has come meanwhile. Where there is a log with its
index, the index is only read, as far as SQLite can do with that.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import apsw

from penstock.errors import StoreBusy, StoreError
from penstock.stores.sqlite.connection import BUSY_MILLISECONDS, mapped_errors, snapshot
from penstock.stores.sqlite.location_check import beside, has_log, size_of
from penstock.stores.sqlite.open import statements

LAST_CHARACTER = "\U0010ffff"  # greater than what any key goes on with
LOOKS_MAX = 3  # at a file that somebody else keeps changing

T = TypeVar("T")


class LogUnmerged(StoreError):
    """The log lies there without its index: whoever opens the store next will merge it."""


def look(path: Path, see: Callable[[apsw.Connection], T]) -> T:
    """What `see` makes of one state of the file; it may be called several times."""
    path = Path(os.path.realpath(path))  # the log lies beside the file, not beside a link to it
    for _ in range(LOOKS_MAX):
        log, index = (beside(path, end) for end in ("-wal", "-shm"))
        if size_of(log) and not index.exists():
            raise LogUnmerged(
                f"The log of the store {str(path)!r} is not merged yet; any command that opens the "
                "store does it, such as 'penstock queue stats'."
            )
        if has_log(path) and index.exists():
            return _see_shared(path, see)
        before = _state(path)
        try:
            seen = _see(path, "immutable=1", see)
        except StoreError:
            if _state(path) == before:
                raise
            continue
        if _state(path) == before:
            return seen
    raise StoreBusy(f"The store {str(path)!r} changes all the time. Try again.")


def keys_with_prefix(path: Path, start: str, limit: int) -> list[str]:
    """The first keys that begin with a text, by the index of keys."""
    query = statements()["keys_between"]
    end = start + LAST_CHARACTER
    return look(
        path,
        lambda connection: [
            str(key) for (key,) in connection.execute(query, (start, end, limit)).fetchall()
        ],
    )


def _state(path: Path) -> tuple[int, ...]:
    found = path.stat()
    log = beside(path, "-wal").exists()
    return found.st_ino, found.st_size, found.st_mtime_ns, log, has_log(path)


def _see_shared(path: Path, see: Callable[[apsw.Connection], T]) -> T:
    try:
        return _see(path, "mode=ro&readonly_shm=1", see)
    except StoreError as error:
        if not isinstance(error.__cause__, apsw.ReadOnlyError):
            raise
        return _see(path, "mode=ro", see)  # the index needs a mark for us, in shared memory


def _see(path: Path, options: str, see: Callable[[apsw.Connection], T]) -> T:
    name = f"file:{quote(str(path.absolute()))}?{options}"
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    with mapped_errors(path, "looking at the store"):
        connection = apsw.Connection(name, flags=flags)
        try:
            connection.set_busy_timeout(BUSY_MILLISECONDS)
            with snapshot(connection, statements()):
                return see(connection)
        finally:
            with contextlib.suppress(apsw.Error):
                connection.close()
