# SPDX-License-Identifier: Apache-2.0
"""Names the processes that hold locks of the file.

The kernel's table of locks is read, never asked through a descriptor: closing one would take away
this process's own locks. Where the table is missing, or the holder is on the other side of a
container, nobody is named.
"""

from __future__ import annotations

import os
from pathlib import Path

from penstock.stores.sqlite.location_check import beside

_TABLE = Path("/proc/locks")
_WRITE_BYTES = range(120, 121)  # of the log's index: who writes
_READ_BYTES = range(123, 128)  # of the log's index: who reads an old state
_FILE_BYTES = range(0x40000000, 0x40000000 + 512)  # of the database, when it is held as a whole
_NAMED_MAX = 3


def writers(path: Path) -> list[int]:
    """Processes that hold the write lock, or the database as a whole."""
    whole = _holders(path, _FILE_BYTES, "WRITE")
    return whole or _holders(beside(path, "-shm"), _WRITE_BYTES, "WRITE")


def readers(path: Path) -> list[int]:
    """Other processes that read at this moment, so that the log cannot be moved past them."""
    return _holders(beside(path, "-shm"), _READ_BYTES, "READ")


def write_lock_holders(path: Path) -> list[int]:
    """Processes that hold the lock file of the writers."""
    return _holders(beside(path, "-turn"), None, "WRITE")


def named(pids: list[int]) -> str:
    """Processes as people know them; 'another process' if they are not known."""
    if not pids:
        return "another process"
    shown = ", ".join(f"{pid} ({_command(pid)})" for pid in pids[:_NAMED_MAX])
    more = f" and {len(pids) - _NAMED_MAX} more" if len(pids) > _NAMED_MAX else ""
    return f"process {shown}{more}"


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "unknown"


def _holders(file: Path, wanted: range | None, mode: str) -> list[int]:
    """Other processes with a lock of this mode; on any of these bytes, or by flock."""
    try:
        about = file.stat()
        lines = _TABLE.read_text().splitlines()
    except OSError:
        return []
    name = f"{os.major(about.st_dev):02x}:{os.minor(about.st_dev):02x}:{about.st_ino}"
    found: set[int] = set()
    for line in lines:
        fields = line.split()
        if len(fields) != 8 or fields[5] != name or fields[3] != mode:
            continue  # somebody else's file, or one who only waits
        if fields[1] != ("FLOCK" if wanted is None else "POSIX"):
            continue
        first = int(fields[6])
        last = first if fields[7] == "EOF" else int(fields[7])
        if wanted is None or (first < wanted.stop and last >= wanted.start):
            found.add(int(fields[4]))
    return sorted(found - {os.getpid(), 0})
