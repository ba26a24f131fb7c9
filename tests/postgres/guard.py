# SPDX-License-Identifier: Apache-2.0
"""Who ends a throwaway server when the process that wanted it was killed?

This file, run as a process of its own, `guard.py OWNER FOLDER`: when the owner is gone, or at
SIGTERM, the servers (PostgreSQL, nginx) whose data are in the folder end, and the folder goes.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

PATIENCE_SECONDS = 20.0
PREFIX = "penstock-pg-"
NOTES = ("*/postmaster.pid", "*/*/postmaster.pid", "*/nginx.pid")  # where servers note their number
DISK = Path("/tmp")
_MEMORY = Path("/dev/shm")
_PLENTY_BYTES = 2 << 30


def scratch() -> Path:
    """Memory if there is plenty: of a thousand new files, a disk makes ten times the work."""
    with contextlib.suppress(OSError):
        room = os.statvfs(_MEMORY)
        if room.f_bavail * room.f_frsize >= _PLENTY_BYTES and os.access(_MEMORY, os.W_OK):
            return _MEMORY
    return DISK


class GuardedFolder:
    """A folder for servers. It and they go with `owner`, however that ends.

    Args:
        path: where it is; None is a new name.
        owner: a process; None is this one.
        on_disk: whether what is synchronised has to be on a disk.
    """

    def __init__(
        self, path: Path | None = None, owner: int | None = None, *, on_disk: bool = False
    ) -> None:
        place = DISK if on_disk else scratch()
        self.path = path or Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
        self.path.mkdir(exist_ok=True)
        self.path.chmod(0o755)
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(owner or os.getpid()), str(self.path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        (self.path / "guard.pid").write_text(str(self._guard.pid))

    def leave(self) -> None:
        """Leave it to its guard and its owner."""
        self._guard.returncode = 0  # so that nobody misses our wait for it

    def close(self) -> None:
        """Clean up here, so that nobody waits for the guard's answer; it steps in if we die."""
        clean(self.path)
        self._guard.kill()
        self._guard.wait()


def clean(folder: Path) -> None:
    """End the servers of a folder at once, and remove it."""
    for note in [note for name in NOTES for note in folder.glob(name)]:
        with contextlib.suppress(OSError, ValueError, IndexError):
            _end(int(note.read_text().split()[0]), note.parent)
    shutil.rmtree(folder, ignore_errors=True)


def _end(pid: int, data: Path) -> None:
    """Quit a server, unless its number is another process's by now."""
    handle = os.pidfd_open(pid)
    try:
        if Path(f"/proc/{pid}/cwd").resolve() != data.resolve():
            return
        for number in (signal.SIGQUIT, signal.SIGKILL):
            signal.pidfd_send_signal(handle, number)
            if select.select([handle], [], [], PATIENCE_SECONDS)[0]:
                return
    finally:
        os.close(handle)


def watch(owner: int, folder: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # whatever the owner had blocked
    # A handler alone would miss a signal that comes just before `select` blocks.
    told, tell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        with contextlib.suppress(ProcessLookupError):
            select.select([os.pidfd_open(owner), told], [], [])
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        clean(folder)


if __name__ == "__main__":
    watch(int(sys.argv[1]), Path(sys.argv[2]))
