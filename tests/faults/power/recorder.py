# SPDX-License-Identifier: Apache-2.0
"""How does a process write down what it does to its disk?

SQLite's file operations come through a VFS that notes them and hands them on. What our own code
does to files goes through a few functions of `os`, which are noted as well. One thing happens
below the VFS: the first sync of a journal that was opened to be made also syncs its folder. A
test compares the whole record with what the kernel saw.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw

from tests.faults.power.log import (
    Create,
    Delete,
    Event,
    Log,
    Rename,
    Sync,
    SyncFolder,
    Truncate,
    Write,
)

FOLDER = 0  # the file number of every folder
_SYNCS_ITS_FOLDER = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL


class Recorder:
    """Owns the log of one process and the numbers of its files. Notes only what is below `root`."""

    def __init__(self, root: Path, database: str) -> None:
        self.root = root
        self.log = Log(database)
        self._lock = threading.Lock()
        self._files: dict[str, int] = {}
        for path in sorted(root.rglob("*")):
            name = str(path.relative_to(root))
            if path.is_file() and not name.endswith("-shm"):
                self._files[name] = len(self._files) + 1
                self.log.base[name] = path.read_bytes()
        self._next_file = len(self._files) + 1

    def name_of(self, path: object) -> str | None:
        """The path below the root; None if it is not our business, as the shared memory is."""
        absolute = os.path.abspath(os.fspath(path))  # type: ignore[call-overload]
        inside = absolute.startswith(f"{self.root}{os.sep}") and not absolute.endswith("-shm")
        return os.path.relpath(absolute, self.root) if inside else None

    def note(self, event: Event) -> None:
        with self._lock:
            self.log.events.append(event)

    def position(self) -> int:
        return len(self.log.events)

    def file(self, name: str, *, make: bool) -> int:
        """The number of the file of this name; noted as new if it was not there."""
        with self._lock:
            if make and name not in self._files:
                self._files[name] = self._next_file
                self._next_file += 1
                self.log.events.append(Create(name, self._files[name]))
            return self._files[name]

    def made_folder(self, name: str) -> None:
        self.note(Create(name, FOLDER))

    def deleted(self, name: str) -> None:
        with self._lock:
            del self._files[name]
            self.log.events.append(Delete(name))

    def renamed(self, source: str, target: str) -> None:
        with self._lock:
            self._files[target] = self._files.pop(source)
            self.log.events.append(Rename(source, target))

    def synced_folder(self, name: str, covers: int) -> None:
        self.note(SyncFolder("." if name == "" else name, covers))


class RecordedFile(apsw.VFSFile):
    """A file of SQLite. Does what it shall first, then notes that it was done."""

    def __init__(
        self, recorder: Recorder, base: str, filename: Any, flags: list[int], name: str
    ) -> None:
        self._recorder = recorder
        self._name = name
        made = bool(flags[0] & apsw.SQLITE_OPEN_CREATE)
        self._folder_due = made and bool(flags[0] & _SYNCS_ITS_FOLDER)
        super().__init__(base, filename, flags)
        self._file = recorder.file(name, make=made)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 (SQLite's names)
        super().xWrite(data, offset)
        self._recorder.note(Write(self._file, offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        super().xTruncate(newsize)
        self._recorder.note(Truncate(self._file, newsize))

    def xSync(self, flags: int) -> None:  # noqa: N802
        covers = self._recorder.position()
        super().xSync(flags)
        self._recorder.note(Sync(self._file, covers))
        if self._folder_due:
            self._folder_due = False
            self._recorder.synced_folder(os.path.dirname(self._name), covers)


class RecordingVFS(apsw.VFS):
    """The default VFS of the recording process."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._base = apsw.vfs_names()[0]
        super().__init__("recording", self._base, makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        inside = None if path is None else self._recorder.name_of(path)
        if inside is None:
            return apsw.VFSFile(self._base, name, flags)
        return RecordedFile(self._recorder, self._base, name, flags, inside)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        covers = self._recorder.position()
        super().xDelete(filename, syncdir)
        name = self._recorder.name_of(filename)
        if name is not None:
            self._recorder.deleted(name)
            if syncdir:
                self._recorder.synced_folder(os.path.dirname(name), covers + 1)


def record_own_calls(recorder: Recorder) -> None:
    """Note what Python code of this process does to files: for the rest of its life."""
    really_open, really_close, really_fsync = os.open, os.close, os.fsync
    really_mkdir, really_rename, really_unlink = os.mkdir, os.rename, os.unlink
    open_names: dict[int, str] = {}

    def noted_open(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        descriptor = really_open(path, flags, *rest, **named)
        name = "." if Path(path) == recorder.root else recorder.name_of(path)
        if name is not None:
            open_names[descriptor] = name
            if flags & os.O_CREAT:
                recorder.file(name, make=True)
        return descriptor

    def noted_close(descriptor: int) -> None:
        open_names.pop(descriptor, None)
        really_close(descriptor)

    def noted_fsync(descriptor: int) -> None:
        covers = recorder.position()
        really_fsync(descriptor)
        name = open_names.get(descriptor)
        if name is None:
            return
        if (recorder.root / name).is_dir():
            recorder.synced_folder(name, covers)
        else:
            recorder.note(Sync(recorder.file(name, make=False), covers))

    def noted_mkdir(path: Any, *rest: Any, **named: Any) -> None:
        really_mkdir(path, *rest, **named)
        if (name := recorder.name_of(path)) is not None:
            recorder.made_folder(name)

    def noted_rename(source: Any, target: Any, **named: Any) -> None:
        really_rename(source, target, **named)
        names = recorder.name_of(source), recorder.name_of(target)
        if names[0] is not None and names[1] is not None:
            recorder.renamed(names[0], names[1])

    def noted_unlink(path: Any, **named: Any) -> None:
        really_unlink(path, **named)
        if (name := recorder.name_of(path)) is not None:
            recorder.deleted(name)

    replacements: dict[str, Callable[..., Any]] = {
        "open": noted_open,
        "close": noted_close,
        "fsync": noted_fsync,
        "mkdir": noted_mkdir,
        "rename": noted_rename,
        "replace": noted_rename,  # the same on a POSIX system
        "unlink": noted_unlink,
    }
    for name, function in replacements.items():
        setattr(os, name, function)
