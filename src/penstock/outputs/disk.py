# SPDX-License-Identifier: Apache-2.0
"""Which calls to the operating system do outputs consist of?

All of them are here, so that a test can record them, let them fail, or lose what was not synced.
Below the root every name is opened relative to its folder, and a link is refused, not followed.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import Final

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe does not block
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_FOLDER_SYNC: Final = frozenset({errno.EINVAL, errno.ENOTSUP})  # the file system has no such


class Disk:
    """The file system. Names are single components, but for that of the root."""

    def open_root(self, path: str) -> int:
        return os.open(path, _FOLDER)

    def open_folder(self, folder: int, name: str) -> int:
        return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)

    def open_file(self, folder: int, name: str) -> int:
        return os.open(name, _READ, dir_fd=folder)

    def create(self, folder: int, name: str) -> int:
        """A new file; FileExistsError if there is anything of that name."""
        return os.open(name, _CREATE, 0o666, dir_fd=folder)

    def write(self, file: int, data: memoryview) -> None:
        while data:
            data = data[os.write(file, data) :]

    def sync(self, file: int) -> None:
        os.fsync(file)

    def sync_folder(self, folder: int) -> None:
        try:
            os.fsync(folder)
        except OSError as error:
            if error.errno not in _NO_FOLDER_SYNC:
                raise

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def make_folder(self, folder: int, name: str) -> bool:
        """Make a folder in a folder; False if there is anything of that name."""
        try:
            os.mkdir(name, dir_fd=folder)
        except FileExistsError:
            return False
        return True

    def rename(self, folder: int, name: str, into: int, new: str) -> None:
        os.rename(name, new, src_dir_fd=folder, dst_dir_fd=into)

    def link(self, folder: int, name: str, new: str) -> None:
        """A second name of a file; FileExistsError if it is taken."""
        os.link(name, new, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)

    def unlink(self, folder: int, name: str) -> None:
        os.unlink(name, dir_fd=folder)

    def remove_folder(self, folder: int, name: str) -> None:
        os.rmdir(name, dir_fd=folder)

    @contextlib.contextmanager
    def folder(self, folder: int, name: str) -> Iterator[int]:
        """A folder in a folder, for as long as the block."""
        opened = self.open_folder(folder, name)
        try:
            yield opened
        finally:
            self.close(opened)

    @contextlib.contextmanager
    def file(self, folder: int, name: str) -> Iterator[int]:
        """A file in a folder, to be read."""
        opened = self.open_file(folder, name)
        try:
            yield opened
        finally:
            self.close(opened)


def read_all(file: int, size_max: int) -> bytes:
    """What a file has, up to a size."""
    parts, left = [], size_max
    while left > 0 and (part := os.read(file, min(left, 1 << 24))):
        parts.append(part)
        left -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def reason(error: OSError) -> str:
    """Why the system refused, in its words."""
    return os.strerror(error.errno).lower() if error.errno else str(error)
