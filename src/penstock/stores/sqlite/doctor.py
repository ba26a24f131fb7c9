# SPDX-License-Identifier: Apache-2.0
"""Checks whether a store's file is sound, and of a schema that we know.

Nothing is written, made or migrated. The checks build upon each other: where one fails, those
that would only repeat its trouble are left out.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import apsw

from penstock.clock import MICROSECONDS, BootClock, Clock
from penstock.errors import StoreCorrupt, StoreError, StoreForeign, StoreUnsupported
from penstock.model.job import WorkerId
from penstock.model.views import Finding, QueueFacts, healthy, problem
from penstock.sentences import command
from penstock.stores.retry import seen_twice
from penstock.stores.sql.apps import apps_of
from penstock.stores.sql.cooldowns import cooldowns
from penstock.stores.sql.journal import figures_of
from penstock.stores.sql.plans import locks_of
from penstock.stores.sql.schedules import failed_checks_of, failing_units_of, kept_ends_of
from penstock.stores.sql.slices import datasets_of, open_plans_of
from penstock.stores.sqlite.connection import WAL_BYTES_MAX
from penstock.stores.sqlite.location_check import (
    Version,
    beside,
    file_system_of,
    is_remote,
    refuse_file,
    refuse_library,
)
from penstock.stores.sqlite.open import identify, known_steps, statements
from penstock.stores.sqlite.read import LogUnmerged, SqliteReader, look

SPACE_BYTES_MIN = WAL_BYTES_MAX  # the log alone may take as much
BESIDE = ("", "-wal", "-shm", "-turn")
_MIB = 1024 * 1024


class Probe(Protocol):
    """What can be asked of the machine."""

    def refusal(self, path: Path) -> str | None:
        """Why this file or folder may not be written; None: it may."""
        ...

    def free_bytes(self, folder: Path) -> int: ...

    def file_system(self, folder: Path) -> str: ...

    def user(self) -> int: ...


class SystemProbe:
    """Asks the kernel, which also knows of read-only mounts and immutable files."""

    def refusal(self, path: Path) -> str | None:
        # Not by opening it: to close it again would take locks away from SQLite.
        wanted = os.W_OK | (os.X_OK if path.is_dir() else 0)
        if os.access(path, wanted, effective_ids=os.access in os.supports_effective_ids):
            return None
        return "the file system is read-only" if _read_only(path) else "permission denied"

    def free_bytes(self, folder: Path) -> int:
        found = os.statvfs(folder)
        return found.f_bavail * found.f_frsize

    def file_system(self, folder: Path) -> str:
        return file_system_of(folder.resolve())

    def user(self) -> int:
        return os.geteuid()


def _read_only(folder: Path) -> bool:
    return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)


def place_findings(path: Path, probe: Probe) -> Iterator[Finding]:
    """One finding per check of the folder and the files of a store."""
    folder = path.parent
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        yield problem(
            "folder", f"{str(folder)!r} is a file, but the store needs a folder there; rename it."
        )
        return
    if path.is_dir():
        yield problem(
            "folder", f"{str(path)!r} is a folder; name a file for the store with --store."
        )
        return
    yield _writable(path, folder, probe)
    yield _local(path, folder, probe)
    yield _space(folder, probe)
    if path.exists():
        yield _private(path, probe)


def _writable(path: Path, folder: Path, probe: Probe) -> Finding:
    refusal = probe.refusal(folder)
    if refusal is not None:
        return problem(
            "folder",
            f"The folder {str(folder)!r} of the store cannot be written: {refusal}. Give this user "
            "write access to it (or mount it writable), or name another place with --store.",
        )
    for end in BESIDE:
        file = beside(path, end)
        refusal = probe.refusal(file) if file.exists() else None
        if refusal is not None:
            return problem(
                "folder",
                f"The file {str(file)!r} of the store cannot be written: {refusal}. Give this user "
                "write access to it, or name another place with --store.",
            )
    what = "" if folder == path.parent else f"; {str(path.parent)!r} is made in it when needed"
    return healthy("folder", f"{str(folder)!r} can be written{what}")


def _local(path: Path, folder: Path, probe: Probe) -> Finding:
    kind = probe.file_system(folder)
    if is_remote(kind):
        return problem(
            "file system",
            f"The store {str(path)!r} is on a file system that is not known to be local ({kind}), "
            "where SQLite can lose data; name a local place with --store.",
        )
    return healthy("file system", kind or "unknown")


def _space(folder: Path, probe: Probe) -> Finding:
    free = probe.free_bytes(folder)
    if free < SPACE_BYTES_MIN:
        return problem(
            "space",
            f"Only {free // _MIB:,} MiB are free in {str(folder)!r}, less than the log of a busy "
            f"store may take ({SPACE_BYTES_MIN // _MIB} MiB); free some.",
        )
    return healthy("space", f"{free // _MIB:,} MiB are free")


def _private(path: Path, probe: Probe) -> Finding:
    user = probe.user()
    for end in BESIDE:
        file = beside(path, end)
        if not file.exists():
            continue
        found = file.stat()
        if found.st_uid != user:
            return problem(
                "private",
                f"{str(file)!r} belongs to {_name(found.st_uid)}, not to {_name(user)}, who asks; "
                "run Penstock as its owner, or give it to this user with 'chown'.",
            )
        if found.st_mode & 0o077:
            return problem(
                "private",
                f"{str(file)!r} is open to other users (mode {stat.S_IMODE(found.st_mode):04o}); "
                f"close it with 'chmod 600 {file}'.",
            )
    mode = stat.S_IMODE(path.parent.stat().st_mode)
    if mode & 0o022 and not mode & stat.S_ISVTX:
        return problem(
            "private",
            f"Other users may replace files in {str(path.parent)!r} (mode {mode:04o}); close it "
            f"with 'chmod 700 {path.parent}'.",
        )
    return healthy("private", f"the files are {_name(user)}'s alone")


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"


CHECK_SECONDS = 5.0  # the quick look at the whole file ends after this long
STEPS_BETWEEN_LOOKS = 10_000  # of SQLite's machine, between two looks at the clock
BROKEN_SHOWN = 3


def _restore() -> str:
    return f"restore a backup with '{command('restore', 'FILE', '--yes')}'"


def library_finding(version: Version) -> Finding:
    """Whether the SQLite that is linked in is fit."""
    try:
        refuse_library(version)
    except StoreUnsupported as error:
        return problem("sqlite", str(error))
    return healthy("sqlite", f"{'.'.join(map(str, version))}, without the bug of resetting the log")


def boot_finding(boot_clock: BootClock) -> Finding:
    """Whether leases can be told from those before the machine was started anew."""
    boot_id = boot_clock.boot_time().boot_id
    if boot_id == "unknown":
        return problem(
            "boot",
            "This machine has no boot id, so leases from before a reboot may hold jobs for a long "
            "time; mount /proc, or run Penstock on Linux.",
        )
    return healthy("boot", f"id {boot_id}")


@dataclass(frozen=True, slots=True)
class _Seen:
    findings: list[Finding]
    facts: QueueFacts | None


class Checkup:
    """Owns one look at one store. `facts` is there after `findings` if the queue can be read."""

    def __init__(
        self, path: Path, probe: Probe, clock: Clock, boot_clock: BootClock, *, full: bool
    ) -> None:
        self.facts: QueueFacts | None = None
        self._path = Path(os.path.realpath(path))
        self._probe = probe
        self._clock = clock
        self._boot_clock = boot_clock
        self._full = full
        self._queries = statements()

    def findings(self) -> Iterator[Finding]:
        """One finding per check, in their order."""
        try:
            yield from self._all()
        except PermissionError as error:
            yield problem(
                "folder",
                f"{str(error.filename)!r} cannot be read: permission denied. Run Penstock as "
                "the owner of the store, or name another place with --store.",
            )
        except OSError as error:
            yield problem(
                "folder",
                f"{str(error.filename)!r} cannot be read: {error.strerror}. Name another "
                "place with --store.",
            )

    def _all(self) -> Iterator[Finding]:
        yield from place_findings(self._path, self._probe)
        if self._path.is_dir():
            return
        if not self._path.exists():
            yield healthy("store", f"{str(self._path)!r} is made when the first job is enqueued")
            return
        try:
            seen = seen_twice(self._look)
        except LogUnmerged as error:
            yield healthy("store", f"not checked: {str(error)[0].lower()}{str(error)[1:-1]}")
        except StoreForeign as error:
            yield problem("store", str(error))
        except StoreCorrupt as error:
            sentence = problem("integrity", str(error))
            yield sentence if error.__cause__ is None else self._corrupt(str(error.__cause__))
        except StoreError as error:  # newer, foreign, locked for good
            yield problem("store", str(error))
        else:
            yield from seen.findings
            self.facts = seen.facts

    def _corrupt(self, what: str) -> Finding:
        return problem(
            "integrity",
            f"The store {str(self._path)!r} is corrupted ({what.rstrip('.')}); stop its workers "
            f"and {_restore()}.",
        )

    def _look(self) -> _Seen:
        refuse_file(self._path)
        return look(self._path, self._see)

    def _see(self, connection: apsw.Connection) -> _Seen:
        version = identify(self._path, connection, self._queries, known_steps())
        known = len(known_steps())
        if version == known:
            findings = [healthy("store", f"{str(self._path)!r}, schema {version}")]
        else:
            text = f"{str(self._path)!r}, schema {version}; it becomes {known} when it is opened"
            findings = [healthy("store", text)]
        findings += [self._integrity(connection), self._log()]
        if not all(finding.ok for finding in findings) or version != known:
            return _Seen(findings, None)
        reader = SqliteReader(self._path, connection, self._queries, known)
        if self._full:
            findings.append(self._invariants(reader))
        return _Seen(findings, self._facts(reader))

    def _integrity(self, connection: apsw.Connection) -> Finding:
        query = self._queries["check_file_fully" if self._full else "check_file"]
        until = self._clock.monotonic() + CHECK_SECONDS
        if not self._full:
            connection.set_progress_handler(
                lambda: self._clock.monotonic() > until, STEPS_BETWEEN_LOOKS
            )
        try:
            found = [str(row[0]) for row in connection.execute(query).fetchall()]
        except apsw.InterruptError:
            return healthy(
                "integrity", f"nothing found in {CHECK_SECONDS:g} s; --full looks at everything"
            )
        finally:
            connection.set_progress_handler(None)
        if found != ["ok"]:
            return self._corrupt(found[0].replace("\n", " "))
        return healthy("integrity", "the file is sound")

    def _log(self) -> Finding:
        log = beside(self._path, "-wal")
        size = log.stat().st_size if log.exists() else 0
        if size > 2 * WAL_BYTES_MAX:
            return problem(
                "log",
                f"The log {str(log)!r} has grown to {size // _MIB:,} MiB, because somebody reads "
                f"an old state of the store all the time; find who by 'fuser {self._path}' and end "
                "it.",
            )
        return healthy("log", f"{size / _MIB:.1f} MiB")

    def _invariants(self, reader: SqliteReader) -> Finding:
        broken = reader.check()
        if not broken:
            return healthy("invariants", "all hold")
        more = f" (and {len(broken) - BROKEN_SHOWN} more)" if len(broken) > BROKEN_SHOWN else ""
        return problem(
            "invariants",
            f"The store contradicts itself: {' '.join(broken[:BROKEN_SHOWN])}{more} This is our "
            f"bug, please report it; {_restore()}.",
        )

    def _facts(self, reader: SqliteReader) -> QueueFacts:
        boot = self._boot_clock.boot_time()
        now = round(self._clock.now() * MICROSECONDS)
        return QueueFacts(
            stats=reader.stats(now, boot, None),
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
            cooldowns=tuple(cooldowns(reader, now)),
        )
