# SPDX-License-Identifier: Apache-2.0
"""Watches the write-ahead log, so that an idle worker learns that another process has written.

The kernel tells when the write-ahead log is written to; only then is it worth asking SQLite's
change counter. That is a hint, not the truth: the log is written before the commit is visible,
and not every file system tells. So the counter is asked a few times after a hint, and slowly
without one.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
from collections.abc import Callable
from pathlib import Path

_IN_MODIFY = 0x2
_IN_NONBLOCK = os.O_NONBLOCK
_IN_CLOEXEC = os.O_CLOEXEC
_BUFFER_BYTES = 4096


class WalWatch:
    """Watches the write-ahead log of one database on one loop, from the first waiting to the end.

    It is kept open, since the kernel takes tens of milliseconds to close such a descriptor.
    """

    def __init__(
        self, database: Path, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]
    ) -> None:
        self.loop = loop
        self._wake = wake
        self._fd = _watch(database.with_name(database.name + "-wal"))
        if self._fd is not None:
            try:
                loop.add_reader(self._fd, self._told)
            except (NotImplementedError, OSError):
                os.close(self._fd)
                self._fd = None

    @property
    def works(self) -> bool:
        """False: nobody will tell; the counter must be asked often."""
        return self._fd is not None

    def _told(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._fd is not None and len(os.read(self._fd, _BUFFER_BYTES)) == _BUFFER_BYTES:
                pass
        self._wake()

    def close(self) -> None:
        """Let go of the loop, which may have ended before."""
        if self._fd is not None:
            with contextlib.suppress(RuntimeError):
                self.loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None


def _watch(path: Path) -> int | None:
    """A file descriptor that becomes readable when the file is written to; None where none can."""
    try:
        libc = ctypes.CDLL(None)
        fd = int(libc.inotify_init1(_IN_NONBLOCK | _IN_CLOEXEC))
    except (OSError, AttributeError):
        return None
    if fd < 0:
        return None
    if libc.inotify_add_watch(fd, os.fsencode(path), _IN_MODIFY) < 0:
        os.close(fd)
        return None
    return fd
