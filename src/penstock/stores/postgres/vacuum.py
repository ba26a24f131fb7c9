# SPDX-License-Identifier: Apache-2.0
"""Vacuums the dead rows of jobs that have passed, where autovacuum comes too seldom.

Autovacuum visits a database once a minute; a busy queue makes a million dead rows in that time, and
tables and indexes stay as large as they once were. So a process that leases much looks at how many
there are, and lets the server remove them: on a connection of its own, outside any transaction,
without any lock that a lease waits for. Only one at a time does; autovacuum stays the safety net.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

import psycopg

from penstock.clock import Clock
from penstock.errors import PenstockError
from penstock.stores.postgres.connection import Address, Guard, closed_quietly, connect

LOOK_LEASES = 5_000  # jobs that this process leases between two looks
DEAD_ROWS = 100_000  # so many are left to autovacuum,
DEAD_SHARE = 0.2  # and this share of the live ones: indexes are walked through wholly
PAUSE_SECONDS = 1.0  # between two vacuums, of whomever
PAUSE_SECONDS_MAX = 60.0  # the same while they do not help: an old transaction is in the way
VACUUM_SECONDS = 300.0  # after this long its end is not waited for
CLOSE_SECONDS = 1.0  # close() waits at most this long for the thread


class DeadRows(NamedTuple):
    """The columns of `count_dead`."""

    dead: int
    live: int
    deaths: int  # since the server began to count
    since_seconds: float  # since the last vacuum, of whomever
    may_vacuum: bool


class Pace:
    """Decides whether now is the time. Knows no server."""

    def __init__(self) -> None:
        self._pause_seconds = PAUSE_SECONDS
        self._quiet_until = 0.0  # monotonic
        self._tried: DeadRows | None = None  # what our last vacuum found, until it is judged

    def is_due(self, found: DeadRows, now: float) -> bool:
        """Whether they are to be removed now; if so, it is taken for granted that it is tried."""
        if now < self._quiet_until:
            return False
        if found.dead <= DEAD_ROWS + DEAD_SHARE * found.live:
            self._pause_seconds, self._tried = PAUSE_SECONDS, None
            return False
        self._judge(found)
        if not found.may_vacuum:
            self.did_not_work(now)
        if now < self._quiet_until or found.since_seconds < self._pause_seconds:
            return False
        self._tried, self._quiet_until = found, now + self._pause_seconds
        return True

    def did_not_work(self, now: float) -> None:
        """Leave it to autovacuum for a while."""
        self._quiet_until = now + PAUSE_SECONDS_MAX

    def _judge(self, found: DeadRows) -> None:
        """The last one removed at least half, or did not: then wait longer and longer."""
        tried, self._tried = self._tried, None
        if tried is None:
            return
        removed = tried.dead + found.deaths - tried.deaths - found.dead
        if 2 * removed >= tried.dead:
            self._pause_seconds = PAUSE_SECONDS
        else:
            self._pause_seconds = min(2 * self._pause_seconds, PAUSE_SECONDS_MAX)


class Vacuum:
    """Owns the thread that vacuums, and its connection while it does."""

    def __init__(
        self,
        address: Address,
        queries: dict[str, str],
        clock: Clock,
        guard: Guard,
        look: Callable[[], DeadRows],
    ) -> None:
        self._address = address
        self._queries = queries
        self._clock = clock
        self._guard = guard
        self._look = look
        self._pace = Pace()
        self._leased = 0
        self._wanted = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None

    def leased(self, jobs: int) -> None:
        """Each of them leaves dead rows. Called by the writer."""
        self._leased += jobs
        if self._leased < LOOK_LEASES:
            return
        self._leased = 0
        self._wanted.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name="penstock-vacuum", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Vacuum no more; the server goes on with one that it has begun."""
        self._closed = True
        self._wanted.set()
        self._guard.give_up()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)

    def _loop(self) -> None:
        while self._wanted.wait() and not self._closed:
            self._wanted.clear()
            try:
                if self._pace.is_due(self._look(), self._clock.monotonic()):
                    self._vacuum()
            except (psycopg.Error, PenstockError, OSError):
                self._pace.did_not_work(self._clock.monotonic())

    def _vacuum(self) -> None:
        connection = connect(self._address, self._queries).connection
        try:
            self._guard.watch_over(connection)
            if self._closed:
                return
            self._guard.until = self._clock.monotonic() + VACUUM_SECONDS
            connection.execute(self._queries["remove_dead"])
        finally:
            self._guard.watch_over(None)
            closed_quietly(connection)
