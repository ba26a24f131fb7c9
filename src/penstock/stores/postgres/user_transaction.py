# SPDX-License-Identifier: Apache-2.0
"""Enqueues inside a transaction of the user's own connection, committed or rolled back with it.

Only psycopg's public calls are used, on a cursor of our own, so that row factory, adapters,
prepared statements, autocommit and pipelines of the connection stay what they are. Every batch is a
savepoint. Jobs begin as delayed ones that are due at once, which the next lease makes ready: so no
lane is made known here, on which everybody else would wait until the user commits.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

import msgspec
import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row
from psycopg.types.bool import BoolLoader
from psycopg.types.numeric import Int8Dumper, IntLoader
from psycopg.types.string import StrDumperUnknown, TextLoader

from penstock.clock import MICROSECONDS, BootTime, Clock
from penstock.errors import StoreBusy, UsageError
from penstock.model.job import NewJob
from penstock.model.views import EnqueueReport
from penstock.stores.group_commit import Contended
from penstock.stores.postgres import errors
from penstock.stores.postgres.connection import Address
from penstock.stores.postgres.lane_cache import LaneCache
from penstock.stores.postgres.pipeline import Question
from penstock.stores.postgres.transaction import PostgresTransaction, changing
from penstock.stores.sql import enqueue
from penstock.stores.sql.statements import Row, newer_schema

TRIES_MAX = 20  # of a batch that meets the transactions of others
LEAST_DELAY_SECONDS = 1 / MICROSECONDS  # what is due then is due at once
ENCODING = b"UTF8"

#: The user has to repeat all of the transaction, as psycopg's own error says.
_WHOLE_TRANSACTION = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)

T = TypeVar("T")


class UserConnection(Protocol):
    """A connection of the user's, as far as a batch needs it; called in one thread."""

    def execute(self, query: str, parameters: Sequence[object]) -> tuple[list[Row], int]:
        """The rows of a statement, and how many it changed."""
        ...

    def savepoint(self, begin: str) -> contextlib.AbstractContextManager[object]:
        """All of a block, or nothing of it, in a transaction that `begin` opens, if need be.

        Without autocommit it is the user's to commit, also if nothing was asked in it before.
        """
        ...


def _prepared(cursor: Any) -> Any:  # noqa: ANN401 (both kinds of cursors)
    """Let a cursor read and write as ours do, whatever its connection has been taught."""
    adapters = cursor.adapters
    adapters.register_dumper(int, Int8Dumper)
    adapters.register_dumper(str, StrDumperUnknown)
    for name in ("int2", "int4", "int8"):
        adapters.register_loader(name, IntLoader)
    adapters.register_loader("text", TextLoader)
    adapters.register_loader("bool", BoolLoader)
    return cursor


def _wrong_kind(connection: object, wanted: str) -> UsageError:
    return UsageError(
        f"connection= takes a {wanted} here, got {type(connection).__module__.partition('.')[0]}'s "
        f"{type(connection).__name__}: a psycopg.Connection in app.enqueue, a "
        "psycopg.AsyncConnection in app.enqueue_async."
    )


def _in_pipeline(connection: Connection[Any] | AsyncConnection[Any]) -> bool:
    return connection.pgconn.pipeline_status != PipelineStatus.OFF


def check_usable(connection: Connection[Any] | AsyncConnection[Any]) -> None:
    """Refuse a connection on which nothing can be done, before anything is."""
    if connection.closed:
        raise UsageError("connection= is closed; open it, or enqueue without it.")
    if connection.pgconn.transaction_status == TransactionStatus.INERROR:
        raise UsageError(
            "The transaction of connection= has failed already; roll it back before you enqueue."
        )
    if (said := connection.pgconn.parameter_status(b"client_encoding")) != ENCODING:
        raise UsageError(
            f"connection= speaks {(said or b'nothing').decode()}, and payloads are UTF8; connect "
            "with client_encoding=utf8."
        )


class SyncUserConnection:
    """Owns a cursor on a `psycopg.Connection`."""

    def __init__(self, connection: object) -> None:
        if not isinstance(connection, Connection):
            raise _wrong_kind(connection, "psycopg.Connection")
        check_usable(connection)
        self._connection = connection
        self._cursor = _prepared(psycopg.RawCursor(connection, row_factory=tuple_row))

    def execute(self, query: str, parameters: Sequence[object]) -> tuple[list[Row], int]:
        cursor, inner = self._cursor, contextlib.nullcontext
        with self._connection.pipeline() if _in_pipeline(self._connection) else inner():
            cursor.execute(query, parameters, prepare=False)
        return cursor.fetchall() if cursor.description else [], cursor.rowcount

    @contextlib.contextmanager
    def savepoint(self, begin: str) -> Iterator[None]:
        if not self._connection.autocommit:
            self.execute(begin, ())
        with self._connection.transaction():
            yield


class AsyncUserConnection:
    """Owns a cursor on a `psycopg.AsyncConnection`, which a thread uses through the loop."""

    def __init__(self, connection: object) -> None:
        if not isinstance(connection, AsyncConnection):
            raise _wrong_kind(connection, "psycopg.AsyncConnection")
        check_usable(connection)
        self._connection = connection
        self._cursor = _prepared(psycopg.AsyncRawCursor(connection, row_factory=tuple_row))
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()  # guards the next two
        self._given_up = False
        self._asked: Future[Any] | None = None

    def give_up(self) -> None:
        """Let nothing more be asked: the batch is undone, and whoever waits for it is told."""
        with self._lock:
            self._given_up = True
            if self._asked is not None:
                self._asked.cancel()

    def execute(self, query: str, parameters: Sequence[object]) -> tuple[list[Row], int]:
        return self._await(self._execute(query, parameters))

    async def _execute(self, query: str, parameters: Sequence[object]) -> tuple[list[Row], int]:
        cursor, inner = self._cursor, contextlib.nullcontext
        async with self._connection.pipeline() if _in_pipeline(self._connection) else inner():
            await cursor.execute(query, parameters, prepare=False)
        return await cursor.fetchall() if cursor.description else [], cursor.rowcount

    @contextlib.contextmanager
    def savepoint(self, begin: str) -> Iterator[None]:
        if not self._connection.autocommit:
            self.execute(begin, ())
        transaction = self._connection.transaction()
        self._await(transaction.__aenter__())
        try:
            yield
        except BaseException as error:
            undoing = transaction.__aexit__(type(error), error, error.__traceback__)
            asyncio.run_coroutine_threadsafe(undoing, self._loop).result()  # whatever happens
            raise
        self._await(transaction.__aexit__(None, None, None))

    def _await(self, asked: Coroutine[Any, Any, T]) -> T:
        with self._lock:
            if self._given_up:
                asked.close()
                raise CancelledError
            future = asyncio.run_coroutine_threadsafe(asked, self._loop)
            self._asked = future
        return future.result()


async def in_thread(user: AsyncUserConnection, work: Callable[[UserConnection], T]) -> T:
    """Do what blocks in a thread of its own; when it is cancelled, it has been undone.

    Batches may wait for each other's transactions, so they do not share a bounded pool.
    """
    pool = ThreadPoolExecutor(1, "penstock-enqueue")
    try:
        doing = asyncio.get_running_loop().run_in_executor(pool, work, user)
        try:
            return await asyncio.shield(doing)
        except asyncio.CancelledError:
            user.give_up()
            await asyncio.wait((doing,))
            raise
    finally:
        pool.shutdown(wait=False)


class _Asked:
    """What a transaction of the store uses, on the user's connection."""

    def __init__(self, user: UserConnection, queries: dict[str, str]) -> None:
        self._user, self._queries = user, queries
        self.rowcount = 0

    def execute(self, query: str, parameters: Sequence[object]) -> None:
        _, self.rowcount = self._user.execute(query, parameters)

    def ask(self, questions: Iterable[Question]) -> list[list[Row]]:
        return [self._user.execute(self._queries[query], said)[0] for query, said in questions]


class UserTransaction:
    """Owns what one store needs to enqueue batches within transactions of others."""

    def __init__(
        self, address: Address, queries: dict[str, str], clock: Clock, schema: int, app: int
    ) -> None:
        self._address = address
        self._queries = queries
        self._changing = changing(queries)
        self._clock = clock
        self._schema = schema
        self._app = app

    def enqueue(
        self, user: UserConnection, jobs: Sequence[NewJob], place: Sequence[Row]
    ) -> EnqueueReport:
        """Accept a batch when the user commits; `place` is the database that the store is in."""
        delayed = [
            msgspec.structs.replace(job, delay_seconds=max(job.delay_seconds, LEAST_DELAY_SECONDS))
            for job in jobs
        ]
        for _ in range(TRIES_MAX):
            try:
                with user.savepoint(self._queries["ping"]):
                    return self._accept(user, delayed, place)
            except (Contended, psycopg.errors.UniqueViolation):
                continue
            except _WHOLE_TRANSACTION:
                raise
            except psycopg.Error as error:
                shown = self._address.shown
                raise errors.as_final_error(error, shown, "enqueueing in") from error
        raise StoreBusy(
            "Other transactions interfered each time that jobs were enqueued within connection=; "
            "roll it back, and begin anew."
        )

    def _accept(
        self, user: UserConnection, jobs: Sequence[NewJob], place: Sequence[Row]
    ) -> EnqueueReport:
        if user.execute(self._queries["place_of_store"], ())[0] != place:
            raise UsageError(
                f"connection= leads to another database than the store, {self._address.shown}: "
                "jobs are committed with your rows only if both are in one. Connect to that one."
            )
        ((version,),), _ = user.execute(self._queries["schema_version"], ())
        if version != self._schema:
            raise newer_schema(self._address.shown, version, self._schema)
        ((now,),), _ = user.execute(self._queries["server_time"], ())
        asked: Any = _Asked(user, self._queries)
        lanes = LaneCache(self._clock)
        lanes.keys_are_new = False  # a COPY could not be told from a mistake of the user's
        boot = BootTime("", now)
        tx = PostgresTransaction(
            asked, asked, self._queries, self._changing, now, boot, lanes, _no_deadline
        )
        tx.app = self._app
        report = enqueue.enqueue(tx, jobs)
        tx.hand_over()
        return report


def _no_deadline() -> None:
    """How long it may take is the user's own."""
