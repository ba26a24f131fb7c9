# SPDX-License-Identifier: Apache-2.0
"""How does an idle worker learn that another process has made work?

The server tells by NOTIFY on a connection that does nothing but listen, the only one with a state
of its own. Behind a pooler nothing may arrive, so the store is asked now and then as well.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import psycopg

from penstock.clock import Clock, blocking_sleep
from penstock.errors import PenstockError
from penstock.stores.postgres.address import Address
from penstock.stores.postgres.connecting import (
    CALL_SECONDS,
    Guard,
    PgConnection,
    closed_quietly,
    connect,
    pausing,
)

LISTEN_SECONDS = 5.0  # how long one wait for a notification lasts


class Listener:
    """Owns the listening connection and its thread, from the first waiting to the end."""

    def __init__(
        self,
        address: Address,
        queries: dict[str, str],
        clock: Clock,
        guard: Guard,
        wake: Callable[[], None],
    ) -> None:
        self._address = address
        self._queries = queries
        self._clock = clock
        self._guard = guard
        self._wake = wake
        self._closed = False
        self._connection: PgConnection | None = None
        self.works = False  # notifications arrive, as far as known
        self._thread = threading.Thread(target=self._loop, name="penstock-listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed = True
        self._guard.give_up()

    def _loop(self) -> None:
        failures = 0
        while not self._closed:
            try:
                connected = connect(self._address, self._queries)
                self._connection = connected.connection
                self._guard.watch_over(connected.connection)
                self._ask(connected.connection, "listen")
                self.works = connected.is_direct
                failures = 0
                self._wake()  # what came before we listened
                self._listen(connected.connection)
            except (psycopg.Error, PenstockError, OSError):
                failures += 1
            finally:
                self.works = False
                self._guard.watch_over(None)
                closed_quietly(self._connection)
            if not self._closed:
                blocking_sleep(pausing(random.SystemRandom().random, failures))

    def _listen(self, connection: PgConnection) -> None:
        while not self._closed:
            for _ in connection.notifies(timeout=LISTEN_SECONDS):
                self._wake()
            self._ask(connection, "ping")

    def _ask(self, connection: PgConnection, query: str) -> None:
        self._guard.until = self._clock.monotonic() + CALL_SECONDS
        connection.execute(self._queries[query])
        self._guard.until = None
