# SPDX-License-Identifier: Apache-2.0
"""How does a test let the file system under SQLite fail at a chosen moment?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import apsw


class Disk:
    """What the file system under SQLite does: counts, and fails when it is told to."""

    def __init__(self) -> None:
        self.syncs = 0
        self.fail_sync_at = 0  # the number of the sync that fails
        self.cannot_grow: tuple[str, ...] = ()  # names that end so; an empty one is all of them


class FaultyFile(apsw.VFSFile):
    def __init__(self, disk: Disk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        super().__init__("unix", name, flags)
        self.disk = disk
        self.name = name.filename() if isinstance(name, apsw.URIFilename) else str(name)

    def xSync(self, flags: int) -> None:  # noqa: N802 (SQLite's name)
        self.disk.syncs += 1
        if self.disk.syncs == self.disk.fail_sync_at:
            error = apsw.IOError("IOError: disk I/O error")
            error.extendedresult = apsw.SQLITE_IOERR_FSYNC  # type: ignore[attr-defined]
            raise error
        super().xSync(flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 (SQLite's name)
        if self.name.endswith(self.disk.cannot_grow) and offset + len(data) > self.xFileSize():
            raise apsw.FullError("FullError: database or disk is full")
        super().xWrite(data, offset)


class FaultyDisk(apsw.VFS):
    def __init__(self, disk: Disk) -> None:
        super().__init__("faulty", base="unix")
        self.disk = disk

    def xOpen(  # noqa: N802 (SQLite's name)
        self, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> FaultyFile:
        return FaultyFile(self.disk, name, flags)


@contextmanager
def faulty_disk() -> Iterator[Disk]:
    """Every connection that is opened meanwhile lies on this disk."""
    disk = Disk()
    vfs = FaultyDisk(disk)
    former = apsw.vfs_names()[0]
    apsw.set_default_vfs("faulty")
    try:
        yield disk
    finally:
        apsw.set_default_vfs(former)
        vfs.unregister()
