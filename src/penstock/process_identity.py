# SPDX-License-Identifier: Apache-2.0
"""Identity of a process beyond its pid, and whether that process is certainly gone.

A pid alone says little: it is reused, and other containers and machines have the same ones. So the
identity has the boot id, the pid namespace and the start time of the process. From another machine
or container, or where the system tells none of this, nothing is known. Beside it, how a process
ended, and what all code in one shares.
"""

from __future__ import annotations

import os
import signal
from functools import lru_cache
from pathlib import Path

UNKNOWN = ""  # the mark of a process on a system that does not tell
_DEAD = ("Z", "X", "x")  # states of a process that only its parent still asks about
_STATE, _PARENT, _BEGAN = 0, 1, 19  # fields of /proc/PID/stat, after the name


def own_identity() -> str:
    """The mark of this process."""
    return identity(os.getpid())


def identity(pid: int) -> str:
    """The mark of a process that is there."""
    try:
        return f"{_place()} {pid} {_fields(pid)[_BEGAN]}" if _tells_of_us() else UNKNOWN
    except (OSError, IndexError):
        return UNKNOWN


def is_gone(mark: str) -> bool:
    """Whether the process has certainly ended."""
    try:
        place, number, began = mark.rsplit(" ", 2)
        pid = int(number)
        if place != _place() or pid <= 0 or not _tells_of_us():
            return False
    except (OSError, ValueError):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # somebody else's: it is there
        pass
    try:
        fields = _fields(pid)
        return fields[_STATE] in _DEAD or fields[_BEGAN] != began
    except (OSError, IndexError):  # it may be hidden from us
        return False


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped a process, and none has continued it yet."""
    try:
        return _fields(pid)[_STATE] == "T"
    except (OSError, IndexError):
        return False


def has_ended(pid: int) -> bool:
    """Whether a process is not there, or nobody has asked yet how it ended."""
    try:
        return _fields(pid)[_STATE] in _DEAD
    except (OSError, IndexError):
        return True


def parent_of(pid: int) -> int:
    """The parent of a process that is there; OSError if it is not."""
    return int(_fields(pid)[_PARENT])


@lru_cache(1)
def _place() -> str:
    """Where a number means one process: this boot, this namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/pid').readlink()}"


def _tells_of_us() -> bool:
    """Whether the pids in /proc are ours; in a namespace without its own /proc they are not."""
    return str(Path("/proc/self").readlink()) == str(os.getpid())


def _fields(pid: int) -> list[str]:
    """What the system says of a process, after its name, which may have anything in it."""
    return (
        Path(f"/proc/{pid}/stat").read_bytes().decode(errors="replace").rpartition(")")[2].split()
    )


def describe_exit(code: int | None) -> str:
    """What an exit code says, for people."""
    if code is None:
        return "it still runs"
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def process_state() -> dict[str, object]:
    """What all bodies of a process share."""
    return {
        "working folder": _folder(),
        "file mode mask": _mask(),
        "signal handlers": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
    }


def _folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None  # it was removed


def _mask() -> str | None:
    """The umask; to ask the process itself would change it for a moment."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as lines:
            return next((line for line in lines if line.startswith("Umask")), None)
    except OSError:
        return None
