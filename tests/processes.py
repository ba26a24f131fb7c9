# SPDX-License-Identifier: Apache-2.0
"""How does a test start real processes, look at them, and end them?"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from penstock.process_identity import own_identity
from penstock.worker.process_guard import GUARD_NAME

REPOSITORY = Path(__file__).resolve().parents[1]
NURSERY_NAME = b"nursery"  # of what tests.forked puts beside a supervisor

_PLACE, _PID, _BEGAN = own_identity().rsplit(" ", 2)
MARK_OF_NOBODY = f"{_PLACE} {_PID} {int(_BEGAN) - 1}"  # this number was another process's


def environment_of_tests(**more: str) -> dict[str, str]:
    """The environment of a process that finds our sources and tests, wherever it starts."""
    path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "src")])
    return {**os.environ, "PYTHONPATH": path, **more}


def kill_run(process: subprocess.Popen[Any]) -> None:
    """Kill a supervisor that still runs and its workers as one, and close its pipes."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGSTOP)  # or it might reap a worker before its own end
        for pid in [*children_of(process.pid), process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def children_of(pid: int) -> list[int]:
    """The children that a process has started, but for a nursery of ours; for a guard, its own."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    found = []
    for child in map(int, text.split()):
        name = _name(child)
        if name == GUARD_NAME.encode():
            found += children_of(child)[:1]  # programs that it has adopted come later
        elif name != NURSERY_NAME:
            found.append(child)
    return found


def _name(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/comm").read_bytes().strip()
    except OSError:
        return b""


def is_alive(pid: int) -> bool:
    try:
        return _fields(pid)[0] != "Z"
    except OSError:
        return False


def parent_of(pid: int) -> int:
    return int(_fields(pid)[1])


def session_of(leader: int) -> list[int]:
    """The processes of a session."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, IndexError, ValueError):
            if int(_fields(int(entry.name))[3]) == leader:
                found.append(int(entry.name))
    return found


def freeze(pids: list[int], database: Path) -> None:
    """Stop processes, but not while one of them has the turn to write: others could not go on."""
    with database.with_name(f"{database.name}-turn").open() as turn:
        while True:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            while any(_fields(pid)[0] not in "TZ" for pid in pids):
                time.sleep(0.001)
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
            time.sleep(0.005)


def cpu_seconds(pid: int) -> float:
    user, system = _fields(pid)[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _fields(pid: int) -> list[str]:
    """Of /proc/PID/stat, from the state on: the name before it may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def mark_of_the_dead() -> str:
    """The mark of a process of this machine that has ended."""
    place, _, began = own_identity().rsplit(" ", 2)
    with subprocess.Popen(["true"]) as process:
        pid = process.pid
    return f"{place} {pid} {began}"
