# SPDX-License-Identifier: Apache-2.0
"""What would a power cut leave of what was written?

`RecordingDisk` writes down what is done to the file system, and `replayed` goes through it with two
copies of everything: what a program sees, and what is certainly on the disk. An entry of a folder
is certain once the folder was synced, content once the file was.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.outputs.paths import Disk

Operation = tuple[str, ...]


class RecordingDisk(Disk):
    """The file system, and what was asked of it; some calls may be forgotten."""

    def __init__(self, forgets: str = "") -> None:
        self.log: list[Operation] = []
        self._forgets = forgets
        self._lock = threading.Lock()

    def _note(self, *operation: str) -> None:
        with self._lock:
            self.log.append(operation)

    def create(self, folder: int, name: str) -> int:
        file = super().create(folder, name)
        self._note("create", _path(file))
        return file

    def write(self, file: int, data: memoryview) -> None:
        super().write(file, data)
        self._note("write", _path(file))

    def sync(self, file: int) -> None:
        if self._forgets != "sync":
            super().sync(file)
            self._note("sync", _path(file))

    def sync_folder(self, folder: int) -> None:
        path = _path(folder)
        if self._forgets not in ("sync_folder", os.path.basename(path)):
            super().sync_folder(folder)
            self._note("sync_folder", path)

    def make_folder(self, folder: int, name: str) -> bool:
        made = super().make_folder(folder, name)
        if made:
            self._note("make_folder", f"{_path(folder)}/{name}")
        return made

    def rename(self, folder: int, name: str, into: int, new: str) -> None:
        super().rename(folder, name, into, new)
        self._note("rename", f"{_path(folder)}/{name}", f"{_path(into)}/{new}")

    def link(self, folder: int, name: str, new: str) -> None:
        super().link(folder, name, new)
        self._note("link", f"{_path(folder)}/{name}", f"{_path(folder)}/{new}")

    def unlink(self, folder: int, name: str) -> None:
        super().unlink(folder, name)
        self._note("unlink", f"{_path(folder)}/{name}")


def _path(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")


@dataclass(slots=True)
class Inode:
    """A file or a folder."""

    folder: bool = False
    written: bool = False  # has content that a program sees
    certain: bool = False  # and all of it is on the disk


@dataclass(slots=True)
class World:
    """The names that a program sees, and those that are certain to survive."""

    seen: dict[str, Inode] = field(default_factory=dict)
    certain: dict[str, Inode] = field(default_factory=dict)

    def survives(self, path: str, top: str) -> bool:
        """Is a file, with all folders between it and the top, certain, and its content too?"""
        inode = self.certain.get(path)
        if inode is None or not inode.certain:
            return False
        above = os.path.dirname(path)
        while above != top:
            if above not in self.certain:
                return False
            above = os.path.dirname(above)
        return True

    def apply(self, operation: Operation) -> None:
        verb, path, *more = operation
        seen = self.seen
        if verb == "create":
            seen[path] = Inode()
        elif verb == "write":
            seen[path].written, seen[path].certain = True, False
        elif verb == "sync":
            seen[path].certain = seen[path].written
        elif verb == "make_folder":
            seen[path] = Inode(folder=True)
        elif verb == "rename":
            seen[more[0]] = seen.pop(path)
        elif verb == "link":
            seen[more[0]] = seen[path]
        elif verb == "unlink":
            del seen[path]
        elif verb == "sync_folder":
            for name in {*seen, *self.certain}:
                if os.path.dirname(name) == path:
                    if name in seen:
                        self.certain[name] = seen[name]
                    else:
                        del self.certain[name]


def replayed(log: list[Operation]) -> Iterator[World]:
    """The world after each operation."""
    world = World()
    for operation in log:
        world.apply(operation)
        yield world
