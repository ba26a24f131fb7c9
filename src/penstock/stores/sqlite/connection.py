# SPDX-License-Identifier: Apache-2.0
"""How is the database file opened, and what do its errors mean?"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import apsw

from penstock.errors import (
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFailed,
    StoreFull,
    StoreReadOnly,
    StoreUnsupported,
)

SQLITE_MIN = (3, 51, 3)  # before it, WAL mode has a rare corruption race
BUSY_MILLISECONDS = 2_000  # one wait for a foreign lock; the writer repeats it
WAL_BYTES_MAX = 64 * 1024 * 1024  # the WAL file is cut back to this after a checkpoint
CACHE_KIB = 16 * 1024
NETWORK_FILE_SYSTEMS = ("nfs", "cifs", "smb", "9p", "fuse", "ceph", "glusterfs", "lustre", "afs")

_WRITER_PRAGMAS = (
    "pragma journal_mode = wal",
    "pragma foreign_keys = off",
    "pragma trusted_schema = off",
    f"pragma journal_size_limit = {WAL_BYTES_MAX}",
    f"pragma cache_size = -{CACHE_KIB}",
    "pragma temp_store = memory",
)


def open_connection(path: Path, *, durability: str, read_only: bool = False) -> apsw.Connection:
    """Open the file with our settings; the caller has made sure that it exists."""
    flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE
    with mapped_errors(path):
        connection = apsw.Connection(str(path), flags=flags)
        connection.set_busy_timeout(BUSY_MILLISECONDS)
        if read_only:
            connection.pragma("query_only", True)
            return connection
        for pragma in _WRITER_PRAGMAS:
            connection.execute(pragma).fetchall()
        connection.pragma("synchronous", "full" if durability == "full" else "normal")
        return connection


def prepare_file(path: Path) -> None:
    """Make the file, private to its owner, if it is missing; refuse unfit places."""
    version = tuple(int(part) for part in apsw.sqlite_lib_version().split("."))
    if version < SQLITE_MIN:
        raise StoreUnsupported(
            f"SQLite {apsw.sqlite_lib_version()} can corrupt a shared database; install apsw >= "
            f"3.53."
        )
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _refuse_network(path)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except PermissionError as error:
        raise StoreReadOnly(
            f"Cannot write the store {str(path)!r}: {error.strerror}. Give this user write "
            f"access to the file and its folder, or name another place with --store."
        ) from None
    except OSError as error:
        if error.errno == 30:  # a read-only file system
            raise StoreReadOnly(
                f"Cannot write the store {str(path)!r}: the file system is read-only. Name another "
                "place with --store."
            ) from None
        raise StoreError(
            f"Cannot open the store {str(path)!r}: {error.strerror}. Name another place with "
            f"--store."
        ) from None
    os.close(descriptor)


def _refuse_network(path: Path) -> None:
    kind = file_system_of(path.parent.resolve())
    if kind.startswith(NETWORK_FILE_SYSTEMS):
        raise StoreUnsupported(
            f"The store {str(path)!r} is on a network file system ({kind}), where SQLite can "
            f"lose data. Name a local place with --store, or use PostgreSQL."
        )


def file_system_of(folder: Path) -> str:
    """The kind of file system that holds a folder; empty where it cannot be told."""
    mounts = Path("/proc/self/mountinfo")
    if sys.platform != "linux" or not mounts.exists():
        return ""
    best, kind = -1, ""
    for line in mounts.read_text().splitlines():
        left, _, right = line.partition(" - ")
        mount_point = left.split(" ")[4].replace("\\040", " ")
        inside = folder == Path(mount_point) or Path(mount_point) in folder.parents
        if inside and len(mount_point) >= best:
            best, kind = len(mount_point), right.split(" ")[0]
    return kind


@contextmanager
def mapped_errors(path: Path, doing: str = "using the store") -> Generator[None]:
    """Turn SQLite's errors into ours, with the file and what to do."""
    try:
        yield
    except apsw.Error as error:
        raise as_store_error(error, path, doing) from error


def as_store_error(error: apsw.Error, path: Path, doing: str) -> StoreError:
    """What an error of SQLite means; a plain StoreError if it says nothing about the world."""
    name = repr(str(path))
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return StoreBusy(
            f"The store {name} is held by another process; nothing was changed. Wait, or find who "
            "holds it with 'fuser'."
        )
    if isinstance(error, apsw.FullError):
        return StoreFull(
            f"No space left while {doing} ({name}); nothing was changed. Free space, then run "
            "'penstock doctor'."
        )
    if isinstance(error, apsw.ReadOnlyError | apsw.PermissionsError | apsw.CantOpenError):
        return StoreReadOnly(
            f"Cannot write the store {name}: {error}. Give this user write access to the file "
            f"and its folder, or name another place with --store."
        )
    if isinstance(error, apsw.CorruptError | apsw.NotADBError | apsw.FormatError):
        return StoreCorrupt(
            f"The store {name} is not a sound database ({error}). Restore a backup, or name "
            f"another place with --store; nothing was changed."
        )
    if isinstance(error, apsw.IOError):
        return StoreFailed(
            f"I/O error while {doing} ({name}): {error}. The last change may or may not be "
            f"there; check the disk and start again."
        )
    return StoreError(f"SQLite refused while {doing} ({name}): {error}.")
