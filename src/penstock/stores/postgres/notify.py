# SPDX-License-Identifier: Apache-2.0
"""Listens for notifications that another process has made work.

The server tells by NOTIFY on a connection that does nothing but listen, the only one with a state
of its own. Behind a pooler nothing may arrive, so the store is asked now and then as well.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Callable

import psycopg

from penstock.clock import Clock
from penstock.errors import PenstockError
from penstock.ids import SystemIds
from penstock.stores.postgres.connection import (
    CALL_SECONDS,
    Address,
    Guard,
    PgConnection,
    closed_quietly,
    connect,
)
from penstock.stores.retry import RetryDelay

LISTEN_SECONDS = 5.0  # of silence, after which the server is asked whether it is there
CLOSE_SECONDS = 1.0  # close() waits at most this long for the thread


class Listener:
    """Owns the listening connection and its thread, from the first waiting to the end."""

    def __init__(
        self,
        address: Address,
        queries: dict[str, str],
        clock: Clock,
        guard: Guard,
        told: Callable[[], None],
    ) -> None:
        self._address = address
        self._queries = queries
        self._clock = clock
        self._guard = guard
        self._told = told
        self._closed = threading.Event()
        self.works = False  # notifications arrive, as far as known; set by the thread
        self._thread = threading.Thread(target=self._loop, name="penstock-listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Listen no more; a thread that is just connecting ends when it has, or cannot."""
        self._closed.set()
        self._guard.give_up()
        self._thread.join(CLOSE_SECONDS)

    def _loop(self) -> None:
        delay = RetryDelay(SystemIds().random)
        while not self._closed.is_set():
            connection = None
            try:
                connected = connect(self._address, self._queries)
                connection = connected.connection
                self._guard.watch_over(connection)
                self._ask(connection, "listen")
                self.works = connected.is_direct
                delay.reset()
                self._told()  # what came before we listened
                self._listen(connection)
            except (psycopg.Error, PenstockError, OSError):
                pass  # it is connected to again
            finally:
                self.works = False
                self._guard.watch_over(None)
                closed_quietly(connection)
            self._closed.wait(delay.next_seconds())

    def _listen(self, connection: PgConnection) -> None:
        """Ask libpq itself: what psycopg does about a notification holds up the loop we wake."""
        connection.add_notify_handler(lambda _: self._told())  # for what comes with a ping
        readable = select.poll()
        readable.register(connection.fileno(), select.POLLIN)
        while not self._closed.is_set():
            if not readable.poll(LISTEN_SECONDS * 1000):
                self._ask(connection, "ping")
                continue
            connection.pgconn.consume_input()
            if connection.pgconn.notifies() is not None:
                self._told()
                while connection.pgconn.notifies() is not None:
                    continue

    def _ask(self, connection: PgConnection, query: str) -> None:
        self._guard.until = self._clock.monotonic() + CALL_SECONDS
        connection.execute(self._queries[query])
        self._guard.until = None
