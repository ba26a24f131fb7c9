# SPDX-License-Identifier: Apache-2.0
"""When did each job begin, seen from another process?

One double per job in a file that both map into memory. CLOCK_MONOTONIC is the same clock in every
process of a machine.
"""

from __future__ import annotations

import mmap
import struct
import time
from pathlib import Path

_DOUBLE = struct.Struct("d")


class Marks:
    """The file of marks; 0 stands for a job that has not begun."""

    def __init__(self, path: Path | str) -> None:
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._first_missing = 0

    @classmethod
    def create(cls, path: Path | str, count: int) -> Marks:
        """A new file for jobs 0 to `count` - 1."""
        Path(path).write_bytes(bytes(_DOUBLE.size * count))
        return cls(path)

    def mark(self, number: int) -> None:
        """Job `number` begins now."""
        _DOUBLE.pack_into(self._map, _DOUBLE.size * number, time.monotonic())

    def times(self) -> list[float]:
        """When each job began."""
        return [value for (value,) in _DOUBLE.iter_unpack(self._map[:])]

    def all_begun(self) -> bool:
        """Has every job begun? Asks only for those that had not at the last call."""
        total = len(self._map) // _DOUBLE.size
        while self._first_missing < total:
            if not _DOUBLE.unpack_from(self._map, _DOUBLE.size * self._first_missing)[0]:
                return False
            self._first_missing += 1
        return True

    def close(self) -> None:
        self._map.close()
