# SPDX-License-Identifier: Apache-2.0
"""Sends several statements to the server in one round trip, at little cost.

Psycopg's own pipelines do the same, but after a pause, when nothing of them is in any cache, each
takes 0.3 ms more than this, and four of them are on the way of a job through an idle queue.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import psycopg
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, ExecStatus
from psycopg.pq.abc import PGresult

from penstock.stores.postgres.connection import PgConnection
from penstock.stores.sql.statements import Row

Question = tuple[str, tuple[object, ...]]  # a statement's name and what it is asked with
_Key = tuple[str, tuple[int, ...]]  # a statement's name and the types of its parameters

_INT8 = 20  # the server's number of that type
_UNKNOWN = 0  # the server finds out


class _Prepared(NamedTuple):
    """A statement that was sent to be prepared, before it was sent to be run."""

    key: _Key
    name: bytes


def _encoded(parameters: Iterable[object]) -> tuple[tuple[int, ...], list[bytes | None]]:
    """The types and texts of parameters; ValueError or DataError if one cannot be sent."""
    types: list[int] = []
    values: list[bytes | None] = []
    for value in parameters:
        data = None if value is None else str(value).encode()
        if data is not None and b"\0" in data:
            raise psycopg.DataError("A text with a NUL cannot be kept.")  # libpq would cut it
        types.append(_INT8 if type(value) is int else _UNKNOWN)
        values.append(data)
    return tuple(types), values


class RoundTrip:
    """Owns the statements that it has prepared on one connection, which psycopg uses as well."""

    def __init__(
        self, connection: PgConnection, queries: dict[str, str], *, prepares: bool
    ) -> None:
        self._connection = connection
        self._pgconn = connection.pgconn
        self._queries = queries
        self._prepares = prepares
        self._prepared: dict[_Key, bytes] = {}
        self._names = 0
        self._transformer = Transformer(connection)
        self._readable = select.poll()
        self._readable.register(self._pgconn.socket, select.POLLIN)
        self._usable = select.poll()
        self._usable.register(self._pgconn.socket, select.POLLIN | select.POLLOUT)

    def ask(
        self, questions: Iterable[Question], answers: list[list[Row]] | None = None
    ) -> list[list[Row]]:
        """The rows that each statement answers; psycopg's error of the first one that fails.

        They are put into `answers`, which tells how far it came where there is an error.
        """
        if self._connection.closed:
            raise psycopg.OperationalError("the connection is closed")
        encoded = [(query, *_encoded(parameters)) for query, parameters in questions]
        answers = [] if answers is None else answers
        errors: list[psycopg.Error] = []
        try:
            self._pgconn.enter_pipeline_mode()
            sent = [self._send(*question) for question in encoded]
            self._pgconn.pipeline_sync()
            self._flush()
            self._receive(sent, answers, errors)
            self._pgconn.exit_pipeline_mode()
        except BaseException as error:  # nobody knows where in the answers we are
            self._connection.close()
            if errors and isinstance(error, psycopg.OperationalError):
                raise errors[0] from error  # what the server said before it went
            raise
        if errors:
            raise errors[0]
        return answers

    def _send(
        self, query: str, types: tuple[int, ...], values: Sequence[bytes | None]
    ) -> _Prepared | None:
        """Send a statement on its way; says what the server has to prepare for it first."""
        text = self._queries[query].encode()
        fresh: _Prepared | None = None
        if not self._prepares:
            self._pgconn.send_query_params(text, values, types)
        else:
            name = self._prepared.get((query, types))
            if name is None:
                self._names += 1
                name = f"penstock_{self._names}".encode()
                fresh = _Prepared((query, types), name)
                self._pgconn.send_prepare(name, text, types)
            self._pgconn.send_query_prepared(name, values)
        self._flush()  # the server wakes while we write the next one
        return fresh

    def _flush(self) -> None:
        while self._pgconn.flush():
            for _, events in self._usable.poll():
                if events & ~select.POLLOUT:
                    self._pgconn.consume_input()

    def _receive(
        self,
        sent: Sequence[_Prepared | None],
        answers: list[list[Row]],
        errors: list[psycopg.Error],
    ) -> None:
        for fresh in sent:
            if fresh is not None and self._is_good(self._next(), errors):
                self._prepared[fresh.key] = fresh.name
            result = self._next()
            if self._is_good(result, errors):
                self._transformer.set_pgresult(result)
                answers.append(self._transformer.load_rows(0, result.ntuples, tuple))
        if (status := self._next().status) != ExecStatus.PIPELINE_SYNC:
            raise psycopg.OperationalError(f"the server's answers are out of step: {status}")

    def _is_good(self, result: PGresult, errors: list[psycopg.Error]) -> bool:
        if result.status in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
            return True
        if result.status != ExecStatus.PIPELINE_ABORTED or not errors:
            errors.append(error_from_result(result))
        return False

    def _next(self) -> PGresult:
        """The next result; other threads run while the server is waited for."""
        while True:
            while self._pgconn.is_busy():
                self._readable.poll()
                self._pgconn.consume_input()
            result = self._pgconn.get_result()
            if result is not None:
                return result
            if self._pgconn.status == ConnStatus.BAD:
                raise psycopg.OperationalError("the connection was lost")


FRESH_SECONDS = 0.1  # what was opened longer ago is given up: its time has passed

#: What a transaction will ask first, in this life of the server, at a time (None: its own).
Ahead = Callable[[str, int | None], Sequence[Question]]


class Begun(NamedTuple):
    """The first columns of `set_up`."""

    now: int
    pid: int
    number: str  # of the transaction
    schema: int
    life: str | None
    place: int  # the number of the schema


class Opening(NamedTuple):
    """A transaction that is to be opened."""

    ahead: Ahead | None
    life: str  # of the server, as far as we know
    owned_now: int | None  # the time, where tests own it
    since: float  # monotonic
    ids: int = 0  # to be reserved for new jobs

    @property
    def questions(self) -> list[Question]:
        questions: list[Question] = [("begin_write", ()), ("set_up", ())]
        if self.ids:
            questions.append(("reserve_ids", (self.ids,)))
        if self.ahead is not None:
            questions += self.ahead(self.life, self.owned_now)
        return questions

    def opened(self, answers: Sequence[list[Row]]) -> Opened:
        _, (row,), *rest = answers
        begun = Begun(*row[: len(Begun._fields)])
        ids = [job_id for (job_id,) in rest.pop(0)] if self.ids else []
        return Opened(self, begun, ids, rest)


class Opened(NamedTuple):
    """A transaction that is open, and that nobody has used so far."""

    opening: Opening
    begun: Begun
    ids: list[int]
    answers: Sequence[list[Row]]  # to what was asked ahead

    @property
    def now(self) -> int:
        owned = self.opening.owned_now
        return self.begun.now if owned is None else owned

    def is_fresh(self, monotonic: float, owned_now: int | None) -> bool:
        """Whether its time is still the time."""
        is_young = monotonic - self.opening.since <= FRESH_SECONDS
        return is_young and self.opening.owned_now == owned_now
