# SPDX-License-Identifier: Apache-2.0
"""The writer's session with the server: transactions, reconnects, commits in doubt.

Each transaction opens with its own settings and the server's time; nothing is left in the session.
A commit whose answer is lost is not guessed at: the server is asked what became of its number.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import psycopg

from penstock import failpoints
from penstock.clock import BootTime, Clock, blocking_sleep
from penstock.errors import (
    InternalError,
    SchemaTooNew,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreReadOnly,
    StoreUnavailable,
    StoreUnknown,
    StoreUnsupported,
)
from penstock.ids import SystemIds
from penstock.stores.group_commit import AGAIN_SECONDS, Contended
from penstock.stores.postgres import errors
from penstock.stores.postgres.connection import (
    CALL_SECONDS,
    Address,
    Connected,
    Guard,
    Server,
    ask_server,
    closed_quietly,
    connect,
)
from penstock.stores.postgres.lane_cache import LaneCache
from penstock.stores.postgres.pipeline import Ahead, Begun, Opened, Opening, Question, RoundTrip
from penstock.stores.postgres.transaction import PostgresTransaction, changing
from penstock.stores.retry import Outage, RetryDelay
from penstock.stores.sql.statements import Row, newer_schema

EPOCH_TOKENS = 2**32  # tokens of another life of the server lie this far above
UNKNOWN_PAUSE_SECONDS = 0.02

log = logging.getLogger("penstock.store")


class PostgresSession:
    """Owns one connection for writing; connects again by itself. Used by one thread at a time."""

    def __init__(
        self,
        address: Address,
        queries: dict[str, str],
        clock: Clock,
        guard: Guard,
        schema: int,
        first: Connected | None = None,
        server_time: Callable[[], int] | None = None,
    ) -> None:
        self._address = address
        self._queries = queries
        self._changing = changing(queries)
        self._clock = clock
        self._guard = guard
        self._schema = schema
        self._server_time = server_time  # tests own the time
        self._connected: Connected | None = None
        self._cursor: psycopg.RawCursor[Any] | None = None
        self._round_trip: RoundTrip | None = None
        self._delay = RetryDelay(SystemIds().random)
        self._outage = Outage(log, clock)
        self._lanes = LaneCache(clock)
        self._tx: PostgresTransaction | None = None
        self._begun: Begun | None = None
        self._ahead: Ahead | None = None
        self._opened: Opened | None = None  # with the last commit
        self._mark: tuple[Any, ...] = ()
        self._began_monotonic = 0.0
        self._closing = False
        if first is not None:
            self._use(first)

    def expect(self, ahead: Ahead | None) -> None:
        """A hint from any thread: the next transaction may ask this with its begin."""
        self._ahead = ahead

    def begin(self, *, wait: bool) -> PostgresTransaction:
        ahead, self._ahead = self._ahead, None  # only for this one: it may write
        if self._connected is None:
            if not wait:
                raise StoreBusy(f"The store {self._address.shown} is being connected to.")
            self._connect()
        try:
            opened = self._opened_before() or self._open(self._opening(ahead))
            begun, life = opened.begun, opened.opening.life
            server = self._server_now(begun)
        except psycopg.Error as error:
            raise self._not_begun(error, wait=wait) from error
        self._began_monotonic = self._clock.monotonic()
        if begun.schema != self._schema:
            self.rollback()
            raise newer_schema(self._address.shown, begun.schema, self._schema)
        ahead, now = opened.opening.ahead, opened.now
        if ahead is not None and not begun.life == server.life == life:
            self.rollback()
            return self.begin(wait=wait)
        self._lanes.bound()
        self._begun = begun
        self._tx = PostgresTransaction(
            self._current_cursor(),
            self._current_round_trip(),
            self._queries,
            self._changing,
            now,
            BootTime(server.life, now),
            self._lanes,
            self._arm,
        )
        if begun.life != server.life:
            self._enter_life(server.life, begun.life)
        if ahead is not None:
            self._tx.learn(ahead(life, now), opened.answers)
        return self._tx

    def _opening(self, ahead: Ahead | None, ids: int = 0) -> Opening:
        """What opens the next transaction, with what it will ask first."""
        connected = self._server()
        if not connected.is_direct:  # it may lead to anybody
            ahead = None
        since = self._clock.monotonic()
        return Opening(ahead, connected.server.life, self._owned_now(), since, ids)

    def _owned_now(self) -> int | None:
        return None if self._server_time is None else self._server_time()

    def _opened_before(self) -> Opened | None:
        """The transaction that was opened with the last commit, unless that was long ago."""
        opened, self._opened = self._opened, None
        if opened is None:
            return None
        if not opened.is_fresh(self._clock.monotonic(), self._owned_now()):
            self.rollback()
            return None
        return opened

    def _server_now(self, begun: Begun) -> Server:
        """The server that the connection leads to now; a pooler or a restore may have changed it.

        A restore may put another schema into the same database under an open connection.
        """
        connected = self._server()
        if not connected.is_direct:
            server = ask_server(connected.connection, self._queries)
        else:
            server = connected.server._replace(schema=begun.place)
        if server.life != connected.server.life:
            self._connected = connected._replace(server=server)
            self._lanes.clear()
        return server

    def _open(self, opening: Opening) -> Opened:
        self._arm()
        try:
            return opening.opened(self._current_round_trip().ask(opening.questions))
        except psycopg.Error as error:
            if opening.ahead is None or errors.is_lost(error):
                raise
            self.rollback()  # another version's tables, or a lock: who asks again is told
            return self._open(opening._replace(ahead=None))

    def _not_begun(self, error: psycopg.Error, *, wait: bool) -> StoreError:
        """A connection that was idle may have been lost long ago: only a fresh one tells."""
        mapped = errors.as_store_error(error, self._address.shown, "opening a transaction on")
        self._drop()
        if isinstance(mapped, Contended):
            if not wait:
                return StoreBusy(str(mapped))
            return StoreUnavailable(*mapped.args)
        return mapped

    def _enter_life(self, life: str, before: str | None) -> None:
        """The store lies on another server or timeline than its last writer saw.

        It was restored or failed over, so its last commits may be missing: whoever held something
        in the old life is dead, and tokens go on far above those that may have been handed out.
        """
        tx = self._current()
        try:
            tx.one_at_a_time()
            if tx.first("read_meta", "cluster") == life:
                return
            if before is not None:
                floor = int(tx.value("highest_token")) + EPOCH_TOKENS
                tx.run("write_meta", "token_floor", str(floor))
                log.warning(
                    "The store %s lives on another server or timeline than before (%s, was %s): it "
                    "was restored or failed over. All leases from before are void; what was "
                    "acknowledged last may be missing.",
                    self._address.shown,
                    life,
                    before,
                )
            tx.run("write_meta", "cluster", life)
        except psycopg.Error as error:
            mapped = errors.as_store_error(error, self._address.shown, "writing to")
            self.rollback()
            raise StoreUnavailable(*mapped.args) from error

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def elapsed(self) -> float:
        return self._clock.monotonic() - self._began_monotonic

    def savepoint(self) -> None:
        self._mark = self._current().mark()

    def release_savepoint(self) -> None:
        return

    def rollback_savepoint(self) -> bool:
        tx = self._current()
        if not tx.is_untouched_since(self._mark):
            return False
        tx.reset(self._mark)
        return True

    def commit(self, *, more: bool) -> None:
        failpoints.hit("commit.begin")
        tx, begun = self._current(), self._begun
        tx.flush_early()
        opening = None
        # Older servers pass on what was told only when they are outside of transactions.
        if more and not tx.made_work and self._server().is_direct:
            ahead, self._ahead = self._ahead, None
            opening = self._opening(ahead, self._lanes.lacking(tx.copied))
        try:
            answers = tx.commit(() if opening is None else opening.questions)
        except psycopg.Error as error:
            if errors.is_clean(error) or begun is None:
                raise
            self._find_out(begun, tx.witness, error)
            opening = answers = None
        self._tx = None
        self._guard.until = None
        if opening is None:
            return
        if answers is None:
            self.rollback()  # only the commit came off
            return
        self._opened = opening.opened(answers)
        self._lanes.ids += self._opened.ids

    def _find_out(self, begun: Begun, witness: Question | None, error: psycopg.Error) -> None:
        """Find out whether it was committed: returns if so; Contended if not, else StoreUnknown."""
        before = self._server().server
        said = errors.first_line(error)
        self._drop()
        until = self._clock.monotonic() + AGAIN_SECONDS
        while self._clock.monotonic() < until and not self._closing:
            try:
                if self._connected is None:
                    self._connect()
                fate = self._fate(begun, witness, before)
            except psycopg.Error:
                self._drop()
                blocking_sleep(UNKNOWN_PAUSE_SECONDS)
                continue
            except (StoreUnavailable, StoreReadOnly, StoreUnsupported):
                continue
            if fate == "committed":
                log.info("A commit whose answer was lost has been found to be done.")
                return
            if fate == "aborted":
                raise Contended(
                    f"The connection to {self._address.shown} was lost too early: {said}."
                ) from error
            if fate is None:
                break
            blocking_sleep(UNKNOWN_PAUSE_SECONDS)
        raise StoreUnknown(
            f"The connection to {self._address.shown} was lost while committing ({said}), and what "
            "became of it cannot be found out. Repeat the call: nothing is done twice."
        ) from error

    def _fate(self, begun: Begun, witness: Question | None, before: Server) -> str | None:
        """What became of a transaction; None if nobody knows.

        A server that crashed forgets the numbers that it had given to transactions of which
        nothing was on the disk, and gives them to others: then a commit may be another's, and only
        what ours has written can tell.
        """
        now = self._server().server
        if now.life != before.life:
            return None
        try:
            ((fate,),) = self._ask("transaction_fate", begun.number)
        except psycopg.errors.InvalidParameterValue:  # a number that was not given out so far
            return "aborted"
        if now.start == before.start:
            if fate == "in progress":
                self._ask("end_backend", begun.pid)
            return str(fate) if fate else None
        if fate != "committed":
            return "aborted" if fate else None
        if witness is None:
            return None
        query, parameters = witness
        ((is_there,),) = self._ask(query, *parameters)
        return "committed" if is_there else "aborted"

    def _ask(self, query: str, *parameters: object) -> list[Row]:
        self._arm()
        return self._current_cursor().execute(self._queries[query], parameters).fetchall()

    def after_commit(self) -> None:
        return

    def rollback(self) -> None:
        self._tx = self._opened = None
        if self._connected is None:
            return
        try:
            self._arm()
            self._current_round_trip().ask((("rollback", ()),))
            self._guard.until = None
        except psycopg.Error:
            self._drop()

    def translated(self, error: BaseException) -> BaseException:
        if not isinstance(error, psycopg.Error):
            return error
        mapped = errors.as_store_error(error, self._address.shown, "writing to")
        if errors.is_lost(error):
            self._drop()
        if type(mapped) in (StoreError, StoreCorrupt):
            newer = self._newer_schema()
            if newer is not None:
                newer.__cause__ = error
                return newer
        if type(mapped) is not StoreError:
            return mapped
        ours = InternalError(f"{mapped} This is a bug of Penstock; please report it.")
        ours.__cause__ = error
        return ours

    def _newer_schema(self) -> SchemaTooNew | None:
        """Whether another process has migrated the tables since the transaction began."""
        self.rollback()
        try:
            ((found,),) = self._ask("schema_version")
        except psycopg.Error:
            return None
        if found == self._schema:
            return None
        return newer_schema(self._address.shown, found, self._schema)

    def close(self, *, sound: bool) -> None:
        self._closing = True
        self._drop()

    def interrupt(self) -> None:
        """Let whoever waits for the server wait no longer; called by another thread."""
        self._closing = True
        self._guard.give_up()

    def _connect(self) -> None:
        """One try; StoreUnavailable after a pause if nobody answers."""
        try:
            connected = connect(self._address, self._queries)
        except psycopg.Error as error:
            raise self._unreachable(error) from error
        if connected.server.is_standby:
            closed_quietly(connected.connection)
            self._pause()
            raise errors.read_only(self._address.shown)
        self._use(connected)
        self._outage.ended()
        self._delay.reset()

    def _unreachable(self, error: psycopg.Error) -> StoreError:
        mapped = errors.as_store_error(error, self._address.shown, "connecting to")
        if isinstance(mapped, StoreUnsupported):
            mapped = StoreUnavailable(*mapped.args)
        else:
            mapped = errors.unreachable(self._address.shown, errors.first_line(error))
        self._outage.began(mapped)
        self._pause()
        return mapped

    def _pause(self) -> None:
        seconds = self._delay.next_seconds()
        if not self._closing:
            blocking_sleep(seconds)

    def _use(self, connected: Connected) -> None:
        self._connected = connected
        self._lanes.clear()  # another server may have given their numbers to others
        self._cursor = psycopg.RawCursor(connected.connection)
        self._round_trip = RoundTrip(
            connected.connection, self._queries, prepares=connected.is_direct
        )
        self._guard.watch_over(connected.connection)

    def _drop(self) -> None:
        if self._connected is not None:
            self._guard.watch_over(None)
            closed_quietly(self._connected.connection)
            self._connected = self._cursor = self._round_trip = self._opened = None

    def _arm(self) -> None:
        self._guard.until = self._clock.monotonic() + CALL_SECONDS

    def _current(self) -> PostgresTransaction:
        if self._tx is None:
            raise InternalError(
                "No transaction is open. This is a bug of Penstock; please report it."
            )
        return self._tx

    def _current_cursor(self) -> psycopg.RawCursor[Any]:
        if self._cursor is None:
            raise psycopg.OperationalError("the connection is closed")
        return self._cursor

    def _current_round_trip(self) -> RoundTrip:
        if self._round_trip is None:
            raise psycopg.OperationalError("the connection is closed")
        return self._round_trip

    def _server(self) -> Connected:
        if self._connected is None:
            raise psycopg.OperationalError("the connection is closed")
        return self._connected
