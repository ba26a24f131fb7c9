# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of the demo as child processes, and kills them at its end.

`python -m penstock.cli.demo.processes PARENT ARGUMENTS` is `penstock ARGUMENTS` that does not
outlive the demo, whichever way that ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from penstock.clock import Clock, blocking_sleep
from penstock.errors import PenstockError
from penstock.worker.signals import end_with_parent

GONE_SECONDS = 10.0  # that a killed process may take to be gone
POLL_SECONDS = 0.005
LINES_SHOWN = 5  # of what a failed command wrote last
LOG = "commands.log"
PROC = Path("/proc")


class Shell:
    """Owns the commands that run in the demo's folder, one after the other."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._environment = _environment()
        self._running: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str) -> None:
        """Begin `penstock ARGUMENTS`, out of reach of the terminal's Ctrl-C."""
        command = [sys.executable, "-m", __name__, str(os.getpid()), *arguments]
        with (self._folder / LOG).open("ab") as log:
            self._running = subprocess.Popen(
                command,
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def has_ended(self) -> bool:
        """Whether the command is over; raises if it has failed."""
        code = None if self._running is None else self._running.poll()
        if code is None:
            return self._running is None
        self._running = None
        if code != 0:
            last = (self._folder / LOG).read_text(errors="replace").splitlines()[-LINES_SHOWN:]
            raise PenstockError(f"The demo failed (exit code {code}): {' '.join(last)}")
        return True

    def kill_worker(self, pid: int) -> None:
        """`kill -9` a worker; its supervisor is stopped until `resume`.

        So nothing changes while the demo reads what the dead worker has left behind.
        """
        self._signal(signal.SIGSTOP)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self._await(lambda: _is_gone(pid))

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """Kill whatever still runs; the supervisor first, so that it starts nobody."""
        running, self._running = self._running, None
        if running is None:
            return
        running.kill()
        running.wait()
        workers = _session(running.pid)
        for pid in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._await(lambda: all(map(_is_gone, workers)))

    def _await(self, true: Callable[[], bool]) -> None:
        until = self._clock.monotonic() + GONE_SECONDS
        while not true() and self._clock.monotonic() < until:
            blocking_sleep(POLL_SECONDS)

    def _signal(self, number: signal.Signals) -> None:
        if self._running is not None:
            self._running.send_signal(number)


def _environment() -> dict[str, str]:
    """The user's, without settings for other apps, and without a proxy before loopback."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.upper().startswith("PENSTOCK_") and not name.lower().endswith("_proxy")
    }


def _session(leader: int) -> list[int]:
    """The processes of a session, where /proc tells; elsewhere workers end by themselves."""
    found = []
    for entry in PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.getsid(int(entry.name)) == leader:
                found.append(int(entry.name))
    return found


def _is_gone(pid: int) -> bool:
    """Whether it is dead, though perhaps not reaped by its parent."""
    try:
        os.kill(pid, 0)
        text = (PROC / str(pid) / "stat").read_text() if PROC.exists() else ""
    except OSError:
        return True
    return text.rpartition(")")[2].strip()[:1] in ("Z", "X")


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    from penstock.cli.main import run

    run(sys.argv[2:])
