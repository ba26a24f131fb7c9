# SPDX-License-Identifier: Apache-2.0
"""The embedded store: what any store must do, on one SQLite file."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from penstock.clock import MICROSECONDS, BootClock, BootTime, Clock, SystemBootClock, SystemClock
from penstock.errors import (
    PenstockError,
    StoreBusy,
    StoreError,
    StoreFailed,
    StoreFull,
    StoreReadOnly,
)
from penstock.model.lease import LeaseBatch, LeaseRequest
from penstock.stores.group_commit import FINAL, GroupCommit
from penstock.stores.sql import lease
from penstock.stores.sql.statements import Migration
from penstock.stores.sql.store import SqlStore
from penstock.stores.sql.transaction import Transaction
from penstock.stores.sqlite.fork_guard import forked_from
from penstock.stores.sqlite.open import known_steps, open_to_read, open_to_write, statements
from penstock.stores.sqlite.read import SqliteReader
from penstock.stores.sqlite.session import SqliteSession
from penstock.stores.sqlite.transaction import SqliteTransaction
from penstock.stores.sqlite.wal_watch import WalWatch
from penstock.stores.store_future import Reply

T = TypeVar("T")


class ReadOnlyWriter:
    """Refuses every write with the reason for which the store could not be opened to write."""

    failed: StoreError | None = None

    def __init__(self, reason: StoreReadOnly | StoreFull) -> None:
        self._reason = reason

    def submit(
        self,
        run: Callable[[Transaction], T],
        *,
        urgent: bool = False,
        atomic: bool = False,
        lazy: bool = False,
        opening: Callable[[], None] | None = None,
    ) -> Reply[T]:
        return Reply.failed(type(self._reason)(*self._reason.args))

    def fail(self, error: StoreError) -> None:
        self.failed = self.failed or error

    def close(self) -> None:
        return


POLL_SECONDS = 0.005  # how often an idle worker looks whether another process has committed
SLOW_POLL_SECONDS = 0.25  # the same where the kernel tells of writes
FAST_POLL_SECONDS = 0.001  # the same after the kernel told (uvloop turns less into a spin),
FAST_SECONDS = 0.05  # for this long
PEEK_SECONDS = 1.0  # how often it looks for expired workers though nobody has

Writer = GroupCommit[SqliteTransaction] | ReadOnlyWriter


class SqliteStore(SqlStore):
    """Owns one file: a writer thread and a read connection."""

    _writer: Writer
    _reader: SqliteReader

    def __init__(
        self,
        path: Path,
        writer: Callable[[Callable[[Transaction], None]], Writer],
        reader: SqliteReader,
        clock: Clock,
        boot_clock: BootClock,
    ) -> None:
        super().__init__()
        self._path = path
        self._pid = os.getpid()
        self._reader = reader
        self._clock = clock
        self._boot_clock = boot_clock
        self._cursor = lease.LeaseCursor()
        self._watch: WalWatch | None = None
        self._seen_data_version = 0
        self._writer = writer(self._committed)

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        clock: Clock | None = None,
        boot_clock: BootClock | None = None,
        durability: str = "full",
        reading_will_do: bool = False,
        migrations: Sequence[Migration] | None = None,
    ) -> SqliteStore:
        """Open the file, make it if it is missing, and bring its schema up to date.

        With `reading_will_do` a store that may not be written, or has no space for its log, is
        opened all the same; each write is then refused with the reason.
        """
        path = Path(os.path.realpath(path))
        clock, boot_clock = clock or SystemClock(), boot_clock or SystemBootClock()
        queries = statements()
        steps = known_steps() if migrations is None else tuple(migrations)
        try:
            connection = open_to_write(path, queries, durability, clock, steps)
        except (StoreReadOnly, StoreFull) as error:
            if not reading_will_do or not path.exists():
                raise
            refusal = error
            connection = open_to_read(path, queries, clock, steps, alone=True)
            reader = SqliteReader(path, connection, queries, len(steps))
            return cls(path, lambda _: ReadOnlyWriter(refusal), reader, clock, boot_clock)
        session = SqliteSession(path, connection, queries, clock, boot_clock, len(steps))
        reading = open_to_read(path, queries, clock, steps)
        reader = SqliteReader(path, reading, queries, len(steps))
        return cls(path, partial(GroupCommit, session), reader, clock, boot_clock)

    @property
    def url(self) -> str:
        return f"sqlite:///{self._path}"

    def lease(self, request: LeaseRequest) -> Reply[LeaseBatch]:
        return self._submit(lambda tx: lease.lease(tx, request, self._cursor), atomic=True)

    def _watch_on(self, loop: asyncio.AbstractEventLoop) -> WalWatch:
        if self._watch is None or self._watch.loop is not loop:
            if self._watch is not None:
                self._watch.close()
            self._watch = WalWatch(self._path, loop, self._waiters.wake)
        return self._watch

    async def _wait(self, timeout: float | None, woken: asyncio.Event) -> None:
        watch = self._watch_on(asyncio.get_running_loop())
        until = None if timeout is None else self._clock.monotonic() + timeout
        slow = SLOW_POLL_SECONDS if watch.works else POLL_SECONDS
        pause, fast_until = slow, 0.0
        peek_at = self._clock.monotonic() + PEEK_SECONDS
        while not self._waiters.has_news:
            now = self._clock.monotonic()
            if until is not None and now >= until:
                return
            with suppress(StoreBusy):  # somebody holds the whole database: nothing new is seen
                version = self._ask(self._reader.data_version)
                if version != self._seen_data_version or now >= peek_at:
                    self._seen_data_version = version
                    peek_at = now + PEEK_SECONDS
                    pause, fast_until = slow, 0.0
                    if self._ask(self._anything_to_lease):
                        return
            left = pause if until is None else min(pause, until - now)
            if await _sleep_or_woken(woken, left):
                fast_until = self._clock.monotonic() + FAST_SECONDS  # a commit will follow
            fast = self._clock.monotonic() < fast_until
            pause = FAST_POLL_SECONDS if fast else slow

    def _anything_to_lease(self) -> bool:
        return self._reader.anything_to_lease(*self._times(), self._no)

    def close(self) -> None:
        if os.getpid() != self._pid:
            return  # in a forked child: nothing of it is ours
        self._reader.close()  # the writer goes last: it tidies up
        self._writer.close()
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _times(self) -> tuple[int, BootTime]:
        return round(self._clock.now() * MICROSECONDS), self._boot_clock.boot_time()

    def _read(self, ask: Callable[[], T]) -> Reply[T]:
        try:
            return Reply.of(self._ask(ask))
        except PenstockError as error:
            return Reply.failed(error)

    def _ask(self, ask: Callable[[], T]) -> T:
        """Read, unless the store has failed; what shows that it is not sound stops the writer."""
        if os.getpid() != self._pid:
            raise forked_from(self._path)
        if isinstance(self._writer.failed, StoreFailed):
            raise StoreFailed(*self._writer.failed.args) from self._writer.failed.__cause__
        try:
            return ask()
        except FINAL as error:
            self._writer.fail(error)
            raise
        except Exception as error:
            meaning = self._reader.as_damage(error)
            if meaning is error:
                raise
            if isinstance(meaning, FINAL):
                self._writer.fail(meaning)
            raise meaning from error


async def _sleep_or_woken(woken: asyncio.Event, seconds: float) -> bool:
    """Sleep, or less if we are woken; True if we were."""
    loop = asyncio.get_running_loop()
    slept = False

    def end() -> None:
        nonlocal slept
        slept = True
        woken.set()

    handle = loop.call_later(seconds, end)
    try:
        await woken.wait()
    finally:
        handle.cancel()
        woken.clear()
    return not slept
