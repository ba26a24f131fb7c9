# SPDX-License-Identifier: Apache-2.0
"""Reads from the file, on a connection of its own, by any thread, one at a time."""

from __future__ import annotations

import contextlib
import os
import threading
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import apsw
import msgspec

from penstock.clock import BootTime
from penstock.errors import SchemaTooNew, StoreBusy, StoreCorrupt, StoreError
from penstock.model.dataset import SliceMarks
from penstock.sentences import command
from penstock.stores.group_commit import closed
from penstock.stores.sql.statements import Row, newer_schema
from penstock.stores.sql.views import SqlReader
from penstock.stores.sqlite.connection import (
    BUSY_MILLISECONDS,
    as_damage,
    as_store_error,
    corrupt,
    disconnect,
    mapped_errors,
    snapshot,
)
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
                f"store does it, such as '{command('queue', 'stats')}'."
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


_decode_any = msgspec.json.Decoder().decode
_decode_numbers = msgspec.json.Decoder(list[int]).decode


class SqliteReader(SqlReader):
    """Owns a read connection; any thread may ask, one at a time."""

    def __init__(
        self, path: Path, connection: apsw.Connection, queries: dict[str, str], schema: int
    ) -> None:
        self._path = path
        self._schema = schema
        self._connection = connection
        self._queries = queries
        self.lock = threading.Lock()  # guards the connection
        self._closed = False

    def rows(self, query: str, *parameters: object) -> list[Row]:
        try:
            return self._rows(query, parameters)
        except StoreError as error:
            if type(error) is StoreError:  # a wrong statement: wrong since another migrated?
                self.refuse_newer_schema()
            raise

    def refuse_newer_schema(self) -> None:
        """SchemaTooNew if another process has migrated the file meanwhile."""
        version = int(self._rows("schema_version")[0][0])
        if version != self._schema:
            raise newer_schema(repr(str(self._path)), version, self._schema)

    def _rows(self, query: str, parameters: Row = ()) -> list[Row]:
        with self.lock:
            if self._closed:
                raise closed()
            try:  # no context manager: this is the hot path
                return self._connection.execute(self._queries[query], parameters).fetchall()
            except apsw.Error as error:
                doing = "reading the store"
                raise as_store_error(error, self._path, doing, self._connection) from error

    def check_ready(self) -> None:
        """StoreCorrupt if indexes do not find what could be leased."""
        missing = ", ".join(str(index) for (index,) in self.rows("check_ready"))
        if missing:
            raise corrupt(self._path, f"jobs that are there are missing in the index {missing}")

    def array(self, query: str, *parameters: object) -> list[Any]:
        return _decode_any(self.value(query, *parameters))  # type: ignore[no-any-return]

    def slice_marks(self, dataset: str, start: int, end: int, version: str) -> SliceMarks:
        """One row with the columns as JSON: a step per slice would give up the GIL each time."""
        ((seq, *columns),) = self.rows("slice_marks", dataset, start, end, version)
        ats, seqs, bases, outdated = (array("q", _decode_numbers(text)) for text in columns)
        return SliceMarks(ats=ats, seqs=seqs, bases=bases, outdated=outdated, seq=seq)

    def slice_rows(self, query: str, *parameters: object) -> tuple[int, list[Row]]:
        ((seq, found),) = self.rows(query, *parameters)
        return seq, _decode_any(found)

    def as_damage(self, error: Exception) -> Exception:
        """What an unexpected error means, seen in the light of the file's state."""
        with self.lock:
            meaning = as_damage(error, self._path, self._connection, self._queries)
        if isinstance(meaning, StoreCorrupt):
            try:
                self.refuse_newer_schema()  # what another version has written is no damage
            except SchemaTooNew as newer:
                return newer
        return meaning

    def close(self) -> None:
        with self.lock:
            self._closed = True
            disconnect(self._connection)

    def data_version(self) -> int:
        return int(self.value("data_version"))

    def anything_to_lease(self, now: int, boot: BootTime, app: int) -> bool:
        self.refuse_newer_schema()  # a worker that waits must notice, too
        return bool(self.value("anything_to_lease", now, boot.boot_id, boot.at, app))

    def check(self) -> list[str]:
        return super().check() + [
            f"The file is not sound: {row[0]}." for row in self.rows("check_file") if row[0] != "ok"
        ]
