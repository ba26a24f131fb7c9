# SPDX-License-Identifier: Apache-2.0
"""The store of a fleet: what any store must do, on one PostgreSQL database."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar, cast

from penstock.clock import BootTime, Clock
from penstock.errors import StoreClosed, StoreError
from penstock.model.job import NewJob, WorkerId
from penstock.model.lease import LeaseBatch, LeaseRequest
from penstock.model.views import EnqueueReport
from penstock.stores.group_commit import GroupCommit, closed, forked
from penstock.stores.postgres.connection import Address, Connected, Watch
from penstock.stores.postgres.lane_cache import LANES_KNOWN_MAX
from penstock.stores.postgres.notify import Listener
from penstock.stores.postgres.pipeline import Question
from penstock.stores.postgres.read import PostgresReader
from penstock.stores.postgres.session import PostgresSession
from penstock.stores.postgres.transaction import PostgresTransaction
from penstock.stores.postgres.user_transaction import (
    AsyncUserConnection,
    SyncUserConnection,
    UserConnection,
    UserTransaction,
    in_thread,
)
from penstock.stores.postgres.vacuum import DeadRows, Vacuum
from penstock.stores.protocol import GROUPS_PER_LEASE
from penstock.stores.sql import enqueue, lease, plans, workers
from penstock.stores.sql.statements import as_json
from penstock.stores.sql.store import SqlStore
from penstock.stores.store_future import Reply

POLL_SECONDS = 0.5  # how often an idle worker asks where nobody tells
SLOW_POLL_SECONDS = 1.0  # the same where the server does: for due jobs and dead workers
LEASES_BETWEEN_MERGES = 32  # how often a lease looks whether counters are to be added up

T = TypeVar("T")


class PostgresStore(SqlStore):
    """Owns the connections of one process: to write, to beat, to read, and to listen."""

    bulk_jobs = 2_000  # nobody waits for them, and every wait for the server serves more
    _writer: GroupCommit[PostgresTransaction]
    _reader: PostgresReader

    def __init__(
        self,
        address: Address,
        queries: dict[str, str],
        clock: Clock,
        schema: int,
        first: Connected,
        server_time: Callable[[], int] | None = None,
    ) -> None:
        super().__init__()
        self._address = address
        self._queries = queries
        self._clock = clock
        self._schema = schema
        self._lanes_made: set[str] = set()  # as far as known; a purge may have taken them away
        self._pid = os.getpid()
        self._server_time = server_time
        self._watch = Watch(clock)
        self._reader = PostgresReader(address, queries, clock, self._watch.guard(), schema)
        self._vacuum = Vacuum(address, queries, clock, self._watch.guard(), self._count_dead)
        self._cursor = lease.LeaseCursor()
        self._lease_calls = 0  # counted by the writer
        self._last_request: LeaseRequest | None = None
        self._listener: Listener | None = None
        self._listener_lock = threading.Lock()
        self._closed = False  # guarded by the same: nobody begins to listen afterwards
        self._sessions = [
            PostgresSession(
                address, queries, clock, self._watch.guard(), schema, connected, server_time
            )
            for connected in (first, None)
        ]
        writing, beating = self._sessions
        self._writer = GroupCommit(writing, self._committed)
        self._beats = GroupCommit(beating, self._committed)

    @property
    def url(self) -> str:
        return self._address.shown

    def enqueue_within(self, connection: object, jobs: Sequence[NewJob]) -> EnqueueReport:
        user = SyncUserConnection(connection)
        return self._enqueue_within(jobs, user)

    async def enqueue_within_async(
        self, connection: object, jobs: Sequence[NewJob]
    ) -> EnqueueReport:
        return await in_thread(AsyncUserConnection(connection), partial(self._enqueue_within, jobs))

    def _enqueue_within(self, jobs: Sequence[NewJob], user: UserConnection) -> EnqueueReport:
        """Lanes are made before, by ourselves: others would wait for those of the user."""
        texts = {PostgresTransaction.lane_text(spec, self._no) for spec in enqueue.specs_of(jobs)}
        if not texts <= self._lanes_made:
            self._submit(lambda tx: enqueue.lanes_of(tx, enqueue.specs_of(jobs))).result()
            if len(self._lanes_made) > LANES_KNOWN_MAX:
                self._lanes_made.clear()
            self._lanes_made |= texts
        place = self._read(lambda: self._reader.rows("place_of_store")).result()
        within = UserTransaction(self._address, self._queries, self._clock, self._schema, self._no)
        return within.enqueue(user, jobs, place)

    def beat(
        self, worker_ids: Sequence[WorkerId], ttl_seconds: float
    ) -> Reply[frozenset[WorkerId]]:
        """On a connection of its own: no load and no lock of ours keeps a worker from living."""
        return self._beats.submit(lambda tx: workers.beat(tx, worker_ids, ttl_seconds))

    def beat_locks(self, run_id: str, ttl_seconds: float) -> Reply[bool]:
        return self._beats.submit(lambda tx: plans.beat_locks(tx, run_id, ttl_seconds))

    def lease(self, request: LeaseRequest) -> Reply[LeaseBatch]:
        self._last_request = request
        if self._writer.is_idle:  # else what comes before changes the answers
            self._sessions[0].expect(partial(self._first_questions, request))
        return self._submit(
            lambda tx: self._lease(cast("PostgresTransaction", tx), request), atomic=True
        )

    def _opening(self, jobs: Sequence[NewJob]) -> Callable[[], None] | None:
        foreseen = enqueue.foreseen_alone(jobs, PostgresTransaction.lane_text, self._no)
        if foreseen is None:
            return None
        return lambda: self._sessions[0].expect(lambda life, at: (("insert_job", foreseen(at)),))

    def _first_questions(
        self, request: LeaseRequest, life: str, at: int | None
    ) -> Sequence[Question]:
        groups = min(GROUPS_PER_LEASE, request.limit)
        return (
            ("worker_row", (request.worker, life, at)),
            ("lease_view", (life, at, self._no)),
            ("ready_heads", (self._cursor.group, groups, as_json(request.tasks), self._no)),
        )

    def _lease(self, tx: PostgresTransaction, request: LeaseRequest) -> LeaseBatch:
        self._sessions[0].expect(None)
        tx.ask_ahead(*self._first_questions(request, tx.boot.boot_id, tx.boot.at))
        batch = lease.lease(tx, request, self._cursor)
        self._vacuum.leased(len(batch.jobs))
        self._lease_calls += 1
        if self._lease_calls % LEASES_BETWEEN_MERGES == 0:
            tx.merge_changes_if_many()
        return batch

    def _count_dead(self) -> DeadRows:
        (row,) = self._read(lambda: self._reader.rows("count_dead")).result()
        return DeadRows(*row)

    async def _wait(self, timeout: float | None, woken: asyncio.Event) -> None:
        listener = self._listening()
        until = None if timeout is None else self._clock.monotonic() + timeout
        while not self._waiters.has_news:
            pause = SLOW_POLL_SECONDS if listener.works else POLL_SECONDS
            if until is not None:
                pause = min(pause, until - self._clock.monotonic())
                if pause <= 0:
                    return
            try:
                async with asyncio.timeout(pause):  # no task of its own, as wait_for has
                    await woken.wait()
                return
            except TimeoutError:
                if await self._sees_work():
                    return

    def _listening(self) -> Listener:
        with self._listener_lock:
            if self._closed:
                raise closed()
            if self._listener is None:
                self._listener = Listener(
                    self._address,
                    self._queries,
                    self._clock,
                    self._watch.guard(),
                    self._told,
                )
            return self._listener

    def _told(self) -> None:
        """The server says that there is work: who waits for it will lease as the last time."""
        request = self._last_request
        if request is not None and self._waiters.are_waiting and self._writer.is_idle:
            self._sessions[0].expect(partial(self._first_questions, request))
            self._writer.anticipate()
        self._waiters.tell()

    async def _sees_work(self) -> bool:
        try:
            return await self._read(self._anything_to_lease)
        except StoreClosed:
            raise
        except StoreError:  # it is unreachable: nothing new is seen
            return False

    def _anything_to_lease(self) -> bool:
        now, boot = self._times()
        return bool(self._reader.value("anything_to_lease", now, boot.boot_id, boot.at, self._no))

    def close(self) -> None:
        if os.getpid() != self._pid:
            return  # in a forked child: nothing of it is ours
        with self._listener_lock:
            self._closed = True
        if self._listener is not None:
            self._listener.close()
        self._reader.close()
        self._vacuum.close()  # a look of its thread has been answered, or refused
        for writer in (self._writer, self._beats):
            if not writer.close():  # the server is silent: nothing is waited for any more
                for session in self._sessions:
                    session.interrupt()
        self._watch.close()

    def _times(self) -> tuple[int, BootTime]:
        boot = self._reader.boot_time(self._server_time)
        return boot.at, boot

    def _read(self, question: Callable[[], T]) -> Reply[T]:
        if os.getpid() != self._pid:
            return Reply.failed(forked())
        return self._reader.ask(question)
