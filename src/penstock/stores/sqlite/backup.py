# SPDX-License-Identifier: Apache-2.0
"""Backs a store up while workers use it."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from penstock.errors import (
    StoreCorrupt,
    StoreError,
    StoreForeign,
    StoreFull,
    StoreReadOnly,
    UsageError,
)
from penstock.ids import IdSource
from penstock.model.views import BackupReport
from penstock.stores.sqlite.connection import connect, disconnect, mapped_errors
from penstock.stores.sqlite.location_check import beside
from penstock.stores.sqlite.open import first_difference, identify, known_steps, statements
from penstock.stores.sqlite.read import LogUnmerged, look

TOKEN_MAX = 2**53  # microseconds since 1970 until the year 2255: see `Restore`
PAGES_PER_STEP = 1_000  # between two looks at Ctrl-C


@contextmanager
def unfinished(path: Path) -> Iterator[Path]:
    """A new private file that is gone afterwards, with what SQLite put beside it."""
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        os.close(os.open(path, flags, 0o600))
        yield path
    except OSError as error:
        raise _as_ours(error, path) from error
    finally:
        for end in ("", "-wal", "-shm", "-journal", "-turn"):
            with contextlib.suppress(OSError):  # not there, or nobody may: what counts was told
                beside(path, end).unlink()


def copy_store(store: Path, target: Path, queries: dict[str, str]) -> int:
    """Copy a store that may be in use into an empty file; how many jobs it holds.

    Where the files cannot be made that reading beside others needs, a look must do.
    """
    try:
        reading, jobs = _begin_reading(store, queries)
    except (StoreReadOnly, StoreFull) as refusal:
        try:
            return copy_backup(store, target, queries)
        except LogUnmerged:
            raise refusal from None
    try:
        with mapped_errors(store, "reading the store", reading):
            _copy_pages(reading, target, queries)
            reading.execute(queries["commit"]).fetchall()
            return jobs
    finally:
        disconnect(reading)


def _begin_reading(store: Path, queries: dict[str, str]) -> tuple[apsw.Connection, int]:
    """From here on all that is read is of one state; how many jobs there are."""
    reading = connect(store)
    try:
        with mapped_errors(store, "reading the store", reading):
            reading.execute(queries["begin_read"]).fetchall()
            return reading, _jobs(reading, queries)
    except BaseException:
        disconnect(reading)
        raise


def copy_backup(backup: Path, target: Path, queries: dict[str, str]) -> int:
    """The same for a file that must stay as it is, with nothing made beside it."""

    def see(reading: apsw.Connection) -> int:
        jobs = _jobs(reading, queries)
        _copy_pages(reading, target, queries)
        return jobs

    return look(backup, see)


def _copy_pages(reading: apsw.Connection, target: Path, queries: dict[str, str]) -> None:
    writing = connect(target)
    try:
        with mapped_errors(target, "copying the store", writing):
            writing.pragma("synchronous", "off")  # the whole file is synced at the end
            with writing.backup("main", reading, "main") as backup:
                while not backup.done:
                    backup.step(PAGES_PER_STEP)
            writing.execute(queries["one_file"]).fetchall()
    finally:
        disconnect(writing)


def check_store(path: Path, queries: dict[str, str], *, full: bool) -> int:
    """The schema of a file that is a sound store of ours; refuses any other."""

    def see(connection: apsw.Connection) -> int:
        version = identify(path, connection, queries, known_steps())
        if version == 0:
            raise StoreForeign(f"The file {str(path)!r} is empty. Use another backup.")
        check = queries["check_file_fully" if full else "check_file"]
        found = [str(row[0]) for row in connection.execute(check).fetchall()]
        if found != ["ok"]:
            raise _unsound(path, found[0])
        difference = first_difference(connection, version)
        if difference is not None:
            raise _unsound(path, difference)
        ((token,),) = connection.execute(queries["highest_token"]).fetchall()
        if not 0 <= int(str(token)) <= TOKEN_MAX:
            raise _unsound(path, f"a token {token}, greater than any that is ever given")
        return version

    try:
        return look(path, see)
    except StoreForeign:
        raise
    except StoreCorrupt as error:
        raise _unsound(path, str(error.__cause__)) if error.__cause__ else error from error


def _unsound(path: Path, why: str) -> StoreCorrupt:
    return StoreCorrupt(
        f"The file {str(path)!r} is not a sound database ({why.rstrip('.')}); nothing was changed. "
        "Use another backup."
    )


def count_jobs(path: Path, queries: dict[str, str]) -> int:
    """How many jobs a store holds, by a look at it."""
    return look(path, lambda connection: _jobs(connection, queries))


def _jobs(connection: apsw.Connection, queries: dict[str, str]) -> int:
    return int(str(connection.execute(queries["count_jobs"]).fetchall()[0][0]))


def make_durable(path: Path) -> None:
    """Bring what a file or a folder holds to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _as_ours(error: OSError, path: Path) -> StoreError:
    where = f"{str(path.parent)!r}: {error.strerror}"
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return StoreReadOnly(f"Cannot write to the folder {where}. Name another place.")
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return StoreFull(
            f"Cannot write to the folder {where}. Free space there; nothing was changed."
        )
    return StoreError(f"Cannot write to the folder {where}. Name another place.")


#: What the files beside a store end in: its log, the index of it, its lock, what is being made.
COMPANIONS = ("-wal", "-shm", "-journal", "-turn", "-new")


def back_up(store: Path, target: Path, ids: IdSource, *, force: bool = False) -> BackupReport:
    """Write a consistent, checked and durable copy; the name appears when all of it is there."""
    _refuse(store, target, force)
    queries = statements()
    part = target.with_name(f".{ids.new_id(target.name[:100])}.part")
    with unfinished(part):
        jobs = copy_store(store, part, queries)
        check_store(part, queries, full=True)
        make_durable(part)
        size = part.stat().st_size
        _give_name(part, target, force)
    make_durable(target.parent)
    return BackupReport(jobs, size)


def _refuse(store: Path, target: Path, force: bool) -> None:
    name = repr(str(target))
    refuse_unnameable(target)
    if not target.parent.is_dir():
        raise UsageError(
            f"There is no folder {str(target.parent)!r} to write the backup to; make it first."
        )
    if target.is_dir():
        raise UsageError(f"{name} is a folder; name a file to write the backup to.")
    if target.exists() and target.samefile(store):
        raise UsageError(f"{name} is the store itself; name another file to write the backup to.")
    refuse_companion(store, target)
    if os.path.lexists(target) and not force:
        raise _exists(target)


def refuse_unnameable(file: Path) -> None:
    """Refuse a name that SQLite cannot be told."""
    try:
        str(file).encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"The name {str(file)!r} is not UTF-8; name a file that is, in such a folder."
        ) from None


def refuse_companion(store: Path, file: Path) -> None:
    """Refuse a name that SQLite or we use beside the store, whether or not it is there now."""
    own = os.path.realpath(store)
    if os.path.realpath(file) in {own + end for end in COMPANIONS}:
        raise UsageError(
            f"{str(file)!r} belongs to the store {own!r} and is no backup; name another file."
        )


def _exists(target: Path) -> UsageError:
    return UsageError(
        f"{str(target)!r} exists already; name another file, or overwrite it with --force."
    )


def _give_name(part: Path, target: Path, force: bool) -> None:
    if force:
        os.replace(part, target)
        return
    try:
        os.link(part, target)  # unlike a rename, it never overwrites
    except FileExistsError:
        raise _exists(target) from None
    except OSError:  # a file system without hard links
        os.replace(part, target)
