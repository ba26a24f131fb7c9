# SPDX-License-Identifier: Apache-2.0
"""Opens the store of a file, applies missing migrations, and detects a replaced file.

A new store is made under another name and put in its place whole, so that an empty or half-made
file under the store's name is never ours, and is never taken for a new one.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypeVar

import apsw

from penstock import failpoints
from penstock.clock import Clock
from penstock.errors import (
    SchemaTooNew,
    StoreBusy,
    StoreError,
    StoreForeign,
    StoreReadOnly,
    StoreReplaced,
)
from penstock.stores.retry import seen_twice
from penstock.stores.sql.statements import Migration, read_migrations, read_queries
from penstock.stores.sqlite import location_check
from penstock.stores.sqlite.connection import (
    connect,
    connect_to_read,
    corrupt,
    disconnect,
    mapped_errors,
    prepare_to_write,
    snapshot,
)
from penstock.stores.sqlite.write_lock import WriteLock

PACKAGE = "penstock.stores.sqlite"
APPLICATION_ID = 0x50656E73  # "Pens", in the header of the file
OPEN_SECONDS = 30.0  # opening waits this long for somebody who holds the database
REPLACED_MAX = 5  # restores in a row under one opening

log = logging.getLogger("penstock.store")

T = TypeVar("T")


class Identity(NamedTuple):
    """Which file has a name; a restore gives the old one a second name before it replaces it."""

    device: int
    number: int
    names: int


Steps = tuple[Migration, ...]


@lru_cache(maxsize=1)
def statements() -> dict[str, str]:
    """The named statements of this backend, read once."""
    return read_queries(PACKAGE)


@lru_cache(maxsize=1)
def known_steps() -> tuple[Migration, ...]:
    """The migrations of this Penstock, read once."""
    return tuple(read_migrations(PACKAGE))


def open_to_write(
    path: Path, queries: dict[str, str], durability: str, clock: Clock, steps: Steps
) -> apsw.Connection:
    """Make the store if there is none, refuse what is none, and bring its schema up to date."""
    location_check.refuse_library(location_check.sqlite_version())
    location_check.refuse_place(path)
    return _anew_if_replaced(
        path,
        lambda: seen_twice(lambda: _made_and_opened(path, queries, durability, clock, steps)),
    )


def _made_and_opened(
    path: Path, queries: dict[str, str], durability: str, clock: Clock, steps: Steps
) -> apsw.Connection:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        location_check.refuse_open_to_all(path)
        location_check.refuse_planted(path)
        if path.exists():
            location_check.refuse_file(path)
        else:
            _create(path, queries, steps)
        location_check.refuse_unwritable(path)
    except OSError as error:
        raise location_check.as_file_error(error, path) from None
    return _patiently(clock, lambda: _opened(path, queries, durability, steps))


def _opened(path: Path, queries: dict[str, str], durability: str, steps: Steps) -> apsw.Connection:
    before = _identity(path)
    connection = connect(path)
    try:
        identify(path, connection, queries, steps)
        prepare_to_write(path, connection, durability)
        location_check.refuse_planted(path)  # from here on they are those that are used
        migrate(path, connection, queries, steps)
        if _identity(path) != before:
            raise StoreReplaced(
                f"The store {str(path)!r} was removed or replaced while it was opened; nothing was "
                "changed. Try again."
            )
    except BaseException:
        disconnect(connection)
        raise
    return connection


def open_to_read(
    path: Path, queries: dict[str, str], clock: Clock, steps: Steps, *, alone: bool = False
) -> apsw.Connection:
    """Open a store of the present schema, for reading only."""

    def attempt() -> apsw.Connection:
        return _patiently(clock, lambda: _opened_to_read(path, queries, steps, alone))

    return _anew_if_replaced(path, lambda: seen_twice(attempt))


def _opened_to_read(
    path: Path, queries: dict[str, str], steps: Steps, alone: bool
) -> apsw.Connection:
    try:
        connection = connect_to_read(path, alone=alone)
        try:
            version = identify(path, connection, queries, steps)
        except BaseException:
            disconnect(connection)
            raise
    except StoreReadOnly:
        raise StoreReadOnly(
            f"Cannot read the store {str(path)!r}: this user may neither read its log nor make the "
            "files that reading it needs. Give this user access to the file and its folder."
        ) from None
    if version != len(steps):
        disconnect(connection)
        raise StoreReadOnly(
            f"Cannot read the store {str(path)!r}: its schema {version} is older than this "
            "Penstock. Let a user who may write it open it once."
        )
    return connection


def _anew_if_replaced(path: Path, attempt: Callable[[], T]) -> T:
    """Try again if a restore replaces the file under us: nothing is wrong with the new one."""
    for _ in range(REPLACED_MAX):
        before = _identity(path)
        try:
            return attempt()
        except StoreError:
            if not _replaced(path, before):
                raise
    return attempt()


def _replaced(path: Path, before: Identity | None) -> bool:
    """Whether there is another file than before, once a restore that is under way has ended."""
    found = _identity(path)
    if found is None or (found == before and found.names == 1):
        return False
    try:
        lock = WriteLock(path)
    except StoreError:  # we may not write here
        return found != before
    try:
        lock.acquire()  # a restore has it until the new file is in place
        return _identity(path) != before
    finally:
        lock.release()
        lock.close()


def _identity(path: Path) -> Identity | None:
    try:
        about = path.stat()
    except OSError:
        return None
    return Identity(about.st_dev, about.st_ino, about.st_nlink)


def _patiently(clock: Clock, attempt: Callable[[], T]) -> T:
    """Try until the database is free; each try waits by itself."""
    until = clock.monotonic() + OPEN_SECONDS
    told = False
    while True:
        try:
            return attempt()
        except StoreBusy as error:
            if clock.monotonic() >= until:
                raise
            if not told:
                log.warning("Opening has to wait: %s", error)
                told = True


def _create(path: Path, queries: dict[str, str], steps: Steps) -> None:
    """Make a new store under the write lock, unless somebody was faster."""
    lock = WriteLock(path)
    try:
        lock.acquire()
        if path.exists():
            return
        making = location_check.beside(path, "-new")
        for left in (
            making,
            location_check.beside(making, "-wal"),
            location_check.beside(making, "-shm"),
        ):
            left.unlink(missing_ok=True)  # of somebody who died while making it
        os.close(os.open(making, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        connection = connect(making)
        try:
            prepare_to_write(making, connection, "full")
            _apply(making, connection, queries, steps)
        finally:
            disconnect(connection)
        # Whoever sees the name may be promised something: the way to it must be durable before.
        _sync_folders(path.parent)
        making.rename(path)
        _sync_folder(path.parent)
    finally:
        lock.release()
        lock.close()


def _sync_folders(folder: Path) -> None:
    """Make the way to a folder durable; any part of it may be new, whoever has made it."""
    device = folder.stat().st_dev
    for above in folder.parents:
        if above.stat().st_dev != device:
            return
        _sync_folder(above)


def _sync_folder(folder: Path) -> None:
    """A new name is durable when its folder is."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:  # a folder that may be entered, not read
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # this file system keeps folders in its own way
            raise
    finally:
        os.close(descriptor)


def identify(path: Path, connection: apsw.Connection, queries: dict[str, str], steps: Steps) -> int:
    """Refuse the database of another program, and one that is newer or not whole; its version."""
    with mapped_errors(path, "opening the store", connection), snapshot(connection, queries):
        owner = _number(connection, queries["application_id"])
        version = _number(connection, queries["schema_version"])
        objects = _objects(connection, queries)
    name, known = repr(str(path)), len(steps)
    if owner not in {0, APPLICATION_ID} or (owner == 0 and version == 0 and objects):
        raise StoreForeign(
            f"The file {name} is a database of another program (application id {owner:#x}), not a "
            "store of Penstock; it was left as it is. Name another place with --store."
        )
    if version > known:
        raise SchemaTooNew(
            f"The store {name} has schema {version}, made by a newer Penstock; this one knows "
            f"{known}. Upgrade Penstock to use it."
        )
    if version < 0 or (version == 0 and objects):
        raise corrupt(path, f"its schema version is {version}, but it has tables")
    sound = _sound_objects(steps[:version])
    lacking = sorted(sound.keys() - objects.keys())
    if lacking:
        raise corrupt(path, f"schema {version} without {lacking[0]!r}")
    triggers = sorted(name for name in objects.keys() - sound.keys() if objects[name].is_trigger)
    if triggers:
        raise corrupt(path, f"a trigger {triggers[0]!r} that Penstock has not made")
    return version


class SchemaObject(NamedTuple):
    """A table, an index, a view or a trigger of a file, and the statement that made it."""

    type: str
    statement: str  # in lower case, white space folded

    @property
    def is_trigger(self) -> bool:
        return self.type == "trigger"


def _objects(connection: apsw.Connection, queries: dict[str, str]) -> dict[str, SchemaObject]:
    return {
        str(name): SchemaObject(str(kind), " ".join(str(sql).lower().split()))
        for name, kind, sql in connection.execute(queries["schema_objects"])
    }


@lru_cache(maxsize=8)
def _sound_objects(steps: Steps) -> dict[str, SchemaObject]:
    """What a sound store has after these steps, by name."""
    connection = apsw.Connection(":memory:")
    for step in steps:
        connection.execute(step.script).fetchall()
    objects = _objects(connection, statements())
    connection.close()
    return objects


def first_difference(connection: apsw.Connection, version: int) -> str | None:
    """What of the schema is not as the migrations up to this version make it; None: nothing."""
    found, sound = _objects(connection, statements()), _sound_objects(known_steps()[:version])
    for name in sorted(found.keys() | sound.keys()):
        ours, there = sound.get(name), found.get(name)
        if ours is None and there is not None:
            return f"a {there.type} {name!r} that Penstock has not made"
        if ours != there:
            return f"{name!r} is not as Penstock has made it"
    return None


def _number(connection: apsw.Connection, query: str) -> int:
    return int(str(connection.execute(query).fetchall()[0][0]))


def migrate(path: Path, connection: apsw.Connection, queries: dict[str, str], steps: Steps) -> None:
    """Apply the missing steps under the write lock, all in one transaction.

    A process that dies in the middle leaves the old schema; the next one begins again.
    """
    with mapped_errors(path, "opening the store", connection):
        if _number(connection, queries["schema_version"]) == len(steps):
            return
    lock = WriteLock(path)
    try:
        lock.acquire()
        _apply(path, connection, queries, steps)
    finally:
        lock.release()
        lock.close()


def _apply(path: Path, connection: apsw.Connection, queries: dict[str, str], steps: Steps) -> None:
    with mapped_errors(path, "preparing the store", connection, committing=True):
        connection.execute(queries["begin_write"]).fetchall()
        try:
            version = identify(path, connection, queries, steps)  # another may have been faster
            failpoints.hit("migrate.begin")
            for step in steps[version:]:
                connection.execute(step.script).fetchall()
                failpoints.hit("migrate.step")
            connection.pragma("application_id", APPLICATION_ID)
            connection.pragma("user_version", len(steps))
            failpoints.hit("migrate.in_tx")
            connection.execute(queries["commit"]).fetchall()
        except apsw.SQLError as error:
            connection.execute(queries["rollback"]).fetchall()
            raise corrupt(path, f"its schema does not match its version: {error}") from error
        except BaseException:
            with contextlib.suppress(apsw.Error):
                connection.execute(queries["rollback"]).fetchall()
            raise
    failpoints.hit("migrate.committed")
