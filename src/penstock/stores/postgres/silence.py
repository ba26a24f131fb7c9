# SPDX-License-Identifier: Apache-2.0
"""How long may the server be silent? A half-open connection never says that it is one."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import psycopg

from penstock.clock import Clock

CALL_SECONDS = 10.0  # a statement that takes longer is given up with its connection
WATCH_SECONDS = 0.5  # how often the watch looks

AnyConnection = psycopg.Connection[Any]


def _break(connection: AnyConnection) -> None:
    """Let whoever waits for this connection wake with an error."""
    if connection.closed:
        return
    with contextlib.suppress(OSError, psycopg.Error):
        copy = socket.socket(fileno=os.dup(connection.fileno()))
        with copy:
            copy.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def given_up_after(connection: AnyConnection, seconds: float) -> Iterator[None]:
    """For the first question, when nobody watches over the connection so far."""
    timer = threading.Timer(seconds, _break, (connection,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


class Guard:
    """Until when a connection's present call must be answered. Armed and disarmed by its user."""

    def __init__(self) -> None:
        self.until: float | None = None  # monotonic; None: nothing is being asked
        self._connection: AnyConnection | None = None
        self._lock = threading.Lock()  # a connection is not broken while it is being exchanged

    def watch_over(self, connection: AnyConnection | None) -> None:
        """From now on this one; None before it is closed: its descriptor may become another's."""
        with self._lock:
            self._connection = connection
            self.until = None

    def give_up(self) -> None:
        """Break the connection, so that whoever waits for it wakes with an error."""
        with self._lock:
            self._give_up()

    def give_up_if_late(self, now: float) -> None:
        """The same, if the call should have been answered by now."""
        with self._lock:
            if self.until is not None and now > self.until:
                self._give_up()

    def _give_up(self) -> None:
        self.until = None
        if self._connection is not None:
            _break(self._connection)


class Watch:
    """A thread that breaks connections whose call takes too long."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._guards: list[Guard] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="penstock-watch", daemon=True)
        self._thread.start()

    def guard(self) -> Guard:
        guard = Guard()
        self._guards.append(guard)
        return guard

    def close(self) -> None:
        self._ended.set()

    def _loop(self) -> None:
        while not self._ended.wait(WATCH_SECONDS):
            now = self._clock.monotonic()
            for guard in self._guards:
                guard.give_up_if_late(now)
