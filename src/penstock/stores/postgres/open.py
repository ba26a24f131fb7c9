# SPDX-License-Identifier: Apache-2.0
"""Opens the store of a database, and applies the migrations that it lacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import psycopg
from psycopg.errors import DeadlockDetected, SerializationFailure

from penstock import failpoints
from penstock.clock import SystemClock
from penstock.errors import SchemaTooNew, StoreError, StoreForeign, StoreMissing, StoreReadOnly
from penstock.stores.postgres import errors
from penstock.stores.postgres.connection import (
    Address,
    Connected,
    PgConnection,
    ask_server,
    closed_quietly,
    connect,
)
from penstock.stores.postgres.store import PostgresStore
from penstock.stores.protocol import Store
from penstock.stores.retry import seen_twice
from penstock.stores.sql.statements import Migration, read_migrations, read_queries

PACKAGE = "penstock.stores.postgres"
STATEMENT_MS = 9_000  # below what a connection is given up after: the server's word is better
LOCK_MS = 5_000
IDLE_MS = 10_000
CROSSINGS_MAX = 20  # with transactions of busy workers; each costs the server's deadlock_timeout

Steps = tuple[Migration, ...]


@lru_cache(maxsize=1)
def statements() -> dict[str, str]:
    """The named statements of this backend, read once."""
    return read_queries(PACKAGE)


@lru_cache(maxsize=1)
def known_steps() -> Steps:
    """The migrations of this Penstock, read once."""
    return tuple(read_migrations(PACKAGE))


def statements_for(durability: str) -> dict[str, str]:
    """The same, with what a write transaction sets for itself."""
    named = dict(statements())
    named["set_up"] = named["set_up"].format(
        statement_ms=STATEMENT_MS,
        lock_ms=LOCK_MS,
        idle_ms=IDLE_MS,
        synchronous="on" if durability == "full" else "off",
    )
    return named


def open_postgres(
    url: str,
    *,
    durability: str = "full",
    reading_will_do: bool = False,
    make: bool = True,
    server_time: Callable[[], int] | None = None,
    migrations: Sequence[Migration] | None = None,
) -> Store:
    """Open the store of a database, make it if it is missing, and bring its schema up to date.

    Without `make` a store that is missing is StoreMissing, and the database stays as it is. With
    `reading_will_do` a standby is opened all the same; each write is then refused. A server that
    cannot be reached is StoreUnavailable at once. `server_time` replaces the server's clock and
    `migrations` what this Penstock knows, for tests.
    """
    address = Address.of(url)
    queries = statements_for(durability)
    steps = known_steps() if migrations is None else tuple(migrations)
    connected = seen_twice(
        lambda: _opened(address, queries, steps, make=make, reading_will_do=reading_will_do)
    )
    return PostgresStore(address, queries, SystemClock(), len(steps), connected, server_time)


def _opened(
    address: Address, queries: dict[str, str], steps: Steps, *, make: bool, reading_will_do: bool
) -> Connected:
    connected = _connected(address, queries)
    try:
        if not make and version_of(address, connected.connection, queries, steps) == 0:
            raise StoreMissing(address.shown)
        if connected.server.is_standby:
            _refuse_standby(address, connected, queries, steps, reading_will_do=reading_will_do)
        elif migrate(address, connected, queries, steps):
            connected = connected._replace(server=ask_server(connected.connection, queries))
    except psycopg.Error as error:
        closed_quietly(connected.connection)
        raise errors.as_final_error(error, address.shown, "opening") from error
    except BaseException:
        closed_quietly(connected.connection)
        raise
    return connected


def _connected(address: Address, queries: dict[str, str]) -> Connected:
    try:
        return connect(address, queries)
    except psycopg.Error as error:
        raise errors.as_final_error(error, address.shown, "connecting to") from error


def _refuse_standby(
    address: Address,
    connected: Connected,
    queries: dict[str, str],
    steps: Steps,
    *,
    reading_will_do: bool,
) -> None:
    version = version_of(address, connected.connection, queries, steps)
    if not reading_will_do:
        raise errors.read_only(address.shown)
    if version != len(steps):
        raise StoreReadOnly(
            f"Cannot read the store {address.shown}: its schema {version} is not that of this "
            "Penstock, and a standby cannot be changed. Open the primary once."
        )


def version_of(
    address: Address, connection: PgConnection, queries: dict[str, str], steps: Steps
) -> int:
    """The version of the schema, 0 without one; refuses what is not ours, or is newer."""
    row = connection.execute(queries["schema_exists"]).fetchone()
    there, ours, used = row if row is not None else (False, False, False)
    if not there or not used:
        return 0
    if not ours:
        raise StoreForeign(
            f"The schema 'penstock' of {address.shown} belongs to another program; it was left as "
            "it is. Name another database."
        )
    found = connection.execute(queries["schema_version"]).fetchone()
    version = int(found[0]) if found is not None else 0
    if version > len(steps):
        raise SchemaTooNew(
            f"The store {address.shown} has schema {version}, made by a newer Penstock; this one "
            f"knows {len(steps)}. Upgrade Penstock to use it."
        )
    return version


def migrate(address: Address, connected: Connected, queries: dict[str, str], steps: Steps) -> bool:
    """Apply the missing steps, all in one transaction, under a lock of the store; True if any.

    Workers of the older schema may still be busy: a transaction that crosses with one of theirs is
    repeated.
    """
    connection = connected.connection
    if version_of(address, connection, queries, steps) == len(steps):
        return False
    for _ in range(CROSSINGS_MAX):
        try:
            _apply(address, connection, queries, steps)
        except (DeadlockDetected, SerializationFailure):
            connection.execute(queries["rollback"])
        else:
            return True
    _apply(address, connection, queries, steps)
    return True


def _apply(
    address: Address, connection: PgConnection, queries: dict[str, str], steps: Steps
) -> None:
    connection.execute(queries["begin"])
    try:
        connection.execute(queries["migrate_at_leisure"])
        connection.execute(queries["lock_migrations"])
        version = version_of(address, connection, queries, steps)  # another may have been faster
        failpoints.hit("migrate.begin")
        if version == 0:
            _refuse_squatter(address, connection, queries)
            if not ask_server(connection, queries).schema:
                connection.execute(queries["make_schema"])
            connection.execute(queries["make_versions"])
        elif version < len(steps):
            connection.execute(queries["lock_tables"])
        for step in steps[version:]:
            connection.execute(step.script)
            connection.execute(queries["note_migration"], (step.number,))
            failpoints.hit("migrate.step")
        failpoints.hit("migrate.in_tx")
        connection.execute(queries["commit"])
    except StoreError:
        connection.execute(queries["rollback"])
        raise
    failpoints.hit("migrate.committed")


def _refuse_squatter(address: Address, connection: PgConnection, queries: dict[str, str]) -> None:
    found = connection.execute(queries["schema_squatter"]).fetchone()
    if found is not None:
        raise StoreForeign(
            f"The schema 'penstock' of {address.shown} was made by the role {found[0]!r}, which "
            "could replace the store's tables; it was left as it is. Let the owner of the database "
            "run 'drop schema penstock' or 'alter schema penstock owner to …'."
        )


LAST_CHARACTER = "\U0010ffff"


def keys_with_prefix(url: str, start: str, limit: int) -> list[str]:
    """The first keys that begin with a text, by the index of keys."""
    address = Address.of(url)
    queries = statements()
    connection = None
    try:
        connection = connect(address, queries).connection
        found = connection.execute(
            queries["keys_between"], (start, start + LAST_CHARACTER, limit)
        ).fetchall()
    except psycopg.Error as error:
        raise errors.as_final_error(error, address.shown, "looking at") from error
    finally:
        closed_quietly(connection)
    return [str(key) for (key,) in found]
