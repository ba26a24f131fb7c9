# SPDX-License-Identifier: Apache-2.0
"""Checks whether a server is fit to keep a store; changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg

from penstock.clock import MICROSECONDS, BootTime, SystemClock
from penstock.errors import SchemaTooNew, StoreError, StoreForeign, StoreUnsupported
from penstock.model.job import WorkerId
from penstock.model.views import Finding, QueueFacts, healthy, problem
from penstock.stores.postgres import errors
from penstock.stores.postgres.connection import (
    Address,
    Connected,
    PgConnection,
    closed_quietly,
    connect,
)
from penstock.stores.postgres.open import known_steps, statements, version_of
from penstock.stores.postgres.read import ServerReader
from penstock.stores.postgres.vacuum import DeadRows
from penstock.stores.retry import seen_twice
from penstock.stores.sql.apps import apps_of
from penstock.stores.sql.cooldowns import cooldowns
from penstock.stores.sql.journal import figures_of
from penstock.stores.sql.plans import locks_of
from penstock.stores.sql.schedules import failed_checks_of, failing_units_of, kept_ends_of
from penstock.stores.sql.slices import datasets_of, open_plans_of
from penstock.stores.sql.statements import Row

OLD_TRANSACTION_SECONDS = 300
SKEW_SECONDS = 60
DEAD_ROWS = 200_000
CONNECTIONS_SHARE = 0.85
BROKEN_SHOWN = 3


def postgres_findings(url: str, *, full: bool = False) -> list[Finding]:
    """One finding per check, in their order; those that build on a failed one are left out.

    With `full` every job is read, to see whether the store contradicts itself.
    """
    address = Address.of(url)
    queries = statements()
    try:
        connected = connect(address, queries)
    except StoreUnsupported as error:
        return [problem("server", str(error))]
    except psycopg.Error as error:
        return [
            problem("server", str(errors.as_final_error(error, address.shown, "connecting to")))
        ]

    def look() -> list[Finding]:
        try:
            return list(_Look(address, connected, queries, full=full).findings())
        except psycopg.Error as error:
            raise errors.as_final_error(error, address.shown, "looking at") from error

    try:
        return seen_twice(look)
    except StoreError as error:
        return [problem("store", str(error))]
    finally:
        closed_quietly(connected.connection)


def postgres_facts(url: str) -> QueueFacts | None:
    """What the queue is like; None if there is none that this Penstock knows, or may read."""
    address = Address.of(url)
    queries = statements()
    connected = None
    try:
        connected = connect(address, queries)
        if version_of(address, connected.connection, queries, known_steps()) != len(known_steps()):
            return None
        reader = _Reader(connected.connection, queries)
        boot = BootTime(connected.server.life, int(reader.value("server_time")))
        return QueueFacts(
            stats=reader.stats(boot.at, boot, None),
            workers=reader.workers(boot),
            caps=reader.caps(),
            served=reader.outlook(WorkerId(""), "", boot, None).served_elsewhere,
            calls=figures_of(reader, None),
            units=failing_units_of(reader),
            failed_checks=failed_checks_of(reader),
            plans=tuple(open_plans_of(reader, None, None)),
            apps=tuple(apps_of(reader, boot)),
            locks=tuple(locks_of(reader, boot)),
            datasets=len(datasets_of(reader, None)),
            kept=kept_ends_of(reader),
            cooldowns=tuple(cooldowns(reader, boot.at)),
        )
    except (psycopg.Error, StoreError):
        return None
    finally:
        if connected is not None:
            closed_quietly(connected.connection)


class _Reader(ServerReader):
    """Asks on a connection that is there."""

    def __init__(self, connection: PgConnection, queries: dict[str, str]) -> None:
        self._connection = connection
        self._queries = queries

    def rows(self, query: str, *parameters: object) -> list[Row]:
        return self._connection.execute(self._queries[query], parameters).fetchall()

    def array(self, query: str, *parameters: object) -> list[Any]:
        found = self.rows(query, *parameters)
        return [row[0] for row in found] if found and len(found[0]) == 1 else list(found)


class _Look:
    """Owns one look at one server."""

    def __init__(
        self, address: Address, connected: Connected, queries: dict[str, str], *, full: bool
    ) -> None:
        self._address = address
        self._connected = connected
        self._queries = queries
        self._full = full

    def findings(self) -> Iterator[Finding]:
        server = self._connected.server
        if server.is_standby:
            yield problem("server", str(errors.read_only(self._address.shown)))
        else:
            version = server.version // 10_000
            yield healthy("server", f"PostgreSQL {version} at {self._address.shown}, the primary")
        yield self._way()
        yield from self._durability()
        yield self._clock()
        yield self._connections()
        try:
            version = self._version()
        except (SchemaTooNew, StoreForeign) as error:
            yield problem("schema", str(error))
            return
        if version == 0:
            yield self._place()
            return
        if version < len(known_steps()):
            yield healthy("schema", f"{version}; the next open brings it to {len(known_steps())}")
            return
        yield healthy("schema", f"{version}, as this Penstock knows it")
        if not server.is_standby:
            yield self._rights()
        yield self._transactions()
        yield self._dead_rows()
        if self._full:
            try:
                yield self._invariants()
            except SchemaTooNew as error:
                yield problem("schema", str(error))

    def _version(self) -> int:
        return version_of(self._address, self._connected.connection, self._queries, known_steps())

    def _rows(self, query: str) -> list[Row]:
        return self._connected.connection.execute(self._queries[query]).fetchall()

    def _way(self) -> Finding:
        if self._connected.is_direct:
            return healthy("connection", "direct: workers are told of new work at once")
        return healthy(
            "connection",
            "through a pooler: notifications may not arrive, so idle workers ask every half "
            "second; give workers a direct URL if that is too slow",
        )

    def _durability(self) -> Iterator[Finding]:
        settings: dict[str, str] = dict(self._rows("doctor_settings"))
        for name in ("fsync", "full_page_writes"):
            if settings.get(name) != "on":
                yield problem(
                    "durability",
                    f"The server runs with {name}=off: a power cut may destroy the store. Set "
                    f"{name}=on in postgresql.conf.",
                )
                return
        yield healthy("durability", "fsync and full_page_writes are on")

    def _clock(self) -> Finding:
        ((theirs,),) = self._rows("server_time")
        skew = SystemClock.now() - theirs / MICROSECONDS
        if abs(skew) > SKEW_SECONDS:
            return problem(
                "clock",
                f"The clock here is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the "
                "server's. Leases are not affected, but times shown here are wrong; use NTP.",
            )
        return healthy("clock", f"{abs(skew):.1f} s from the server's")

    def _connections(self) -> Finding:
        ((used, most),) = self._rows("doctor_connections")
        text = f"{used} of {most} in use"
        if used > CONNECTIONS_SHARE * most:
            return problem(
                "connections",
                f"The server has {text}: new workers will be refused. Raise max_connections, or "
                "put a pooler in between.",
            )
        return healthy("connections", text)

    def _place(self) -> Finding:
        ((may_create,),) = self._rows("doctor_may_create")
        if may_create:
            return healthy("schema", "made when the store is first opened")
        return problem(
            "schema",
            "There is no store yet, and this user may not make one. Let the owner of the database "
            "run 'create schema penstock authorization USER'.",
        )

    def _invariants(self) -> Finding:
        """Each is one statement, so what others write meanwhile contradicts nothing."""
        broken = _Reader(self._connected.connection, self._queries).check()
        if not broken:
            return healthy("invariants", "all hold")
        self._version()  # they are those of a schema, and another process may have migrated it
        more = f" (and {len(broken) - BROKEN_SHOWN} more)" if len(broken) > BROKEN_SHOWN else ""
        return problem(
            "invariants",
            f"The store contradicts itself: {' '.join(broken[:BROKEN_SHOWN])}{more} This is our "
            "bug, please report it; restore a backup with PostgreSQL's own tools.",
        )

    def _rights(self) -> Finding:
        lacking = [name for name, ok in self._rows("doctor_rights") if not ok]
        if lacking:
            return problem(
                "rights",
                f"This user may not use the table penstock.{lacking[0]}. Grant select, insert, "
                "update and delete on all tables of the schema 'penstock', and usage on its "
                "sequences.",
            )
        return healthy("rights", "all tables can be read and written")

    def _transactions(self) -> Finding:
        ((unseen, seconds, who),) = self._rows("doctor_oldest")
        if seconds is not None and seconds > OLD_TRANSACTION_SECONDS:
            return problem(
                "transactions",
                f"A transaction of {who} is {seconds:.0f} s old and keeps dead rows from being "
                "removed, so leasing becomes slower. End it, or set "
                "idle_in_transaction_session_timeout.",
            )
        if unseen:
            return healthy(
                "transactions",
                f"{unseen} sessions cannot be seen; grant pg_read_all_stats to this user",
            )
        return healthy("transactions", "none is old")

    def _dead_rows(self) -> Finding:
        ((dead, live),) = self._rows("doctor_dead")
        if dead > DEAD_ROWS and dead > 2 * live:
            return problem(
                "vacuum",
                f"The table penstock.hot has about {dead:,} dead rows for {live:,} live ones: "
                "vacuum does not keep up. Look for old transactions and replication slots, and "
                "whether autovacuum is on.",
            )
        text = f"about {dead:,} dead rows for {live:,} live ones in penstock.hot"
        (row,) = self._rows("count_dead")
        if not DeadRows(*row).may_vacuum:
            text += "; this user may not vacuum, so that is left to autovacuum alone"
        return healthy("vacuum", text)
