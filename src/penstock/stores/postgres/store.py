# SPDX-License-Identifier: Apache-2.0
"""The store of a fleet: what any store must do, on one PostgreSQL database."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from penstock import failpoints
from penstock.clock import BootTime, Clock
from penstock.errors import StoreError, StoreForked
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
from penstock.stores.group_commit import GroupCommit
from penstock.stores.postgres.address import Address
from penstock.stores.postgres.connecting import Connected, Watch
from penstock.stores.postgres.listening import Listener
from penstock.stores.postgres.reading import PostgresReader
from penstock.stores.postgres.session import PostgresSession
from penstock.stores.postgres.transaction import PostgresTransaction
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
from penstock.stores.sql.statements import as_json
from penstock.stores.sql.transaction import Transaction
from penstock.stores.store import GROUPS_PER_LEASE, JobFilter

POLL_SECONDS = 0.5  # how often an idle worker asks where nobody tells
LEASES_BETWEEN_MERGES = 32  # how often a lease looks whether counters are to be added up
SLOW_POLL_SECONDS = 1.0  # the same where the server does: for due jobs and dead workers

T = TypeVar("T")


class PostgresStore:
    """Owns the connections of one process: to write, to beat, to read, and to listen."""

    def __init__(
        self,
        address: Address,
        queries: dict[str, str],
        clock: Clock,
        schema: int,
        first: Connected,
        server_time: Callable[[], int] | None = None,
    ) -> None:
        self._address = address
        self._queries = queries
        self._clock = clock
        self._pid = os.getpid()
        self._server_time = server_time
        self._watch = Watch(clock)
        self._reader = PostgresReader(address, queries, clock, self._watch.guard())
        self._cursor = leasing.LeaseCursor()
        self._waiters: set[Callable[[], None]] = set()
        self._waiters_lock = threading.Lock()
        self._listener: Listener | None = None
        self._leases = 0
        self._work_version = 0
        self._seen_version = 0
        sessions = [
            PostgresSession(
                address, queries, clock, self._watch.guard(), schema, connected, server_time
            )
            for connected in (first, None)
        ]
        self._sessions = sessions
        self._writer: GroupCommit[Transaction] = GroupCommit(sessions[0], self._committed)
        self._beats: GroupCommit[Transaction] = GroupCommit(sessions[1], self._committed)

    @property
    def url(self) -> str:
        return self._address.shown

    def __repr__(self) -> str:
        return f"<PostgresStore {self._address.shown}>"

    def enqueue(self, jobs: Sequence[NewJob]) -> Reply[EnqueueReport]:
        failpoints.hit("enqueue.begin")
        atomic = any(job.after for job in jobs)
        return self._writer.submit(
            lambda tx: enqueueing.enqueue(tx, jobs), atomic=atomic, lazy=len(jobs) == 1
        )

    def register(self, worker: WorkerInfo, ttl_seconds: float) -> Reply[None]:
        return self._writer.submit(
            lambda tx: registering.register(tx, worker, ttl_seconds), atomic=True
        )

    def beat(self, workers: Sequence[WorkerId], ttl_seconds: float) -> Reply[frozenset[WorkerId]]:
        """On a connection of its own: no load and no lock of ours keeps a worker from living."""
        return self._beats.submit(lambda tx: registering.beat(tx, workers, ttl_seconds))

    def lease(self, request: LeaseRequest) -> Reply[LeaseBatch]:
        return self._writer.submit(lambda tx: self._lease(tx, request), atomic=True)

    def _lease(self, tx: Transaction, request: LeaseRequest) -> LeaseBatch:
        if not isinstance(tx, PostgresTransaction):
            raise TypeError(f"not a transaction of this store: {tx!r}")
        groups = min(GROUPS_PER_LEASE, request.limit)
        tx.ask_ahead(
            ("hold_worker", (request.worker, tx.boot.boot_id, tx.boot.at)),
            ("lease_view", (tx.boot.boot_id, tx.boot.at)),
            ("ready_heads", (self._cursor.group, groups, as_json(request.tasks))),
        )
        batch = leasing.lease(tx, request, self._cursor)
        self._leases += 1
        if self._leases % LEASES_BETWEEN_MERGES == 0:
            tx.merge_changes_if_many()
        return batch

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
        def answer() -> Stats:
            boot = self._boot()
            return self._reader.stats(boot.at, boot)

        return self._read(answer)

    def job(self, key: str) -> Reply[Job | None]:
        return self._read(lambda: self._reader.job(key))

    def attempts(self, key: str) -> Reply[list[Attempt]]:
        return self._read(lambda: self._reader.attempts(key))

    def jobs(self, wanted: JobFilter, after_id: JobId, limit: int) -> Reply[list[Job]]:
        return self._read(lambda: self._reader.jobs(wanted, after_id, limit))

    def outlook(self, worker: WorkerId, run_id: str) -> Reply[Outlook]:
        return self._read(lambda: self._reader.outlook(worker, run_id, self._boot()))

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
        return self._read(lambda: dict(self._reader.array("list_holders", limit)))

    def set_cap(self, limit_key: str, cap: int | None) -> Reply[None]:
        return self._writer.submit(lambda tx: registering.set_cap(tx, limit_key, cap))

    def publish(self, worker: WorkerId, document: str) -> Reply[None]:
        return self._writer.submit(lambda tx: registering.publish(tx, worker, document))

    def workers(self) -> Reply[list[WorkerView]]:
        return self._read(lambda: self._reader.workers(self._boot()))

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
        if self._listener is None:
            self._listener = Listener(
                self._address, self._queries, self._clock, self._watch.guard(), self._wake_waiters
            )
        try:
            await self._wait(timeout, woken, self._listener)
            self._seen_version = self._work_version
        finally:
            with self._waiters_lock:
                self._waiters.discard(wake)

    async def _wait(self, timeout: float | None, woken: asyncio.Event, listener: Listener) -> None:
        until = None if timeout is None else self._clock.monotonic() + timeout
        while self._work_version == self._seen_version:
            pause = SLOW_POLL_SECONDS if listener.works else POLL_SECONDS
            if until is not None:
                pause = min(pause, until - self._clock.monotonic())
                if pause <= 0:
                    return
            try:
                await asyncio.wait_for(woken.wait(), pause)
                return
            except TimeoutError:
                with suppress(StoreError):  # it is away: nothing new is seen
                    if await self._read(self._anything_to_lease):
                        return

    def _anything_to_lease(self) -> bool:
        boot = self._boot()
        return bool(self._reader.value("anything_to_lease", boot.at, boot.boot_id, boot.at))

    def close(self) -> None:
        if os.getpid() != self._pid:
            return  # in a forked child: nothing of it is ours
        if self._listener is not None:
            self._listener.close()
        self._reader.close()
        for writer in (self._writer, self._beats):
            if not writer.close():  # the server is silent: nothing is waited for any more
                for session in self._sessions:
                    session.interrupt()
        self._watch.close()

    def _committed(self, tx: Transaction) -> None:
        """Called by a writer's thread after each commit."""
        for point in tx.passed:
            failpoints.hit(point)
        if tx.made_work:
            self._wake_waiters()

    def _wake_waiters(self) -> None:
        with self._waiters_lock:
            self._work_version += 1
            for wake in self._waiters:
                with suppress(RuntimeError):  # its loop is closed
                    wake()

    def _boot(self) -> BootTime:
        return self._reader.boot_time(self._server_time)

    def _read(self, question: Callable[[], T]) -> Reply[T]:
        if os.getpid() != self._pid:
            return Reply.failed(
                StoreForked(
                    "This process was forked while the store was open, so it cannot use it. Start "
                    "processes with 'spawn' (multiprocessing.get_context('spawn')), or close the "
                    "store before forking."
                )
            )
        return self._reader.ask(question)
