# SPDX-License-Identifier: Apache-2.0
"""Restores a backup in the place of a store, so that no earlier worker or open file can harm it.

The backup is copied beside the store and made ready there: migrated, every lease voided, all tokens
above those that anybody may still hold. Then one rename puts it in place. The old file stays under
a dated name. Whoever still has it open finds, before the next write, that its file has moved.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import apsw

from penstock.clock import (
    MICROSECONDS,
    BootClock,
    Clock,
    SystemBootClock,
    SystemClock,
    blocking_sleep,
    to_datetime,
)
from penstock.errors import (
    SchemaTooNew,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreForeign,
    UsageError,
)
from penstock.ids import IdSource
from penstock.model.views import RestorePlan, RestoreReport, WorkerView
from penstock.model.worker import living_workers
from penstock.process_identity import is_gone
from penstock.stores.sqlite.backup import (
    check_store,
    copy_backup,
    count_jobs,
    make_durable,
    refuse_companion,
    refuse_unnameable,
    unfinished,
)
from penstock.stores.sqlite.connection import busy, connect, disconnect, mapped_errors, snapshot
from penstock.stores.sqlite.location_check import beside, size_of
from penstock.stores.sqlite.open import identify, known_steps, statements
from penstock.stores.sqlite.read import SqliteReader
from penstock.stores.sqlite.store import SqliteStore
from penstock.stores.sqlite.write_lock import WriteLock

HOLD_SECONDS = 10.0  # how long a restore waits until nobody else writes
HOLD_PAUSE_SECONDS = 0.05
WORKERS_NAMED = 5


@dataclass(frozen=True, slots=True)
class _Old:
    """The store that is to be replaced, while nobody else can write to it."""

    path: Path
    highest_token: int | None  # None: it cannot be read
    merged: bool  # its log is empty


class Restore:
    """Owns one restore of a file into the place of a store. Nothing changes before `run`."""

    def __init__(
        self,
        backup: Path,
        store: Path,
        ids: IdSource,
        *,
        clock: Clock | None = None,
        boot_clock: BootClock | None = None,
    ) -> None:
        self._backup = backup
        self._store = Path(os.path.realpath(store))
        self._ids = ids
        self._clock = clock or SystemClock()
        self._boot_clock = boot_clock or SystemBootClock()
        self._queries = statements()

    @property
    def _replaces(self) -> bool:
        """Whether there is a store that would be replaced."""
        return os.path.lexists(self._store)

    def check(self) -> RestorePlan:
        """Refuse what cannot be restored: an unsound file, a foreign or a newer one, a folder."""
        if not self._backup.is_file():
            raise UsageError(f"There is no backup {str(self._backup)!r}; name another file.")
        if not os.access(self._backup, os.R_OK):
            raise UsageError(f"{str(self._backup)!r} cannot be read; give this user access to it.")
        if self._replaces and self._backup.samefile(self._store):
            raise UsageError(f"{str(self._backup)!r} is the store itself; name a backup of it.")
        refuse_companion(self._store, self._backup)
        refuse_unnameable(self._backup)
        if self._store.is_dir():
            raise UsageError(f"{str(self._store)!r} is a folder; name another with --store.")
        check_store(self._backup, self._queries, full=False)
        replaced = None
        if self._replaces:
            try:
                self._refuse_alive()
            except StoreForeign:
                raise
            except StoreCorrupt:
                pass  # nobody can use it
            with contextlib.suppress(StoreError):  # corrupt, or of another schema
                replaced = count_jobs(self._store, self._queries)
        return RestorePlan(count_jobs(self._backup, self._queries), self._replaces, replaced)

    def run(self) -> RestoreReport:
        """Put the backup in the place of the store."""
        self.check()
        with contextlib.suppress(OSError):  # what is wrong with it is told by the next line
            self._store.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        staged = self._store.with_name(f".{self._ids.new_id(self._store.name[:100])}.restoring")
        with unfinished(staged):  # whatever goes wrong, the copy goes, too
            jobs = copy_backup(self._backup, staged, self._queries)
            with self._held() as old:
                voided = self._void(staged, old)
                size = staged.stat().st_size
                kept = self._swap(staged, old)
        return RestoreReport(jobs, size, voided, kept)

    def _void(self, staged: Path, old: _Old | None) -> int:
        """Migrate the copy and free it from everybody who owned something in it.

        Where nobody knows which tokens were handed out since the backup, they go on from the
        microseconds since 1970: no job was ever leased as often as that.
        """
        above = None if old is None else old.highest_token
        if above is None:
            above = round(self._clock.now() * MICROSECONDS)
        store = SqliteStore.open(staged, clock=self._clock, boot_clock=self._boot_clock)
        try:
            voided = store.void_leases(above).result()
        finally:
            store.close()
        connection = connect(staged)
        try:
            with mapped_errors(staged, "restoring the store", connection):
                connection.execute(self._queries["one_file"]).fetchall()
        finally:
            disconnect(connection)
        make_durable(staged)
        return voided

    def _swap(self, staged: Path, old: _Old | None) -> Path | None:
        """Keep the old file under another name, and put the new one in its place.

        The log and its index go before the rename: beside the new file, they would be taken for
        its own. An empty log is no loss if we die between; one that cannot be merged belongs to a
        file that cannot be read, and is kept with it.
        """
        kept = None if old is None else self._keep(old)
        try:
            if old is not None and kept is not None:
                _set_aside(old, kept)
                make_durable(self._store.parent)  # the log is gone before the new file is there
            os.replace(staged, self._store)
        except BaseException:
            if kept is not None:
                _take_back(kept, self._store)
            raise
        make_durable(self._store.parent)
        return kept

    def _keep(self, old: _Old) -> Path:
        moment = to_datetime(round(self._clock.now() * MICROSECONDS)).strftime("%Y%m%dT%H%M%SZ")
        name = f"{old.path.name}.replaced-{moment}"
        kept, number = old.path.with_name(name), 1
        while os.path.lexists(kept):
            number += 1
            kept = old.path.with_name(f"{name}-{number}")
        try:
            os.link(old.path, kept)
        except OSError:  # a file system without hard links
            os.rename(old.path, kept)
        return kept

    # Other users of the store.

    @contextmanager
    def _held(self) -> Iterator[_Old | None]:
        """Keep every writer out until the new file is in place."""
        if not self._replaces:
            yield None
            return
        lock = WriteLock(self._store)
        try:
            self._take(lock)
            with contextlib.ExitStack() as locks:
                yield self._lock(locks)
        finally:
            lock.release()
            lock.close()

    def _take(self, lock: WriteLock) -> None:
        until = self._clock.monotonic() + HOLD_SECONDS
        while not lock.acquire(wait=False):
            if self._clock.monotonic() > until:
                raise busy(self._store)
            blocking_sleep(HOLD_PAUSE_SECONDS)

    def _lock(self, locks: contextlib.ExitStack) -> _Old:
        """Merge the log of the old store and lock it; one that cannot be read is not locked."""
        try:
            connection = connect(self._store)
            locks.callback(disconnect, connection)
            with mapped_errors(self._store, "replacing the store", connection):
                self._merge_and_lock(connection)
            self._refuse_living(connection)
            return _Old(self._store, self._highest_token(connection), merged=True)
        except StoreForeign:
            raise
        except StoreCorrupt:
            return _Old(self._store, None, merged=False)

    def _merge_and_lock(self, connection: apsw.Connection) -> None:
        log = beside(self._store, "-wal")
        until = self._clock.monotonic() + HOLD_SECONDS
        while True:
            blocked = connection.execute(self._queries["merge_log"]).fetchall()[0][0]
            connection.execute(self._queries["begin_write"]).fetchall()
            if not blocked and size_of(log) == 0:
                return
            connection.execute(self._queries["rollback"]).fetchall()
            if self._clock.monotonic() > until:  # somebody reads for very long
                raise busy(self._store)
            blocking_sleep(HOLD_PAUSE_SECONDS)

    def _highest_token(self, connection: apsw.Connection) -> int | None:
        try:
            identify(self._store, connection, self._queries, known_steps())
            return int(str(connection.execute(self._queries["highest_token"]).fetchall()[0][0]))
        except (SchemaTooNew, apsw.SQLError):
            return None

    def _refuse_alive(self) -> None:
        connection = connect(self._store)
        try:
            with (
                mapped_errors(self._store, "reading the store", connection),
                snapshot(connection, self._queries),
            ):
                with contextlib.suppress(SchemaTooNew):
                    identify(self._store, connection, self._queries, known_steps())
                self._refuse_living(connection)
        finally:
            disconnect(connection)

    def _refuse_living(self, connection: apsw.Connection) -> None:
        known = len(known_steps())
        reader = SqliteReader(self._store, connection, self._queries, known)
        try:
            workers = reader.workers(self._boot_clock.boot_time())
        except SchemaTooNew:
            return  # of a newer schema, or an empty file: nobody of ours can use it
        alive = living_workers(workers, is_gone)
        if alive:
            raise StoreBusy(_living(self._store, alive))


def _set_aside(old: _Old, kept: Path) -> None:
    """Nothing but the file itself stays in its place."""
    for end in ("-shm", "-wal", "-journal"):
        with contextlib.suppress(FileNotFoundError):
            if old.merged:
                beside(old.path, end).unlink()
            else:
                beside(old.path, end).rename(beside(kept, end))


def _take_back(kept: Path, store: Path) -> None:
    """The exchange failed: the old file is the store again, under one name."""
    if store.exists():
        kept.unlink()
    else:
        kept.rename(store)


def _living(path: Path, alive: list[WorkerView]) -> str:
    names = [f"{worker.id} (pid {worker.pid} on {worker.host})" for worker in alive]
    more = "" if len(names) <= WORKERS_NAMED else f" and {len(names) - WORKERS_NAMED} more"
    verb = "worker is" if len(alive) == 1 else "workers are"
    return (
        f"{len(alive)} {verb} alive on the store {str(path)!r}: {', '.join(names[:WORKERS_NAMED])}"
        f"{more}; nothing was changed. Stop what runs the queue, or wait until the lease of a dead "
        "one has ended, and try again."
    )
