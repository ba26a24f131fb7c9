# SPDX-License-Identifier: Apache-2.0
"""How are transactions of several stores led through their statements, one step at a time?

A store reads its statements from a table that is handed to it; here that table lets nobody through
before it is told to. Who is stopped by a lock of another is seen on the server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from penstock.clock import SystemClock
from penstock.errors import PenstockError
from penstock.stores.postgres.connection import Address, connect
from penstock.stores.postgres.open import known_steps, statements_for
from penstock.stores.postgres.store import PostgresStore

STEPS_MAX = 2_000  # of one run; more is a livelock
POLL_SECONDS = 0.001
PATIENCE_SECONDS = 1.0  # who is neither back nor seen waiting after this is taken for blocked
END_SECONDS = 90.0

_BLOCKED = """
select count(*) from pg_stat_activity
where datname = current_database() and wait_event_type = 'Lock'
"""


class Steps(dict[str, str]):
    """The statements of one store; while it is led, each one waits for a step."""

    def __init__(self, statements: dict[str, str]) -> None:
        super().__init__(statements)
        self._changed = threading.Condition()
        self._led = False
        self._permits = 0
        self.at: str | None = None  # the statement that waits for a step
        self.trace: list[str] = []

    def __getitem__(self, name: str) -> str:
        if self._led and threading.current_thread().name != "penstock-reader":
            with self._changed:
                self.at = name
                self._changed.wait_for(lambda: self._permits or not self._led)
                self._permits = max(0, self._permits - 1)
                self.at = None
                self.trace.append(name)
        return super().__getitem__(name)

    def lead(self) -> None:
        self.trace = []
        self._led = True

    def step(self) -> None:
        with self._changed:
            self.at = None
            self._permits = 1
            self._changed.notify_all()

    def let_go(self) -> None:
        with self._changed:
            self._led, self._permits = False, 0
            self._changed.notify_all()


class SteppedStore(PostgresStore):
    """A store whose writer can be led."""

    def __init__(self, url: str, server_time: Callable[[], int]) -> None:
        address = Address.of(url)
        self.steps = Steps(statements_for("normal"))
        first = connect(address, self.steps)
        super().__init__(address, self.steps, SystemClock(), len(known_steps()), first, server_time)


class _Walker:
    """One call of one store, in a thread of its own."""

    def __init__(self, store: SteppedStore, call: Callable[[SteppedStore], Any]) -> None:
        self.steps = store.steps
        self.answer: Any = None
        self.ended = False
        self.error: BaseException | None = None
        self.steps.lead()
        self._thread = threading.Thread(target=self._run, args=(store, call), daemon=True)
        self._thread.start()

    def _run(self, store: SteppedStore, call: Callable[[SteppedStore], Any]) -> None:
        try:
            self.answer = call(store)
        except PenstockError as error:
            self.answer = type(error).__name__
        except BaseException as error:
            self.error = error
        finally:
            self.steps.let_go()
            self.ended = True

    @property
    def waits(self) -> bool:
        return not self.ended and self.steps.at is not None

    @property
    def runs(self) -> bool:
        return not self.ended and self.steps.at is None


Choice = Callable[[Sequence[int]], int]  # whose step is next, of those that may make one


def run_stepped(
    watch: psycopg.Connection[Any],
    calls: Sequence[tuple[SteppedStore, Callable[[SteppedStore], Any]]],
    choose: Choice,
) -> list[Any]:
    """Run calls of different stores, each statement when it is chosen; their answers."""
    walkers = [_Walker(store, call) for store, call in calls]
    try:
        for _ in range(STEPS_MAX):
            _settle(watch, walkers)
            ready = [n for n, walker in enumerate(walkers) if walker.waits]
            if not ready:
                break
            walkers[choose(ready)].steps.step()
    finally:
        for walker in walkers:
            walker.steps.let_go()
    until = time.monotonic() + END_SECONDS
    while not all(walker.ended for walker in walkers):
        assert time.monotonic() < until, [walker.steps.trace[-20:] for walker in walkers]
        time.sleep(POLL_SECONDS)
    for walker in walkers:
        if walker.error is not None:
            raise walker.error
    return [walker.answer for walker in walkers]


def _settle(watch: psycopg.Connection[Any], walkers: Sequence[_Walker]) -> None:
    """Wait until nobody runs: everybody waits for a step, for a lock of another, or has ended."""
    since = time.monotonic()
    while running := sum(walker.runs for walker in walkers):
        others = any(walker.waits for walker in walkers)
        waited = time.monotonic() - since
        if others and waited > 0.004:
            (blocked,) = watch.execute(_BLOCKED).fetchone() or (0,)
            if blocked >= running or waited > PATIENCE_SECONDS:
                return
        elif waited > END_SECONDS:
            raise AssertionError("nobody comes to an end")
        time.sleep(POLL_SECONDS / 4)
