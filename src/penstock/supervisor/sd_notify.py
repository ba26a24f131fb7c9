# SPDX-License-Identifier: Apache-2.0
"""Tells systemd (sd_notify) and health probes whether a supervisor is ready and alive."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping

from penstock.clock import Clock
from penstock.supervisor.health_server import Health

WAIT_SECONDS = 1.0  # for a manager that has not read what it was told before
WATCHDOG_SHARE = 0.4  # of what systemd waits for a sign of life


class SdNotify:
    """Owns the socket to the service manager, if there is one."""

    def __init__(self, environ: Mapping[str, str], pid: int) -> None:
        self._address = _address(environ.get("NOTIFY_SOCKET", ""))
        self._every_seconds = _watchdog_seconds(environ, pid)
        self._next_monotonic = 0.0
        self._socket: socket.socket | None = None
        if self._address is not None:
            kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC
            self._socket = socket.socket(socket.AF_UNIX, kind)

    @classmethod
    def of_this_process(cls) -> SdNotify:
        """As the environment says; what we start is not the service, and is not told."""
        found = cls(os.environ, os.getpid())
        for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
            os.environ.pop(name, None)
        return found

    def ready(self, status: str) -> None:
        """Phase 2 has begun."""
        self._send(f"READY=1\nSTATUS={_line(status)}")

    def status(self, status: str) -> None:
        self._send(f"STATUS={_line(status)}")

    def stopping(self) -> None:
        self._send("STOPPING=1\nSTATUS=Stopping.")

    def alive(self, now: float) -> None:
        """Called a few times a second by whoever must not hang."""
        if self._every_seconds is not None and now >= self._next_monotonic:
            self._next_monotonic = now + self._every_seconds
            self._send("WATCHDOG=1", 0.0)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, text: str, wait_seconds: float = WAIT_SECONDS) -> None:
        if self._socket is not None and self._address is not None:
            self._socket.settimeout(wait_seconds)
            with contextlib.suppress(OSError):
                self._socket.sendto(text.encode(), self._address)


def _address(named: str) -> str | None:
    """A path, or (with an @) a name without a file; None: nobody wants to be told."""
    if named.startswith("@"):
        return "\0" + named[1:]
    return named if named.startswith("/") else None


def _watchdog_seconds(environ: Mapping[str, str], pid: int) -> float | None:
    """How often to give a sign of life; None if nobody waits for one of ours."""
    if environ.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None
    try:
        microseconds = int(environ.get("WATCHDOG_USEC", "0"))
    except ValueError:
        return None
    return microseconds / 1e6 * WATCHDOG_SHARE if microseconds > 0 else None


def _line(text: str) -> str:
    return " ".join(text.split())


class Announcer:
    """Passes on what a supervisor is about, to systemd and to health probes, if they listen."""

    def __init__(
        self, clock: Clock, notify: SdNotify | None = None, health: Health | None = None
    ) -> None:
        self._clock = clock
        self._notify = notify or SdNotify({}, 0)
        self._health = health or Health(clock)
        self._is_ready = False
        self._is_unreachable = False

    def turned(self) -> None:
        """The loop has come round."""
        self._notify.alive(self._clock.monotonic())
        self._health.turned()

    def begins(self, what: str) -> None:
        """Something goes on before the work, such as preflights."""
        self._notify.status(what)
        self._health.not_ready(what)

    def ready(self, status: str) -> None:
        """The work has begun."""
        self._is_ready = True
        self._notify.ready(status)
        self._health.ready()

    def store(self, *, unreachable: bool) -> None:
        """Whether the store can be reached; told at every look."""
        if unreachable == self._is_unreachable or not self._is_ready:
            return
        self._is_unreachable = unreachable
        if unreachable:
            self._health.not_ready("The store is unreachable.")
        else:
            self._health.ready()

    def stopping(self) -> None:
        """The end has begun; nothing makes it ready again."""
        self._is_ready = False
        self._notify.stopping()
        self._health.not_ready("The run is stopping.")
