# SPDX-License-Identifier: Apache-2.0
"""Checks whether a store may be kept in a place, with this library, under this name.

Nothing here opens the database file: closing any descriptor of it would take away the locks that
SQLite holds on it for the other connections of this process.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import stat
import struct
import sys
from pathlib import Path

import apsw

from penstock.errors import StoreCorrupt, StoreError, StoreFull, StoreReadOnly, StoreUnsupported
from penstock.sentences import command

Version = tuple[int, ...]

SQLITE_MIN: Version = (3, 51, 3)  # the first without the WAL-reset bug that knows our statements
WITHDRAWN: tuple[Version, ...] = ((3, 52, 0),)
#: Older releases that have the correction as well: the first of their line.
BACK_PORTS: tuple[Version, ...] = ((3, 50, 7), (3, 44, 6))
WAL_SINCE: Version = (3, 7, 0)

NETWORK_FILE_SYSTEMS = (
    *(
        "nfs",
        "cifs",
        "smb",
        "9p",
        "ceph",
        "glusterfs",
        "lustre",
        "afs",
        "gpfs",
        "beegfs",
        "orangefs",
    ),
    *("ocfs2", "gfs2", "coda", "ncpfs", "davfs", "pvfs2"),
)
#: FUSE says nothing about where the data lie. These are known to be local; all others are refused.
LOCAL_FUSE = frozenset(
    {
        *("fuseblk", "fuse.ntfs-3g", "fuse.ntfs", "fuse.exfat", "fuse.fuse2fs", "fuse.ext4"),
        *("fuse.fuse-overlayfs", "fuse.bindfs", "fuse.gocryptfs", "fuse.encfs", "fuse.cryfs"),
    }
)
#: Known to keep shared memory maps coherent; others are asked by a small trial.
TRUSTED_FILE_SYSTEMS = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "tmpfs", "zfs", "f2fs", "bcachefs", ""}
)

WAL_INDEX_BYTES_MIN = 32 * 1024  # SQLite maps it in parts of this size
_WAL_INDEX_HEADER = struct.Struct("=16xI76xI")  # frames in the log, and how many were moved
_OCTAL = re.compile(r"\\([0-7]{3})")


def sqlite_version() -> Version:
    return tuple(int(part) for part in apsw.sqlite_lib_version().split("."))


def has_wal_reset_bug(version: Version) -> bool:
    """Whether this SQLite can corrupt a database when a log is reset that another one copies."""
    if version in WITHDRAWN:
        return True
    corrected = any(version[:2] == first[:2] and version >= first for first in BACK_PORTS)
    return WAL_SINCE <= version < SQLITE_MIN and not corrected


def refuse_library(version: Version) -> None:
    """Refuse a SQLite that is unsafe or too old."""
    name = ".".join(str(part) for part in version)
    if has_wal_reset_bug(version):
        raise StoreUnsupported(
            f"SQLite {name} has the WAL-reset bug, which can corrupt a database that several "
            "connections write; install apsw >= 3.53, which brings a sound one."
        )
    if version < SQLITE_MIN:
        raise StoreUnsupported(
            f"SQLite {name} is too old for Penstock's statements; install apsw >= 3.53."
        )


def is_remote(kind: str) -> bool:
    """Whether this kind of file system is on another machine, or not known to be on this one."""
    return kind.startswith(NETWORK_FILE_SYSTEMS) or (
        kind.startswith("fuse") and kind not in LOCAL_FUSE
    )


def refuse_place(path: Path) -> None:
    """Refuse a place where SQLite's locks or shared memory cannot be trusted."""
    folder = next(parent for parent in path.parents if parent.exists())
    kind = file_system_of(folder)
    local = f"Name a local place with --store, or use PostgreSQL (store {str(path)!r})."
    if kind.startswith(NETWORK_FILE_SYSTEMS):
        raise StoreUnsupported(
            f"The store would be on a network file system ({kind}), where SQLite can lose data. "
            + local
        )
    if kind.startswith("fuse") and kind not in LOCAL_FUSE:
        raise StoreUnsupported(
            f"The store would be on a FUSE file system that is not known to be local ({kind}), "
            f"where SQLite can lose data. {local}"
        )
    if any(point == path for point, _ in _mounts()):
        raise StoreUnsupported(
            f"The store {str(path)!r} is a file that was mounted alone, so that its log would lie "
            "in another place. Mount its folder instead."
        )
    if kind not in TRUSTED_FILE_SYSTEMS and os.access(folder, os.W_OK):
        _try_shared_memory(path, folder, kind)


def _try_shared_memory(path: Path, folder: Path, kind: str) -> None:
    """SQLite's log needs shared maps: what one descriptor writes, another one must see."""
    trial = folder / f".penstock-trial-{os.getpid()}"
    message = (
        f"The file system of the store {str(path)!r} ({kind}) cannot share memory between "
        "processes, which SQLite's log needs. Name another place with --store."
    )
    try:
        one = os.open(trial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(one, mmap.PAGESIZE)
            two = os.open(trial, os.O_RDWR | os.O_CLOEXEC)
            try:
                with mmap.mmap(one, mmap.PAGESIZE) as written, mmap.mmap(two, 0) as seen:
                    written[:4] = b"seen"
                    if seen[:4] != b"seen":
                        raise StoreUnsupported(message)
            finally:
                os.close(two)
        finally:
            os.close(one)
            trial.unlink()
    except OSError as error:
        if error.errno in {errno.ENODEV, errno.EINVAL, errno.EOPNOTSUPP, errno.EACCES}:
            raise StoreUnsupported(message) from None
        raise as_file_error(error, path) from None


def file_system_of(folder: Path) -> str:
    """The kind of file system that holds a folder; empty where it cannot be told."""
    best, kind = -1, ""
    for mount_point, name in _mounts():
        inside = folder == mount_point or mount_point in folder.parents
        if inside and len(str(mount_point)) >= best:
            best, kind = len(str(mount_point)), name
    return kind


def _mounts() -> list[tuple[Path, str]]:
    table = Path("/proc/self/mountinfo")
    if sys.platform != "linux" or not table.exists():
        return []
    found = []
    for line in table.read_text().splitlines():
        left, _, right = line.partition(" - ")
        point = _OCTAL.sub(lambda code: chr(int(code.group(1), 8)), left.split(" ")[4])
        found.append((Path(point), right.split(" ")[0]))
    return found


def refuse_file(path: Path) -> None:
    """Refuse a file that cannot be a store, before SQLite touches it."""
    about = path.stat()
    name = repr(str(path))
    if not stat.S_ISREG(about.st_mode):
        raise StoreUnsupported(
            f"The store {name} is not a file. Name a file with --store, such as "
            f"{str(path / 'penstock.db')!r}."
        )
    if about.st_nlink > 1:
        raise StoreUnsupported(
            f"The store {name} has {about.st_nlink} names (hard links), each of which would get a "
            "log of its own. Remove the other names, or copy the file with "
            f"'{command('backup', 'FILE')}'."
        )
    if about.st_size == 0:
        raise StoreCorrupt(
            f"The store {name} is empty (0 bytes), so it was cut off or made by something else. "
            f"Restore a backup with '{command('restore', 'FILE')}', or remove it to begin anew."
        )
    _refuse_lost_log(path)


def refuse_open_to_all(path: Path) -> None:
    """Refuse a store that every user of the machine may change or replace, as ssh does keys."""
    for file in (path.parent, path):
        if not file.exists():
            continue
        mode = stat.S_IMODE(file.stat().st_mode)
        if mode & stat.S_IWOTH and not (file == path.parent and mode & stat.S_ISVTX):
            raise StoreUnsupported(
                f"Every user of this machine may change the store {str(path)!r}: {str(file)!r} has "
                f"mode {mode:04o}. Close it with 'chmod o-w {file}'."
            )


def refuse_planted(path: Path) -> None:
    """Refuse a log, its index, a journal or a lock file that another user has put beside a store.

    SQLite would take them for its own, and who owns a log reads and writes what it will hold.
    Members of a group share a store that its group may write.
    """
    for file in (beside(path, end) for end in ("-wal", "-shm", "-journal", "-turn")):
        try:
            found = file.lstat()
            store = path.stat() if path.exists() else None
        except FileNotFoundError:
            continue
        trusted = {0, os.geteuid()} | (set() if store is None else {store.st_uid})
        is_shared = store is not None and bool(store.st_mode & stat.S_IWGRP)
        if not stat.S_ISREG(found.st_mode):
            what = "is not a file"
        elif found.st_mode & stat.S_IWOTH:
            what = f"may be written by every user (mode {stat.S_IMODE(found.st_mode):04o})"
        elif found.st_uid not in trusted and not is_shared:
            what = f"belongs to another user (number {found.st_uid})"
        else:
            continue
        raise StoreUnsupported(
            f"{str(file)!r} {what}, and would be taken for a part of the store {str(path)!r}. "
            "Keep the store in a folder of your own, or remove that file if no run uses it."
        )


def _refuse_lost_log(path: Path) -> None:
    """After a crash the log is part of the store: without it the last changes are gone."""
    log, index = beside(path, "-wal"), beside(path, "-shm")
    if log.exists():
        return
    try:
        header = index.read_bytes()[: _WAL_INDEX_HEADER.size]
    except OSError:
        return  # there is none: the store was closed in good order
    if len(header) < _WAL_INDEX_HEADER.size:
        return
    frames, moved = _WAL_INDEX_HEADER.unpack(header)
    if moved < frames:
        raise StoreCorrupt(
            f"The log {str(log)!r} is missing though {frames - moved} of its pages were not yet "
            f"in the store. Put it back, restore a backup with '{command('restore', 'FILE')}', or "
            "remove "
            f"{str(index)!r} to go on without them."
        )


def refuse_unwritable(path: Path) -> None:
    """Refuse a store that this user may not write, naming what may not be written."""
    for file, role in (
        (path, "the file itself"),
        (path.parent, "its folder, which must hold its log"),
        (beside(path, "-wal"), "its log"),
        (beside(path, "-shm"), "the index of its log"),
        (beside(path, "-turn"), "its lock file"),
    ):
        if not file.exists() or os.access(file, os.W_OK, effective_ids=True):
            continue
        if not file.exists():  # whoever used the store has just closed it
            continue
        raise StoreReadOnly(
            f"Cannot write the store {str(path)!r}: {_obstacle(file)} {str(file)!r} ({role}). Give "
            "this user write access to it, or name another place with --store."
        )


def _obstacle(file: Path) -> str:
    if os.statvfs(file).f_flag & os.ST_RDONLY:
        return "the file system is read-only at"
    return f"user {os.geteuid()} has no permission to write"


def as_file_error(error: OSError, path: Path) -> StoreError:
    """What an error of the operating system means for a store."""
    name = repr(str(path))
    if error.errno in {errno.EACCES, errno.EPERM}:
        return StoreReadOnly(
            f"Cannot write the store {name}: {error.strerror} at {error.filename!r}. Give this "
            "user write access to the file and its folder, or name another place with --store."
        )
    if error.errno == errno.EROFS:
        return StoreReadOnly(
            f"Cannot write the store {name}: the file system is read-only. Name another place "
            "with --store."
        )
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return StoreFull(
            f"No space left while opening the store ({name}); nothing was changed. Free space, "
            f"then run '{command('doctor')}'."
        )
    return StoreError(
        f"Cannot open the store {name}: {error.strerror}. Name another place with --store."
    )


def has_log(path: Path) -> bool:
    """Whether there is a log that may hold something, or that somebody may be using.

    Whoever comes to a full disk leaves an empty log behind, and an index that is too short. Nobody
    can use that: any connection needs the first part of the index as a whole.
    """
    log, index = beside(path, "-wal"), beside(path, "-shm")
    return log.exists() and (size_of(log) > 0 or size_of(index) >= WAL_INDEX_BYTES_MIN)


def size_of(path: Path) -> int:
    """The bytes of a file that somebody else may remove at any moment; none if it is gone."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def beside(path: Path, suffix: str) -> Path:
    """A file that belongs to the database, such as its log."""
    return path.with_name(path.name + suffix)
