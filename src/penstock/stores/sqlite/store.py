# SPDX-License-Identifier: Apache-2.0
"""The embedded store: what any store must do, on one SQLite file."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from penstock import failpoints
from penstock.clock import MICROSECONDS, BootClock, Clock, SystemBootClock, SystemClock
from penstock.errors import PenstockError, StoreBusy, StoreFailed, StoreFull, StoreReadOnly
from penstock.model.job import Attempt, Job, JobId, NewJob, WorkerId
from penstock.model.lease import (
    JobEnd,
    JobFailure,
    JobRef,
    LeaseBatch,
    LeaseRequest,
    Verdict,
    WorkerInfo,
)
from penstock.model.views import (
    EndMark,
    EnqueueReport,
    Manifest,
    Outlook,
    Progress,
    Retried,
    RetryCounts,
    Settled,
    Stats,
    WorkerView,
)
from penstock.stores.group_commit import FINAL, GroupCommit
from penstock.stores.migrate import Migration
from penstock.stores.reply import Reply
from penstock.stores.sql import (
    ending,
    enqueueing,
    foreseeing,
    forgetting,
    leasing,
    operating,
    registering,
    sweeping,
    voiding,
)
from penstock.stores.sql.transaction import Transaction
from penstock.stores.sqlite.forking import forked
from penstock.stores.sqlite.opening import (
    known_steps,
    open_to_read,
    open_to_write,
    statements,
)
from penstock.stores.sqlite.reading import SqliteReader
from penstock.stores.sqlite.refusing import RefusingWriter
from penstock.stores.sqlite.session import SqliteSession
from penstock.stores.sqlite.watching import LogWatch
from penstock.stores.store import JobFilter

POLL_SECONDS = 0.005  # how often an idle worker looks whether another process has committed
SLOW_POLL_SECONDS = 0.25  # the same where the kernel tells of writes
FAST_POLL_SECONDS = 0.001  # the same after the kernel told (uvloop turns less into a spin),
FAST_SECONDS = 0.05  # for this long
PEEK_SECONDS = 1.0  # how often it looks for expired workers though nobody has

T = TypeVar("T")


Writer = GroupCommit[Transaction] | RefusingWriter


class SqliteStore:
    """Owns one file: a writer thread, a read connection, and the wake-ups of this process."""

    def __init__(
        self,
        path: Path,
        writer: Callable[[Callable[[Transaction], None]], Writer],
        reader: SqliteReader,
        clock: Clock,
        boot_clock: BootClock,
    ) -> None:
        self._path = path
        self._pid = os.getpid()
        self._reader = reader
        self._clock = clock
        self._boot_clock = boot_clock
        self._cursor = leasing.LeaseCursor()
        self._waiters: set[Callable[[], None]] = set()
        self._waiters_lock = threading.Lock()
        self._watch: LogWatch | None = None
        self._work_version = 0
        self._seen_version = 0
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
            return cls(path, lambda _: RefusingWriter(refusal), reader, clock, boot_clock)
        session = SqliteSession(path, connection, queries, clock, boot_clock, len(steps))
        reading = open_to_read(path, queries, clock, steps)
        reader = SqliteReader(path, reading, queries, len(steps))
        return cls(path, partial(GroupCommit, session), reader, clock, boot_clock)

    @property
    def url(self) -> str:
        return f"sqlite:///{self._path}"

    def __repr__(self) -> str:
        return f"<SqliteStore {self._path}>"

    def enqueue(self, jobs: Sequence[NewJob]) -> Reply[EnqueueReport]:
        failpoints.hit("enqueue.begin")
        # Only edges and the size of a batch can be refused, and the size before anything is
        # written.
        atomic = any(job.after for job in jobs)
        return self._writer.submit(
            lambda tx: enqueueing.enqueue(tx, jobs), atomic=atomic, lazy=len(jobs) == 1
        )

    def register(self, worker: WorkerInfo, ttl_seconds: float) -> Reply[None]:
        return self._writer.submit(
            lambda tx: registering.register(tx, worker, ttl_seconds), atomic=True
        )

    def beat(self, workers: Sequence[WorkerId], ttl_seconds: float) -> Reply[frozenset[WorkerId]]:
        return self._writer.submit(
            lambda tx: registering.beat(tx, workers, ttl_seconds), urgent=True
        )

    def lease(self, request: LeaseRequest) -> Reply[LeaseBatch]:
        return self._writer.submit(lambda tx: leasing.lease(tx, request, self._cursor), atomic=True)

    def ack(self, worker: WorkerId, ends: Sequence[JobEnd]) -> Reply[list[Verdict]]:
        return self._writer.submit(lambda tx: ending.ack(tx, worker, ends), atomic=True)

    def fail_and_retry(
        self, worker: WorkerId, failures: Sequence[JobFailure]
    ) -> Reply[list[Verdict]]:
        return self._writer.submit(lambda tx: ending.fail_and_retry(tx, worker, failures))

    def release(self, worker: WorkerId, refs: Sequence[JobRef]) -> Reply[int]:
        return self._writer.submit(lambda tx: ending.release(tx, worker, refs))

    def bury(
        self,
        worker: WorkerId,
        started: Sequence[JobRef],
        cause: str,
        max_crashes: int,
        overdue: Sequence[JobFailure] = (),
    ) -> Reply[Progress]:
        return self._writer.submit(
            lambda tx: sweeping.bury(tx, worker, started, cause, max_crashes, overdue), urgent=True
        )

    def retire(self, worker: WorkerId) -> Reply[Progress]:
        return self._writer.submit(lambda tx: sweeping.retire(tx, worker))

    def revoke(self, ref: JobRef, error: str) -> Reply[Verdict]:
        return self._writer.submit(lambda tx: operating.revoke(tx, ref, error))

    def cancel(self, keys: Sequence[str]) -> Reply[frozenset[str]]:
        return self._writer.submit(lambda tx: operating.cancel(tx, keys))

    def lingering(self, worker: WorkerId) -> Reply[list[JobRef]]:
        return self._read(lambda: self._reader.lingering(worker))

    def settle(self) -> Reply[Settled]:
        return self._writer.submit(operating.go_on)

    def retry_failed(
        self, task: str | None, max_attempts: int | None, after_id: JobId
    ) -> Reply[Retried]:
        return self._writer.submit(
            lambda tx: operating.retry_failed(tx, task, max_attempts, after_id)
        )

    def would_retry(self, task: str | None, max_attempts: int | None) -> Reply[RetryCounts]:
        return self._read(lambda: foreseeing.would_retry(self._reader, task, max_attempts))

    def purge(self, before: int, after: EndMark) -> Reply[tuple[Progress, EndMark]]:
        return self._writer.submit(lambda tx: forgetting.purge(tx, before, after))

    def would_purge(self, before: int) -> Reply[int]:
        return self._read(lambda: foreseeing.would_purge(self._reader, before))

    def void_leases(self, above: int) -> Reply[int]:
        return self._writer.submit(lambda tx: voiding.void_leases(tx, above))

    def stats(self) -> Reply[Stats]:
        return self._read(lambda: self._reader.stats(self._now(), self._boot_clock.boot_time()))

    def job(self, key: str) -> Reply[Job | None]:
        return self._read(lambda: self._reader.job(key))

    def attempts(self, key: str) -> Reply[list[Attempt]]:
        return self._read(lambda: self._reader.attempts(key))

    def jobs(self, wanted: JobFilter, after_id: JobId, limit: int) -> Reply[list[Job]]:
        return self._read(lambda: self._reader.jobs(wanted, after_id, limit))

    def outlook(self, worker: WorkerId, run_id: str) -> Reply[Outlook]:
        return self._read(
            lambda: self._reader.outlook(worker, run_id, self._boot_clock.boot_time())
        )

    def check(self) -> Reply[list[str]]:
        return self._read(self._reader.check)

    def manifests(self, dataset: str) -> Reply[list[Manifest]]:
        return self._read(lambda: self._reader.manifests("committed_manifests", dataset))

    def staged(self, plan_id: str) -> Reply[list[Manifest]]:
        return self._read(lambda: self._reader.manifests("staged_manifests", plan_id))

    def cursor(self, name: str) -> Reply[str | None]:
        return self._read(lambda: self._reader.first("read_cursor", name))

    def caps(self) -> Reply[dict[str, int]]:
        return self._read(self._reader.caps)

    def holders(self, limit: int) -> Reply[dict[str, int]]:
        return self._read(lambda: dict(self._reader.rows("list_holders", limit)))

    def set_cap(self, limit_key: str, cap: int | None) -> Reply[None]:
        return self._writer.submit(lambda tx: registering.set_cap(tx, limit_key, cap))

    def publish(self, worker: WorkerId, document: str) -> Reply[None]:
        return self._writer.submit(lambda tx: registering.publish(tx, worker, document))

    def workers(self) -> Reply[list[WorkerView]]:
        return self._read(lambda: self._reader.workers(self._boot_clock.boot_time()))

    def set_paused(self, paused: bool) -> Reply[None]:
        return self._writer.submit(lambda tx: registering.set_paused(tx, paused))

    async def wait_for_work(self, timeout: float | None) -> None:
        """Return when there may be something new to lease: our own doing, or another process's."""
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(woken.set)

        with self._waiters_lock:
            self._waiters.add(wake)
        try:
            await self._wait(timeout, woken, self._watch_on(loop))
            self._seen_version = self._work_version
        finally:
            with self._waiters_lock:
                self._waiters.discard(wake)

    def _watch_on(self, loop: asyncio.AbstractEventLoop) -> LogWatch:
        if self._watch is None or self._watch.loop is not loop:
            if self._watch is not None:
                self._watch.close()
            self._watch = LogWatch(self._path, loop, self._wake_waiters)
        return self._watch

    def _wake_waiters(self) -> None:
        with self._waiters_lock:
            for wake in self._waiters:
                try:
                    wake()
                except RuntimeError:  # its loop is closed
                    continue

    async def _wait(self, timeout: float | None, woken: asyncio.Event, watch: LogWatch) -> None:
        until = None if timeout is None else self._clock.monotonic() + timeout
        slow = SLOW_POLL_SECONDS if watch.works else POLL_SECONDS
        pause, fast_until = slow, 0.0
        peek_at = self._clock.monotonic() + PEEK_SECONDS
        while self._work_version == self._seen_version:
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
        return self._reader.anything_to_lease(self._now(), self._boot_clock.boot_time())

    def close(self) -> None:
        if os.getpid() != self._pid:
            return  # in a forked child: nothing of it is ours
        self._reader.close()  # the writer goes last: it tidies up
        self._writer.close()
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _committed(self, tx: Transaction) -> None:
        """Called by the writer's thread after each commit."""
        for point in tx.passed:
            failpoints.hit(point)
        if tx.made_work:
            self._work_version += 1
            self._wake_waiters()

    def _now(self) -> int:
        return round(self._clock.now() * MICROSECONDS)

    def _read(self, ask: Callable[[], T]) -> Reply[T]:
        try:
            return Reply.of(self._ask(ask))
        except PenstockError as error:
            return Reply.failed(error)

    def _ask(self, ask: Callable[[], T]) -> T:
        """Read, unless the store has failed; what shows that it is not sound stops the writer."""
        if os.getpid() != self._pid:
            raise forked(self._path)
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
