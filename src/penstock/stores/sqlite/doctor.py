# SPDX-License-Identifier: Apache-2.0
"""Is a store's file sound, and of a schema that we know?

Nothing is written, made or migrated. The checks build upon each other: where one fails, those
that would only repeat its trouble are left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import apsw

from penstock.clock import MICROSECONDS, BootClock, Clock
from penstock.errors import StoreCorrupt, StoreError, StoreForeign, StoreUnsupported
from penstock.model.doctor_finding import Finding, problem, well
from penstock.model.job import WorkerId
from penstock.model.views import QueueFacts
from penstock.stores.retry import seen_twice
from penstock.stores.sql.call_reading import figures_of
from penstock.stores.sql.locking import locks_of
from penstock.stores.sql.slice_reading import datasets_of, open_plans_of
from penstock.stores.sql.unit_reading import failed_checks_of, ill_units_of
from penstock.stores.sqlite.checkup_place import Probe, place_findings
from penstock.stores.sqlite.connection import WAL_BYTES_MAX
from penstock.stores.sqlite.location_check import Version, beside, refuse_file, refuse_library
from penstock.stores.sqlite.looking import LogUnmerged, look
from penstock.stores.sqlite.open import identify, known_steps, statements
from penstock.stores.sqlite.read import SqliteReader

CHECK_SECONDS = 5.0  # the quick look at the whole file ends after this long
STEPS_BETWEEN_LOOKS = 10_000  # of SQLite's machine, between two looks at the clock
BROKEN_SHOWN = 3
RESTORE = "restore a backup with 'penstock restore FILE --yes'"
_MIB = 1024 * 1024


def library_finding(version: Version) -> Finding:
    """Is the SQLite that is linked in fit?"""
    try:
        refuse_library(version)
    except StoreUnsupported as error:
        return problem("sqlite", str(error))
    return well("sqlite", f"{'.'.join(map(str, version))}, without the bug of resetting the log")


def boot_finding(boot_clock: BootClock) -> Finding:
    """Can leases be told from those before the machine was started anew?"""
    boot_id = boot_clock.boot_time().boot_id
    if boot_id == "unknown":
        return problem(
            "boot",
            "This machine does not tell when it was booted, so leases from before a reboot may "
            "hold jobs for long; mount /proc, or run Penstock on Linux.",
        )
    return well("boot", f"id {boot_id}")


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
                f"{str(error.filename)!r} cannot be looked at: permission denied. Run Penstock as "
                "the owner of the store, or name another place with --store.",
            )
        except OSError as error:
            yield problem(
                "folder",
                f"{str(error.filename)!r} cannot be looked at: {error.strerror}. Name another "
                "place with --store.",
            )

    def _all(self) -> Iterator[Finding]:
        yield from place_findings(self._path, self._probe)
        if self._path.is_dir():
            return
        if not self._path.exists():
            yield well("store", f"{str(self._path)!r} is made when the first job is enqueued")
            return
        try:
            seen = seen_twice(self._look)
        except LogUnmerged as error:
            yield well("store", f"not looked at: {str(error)[0].lower()}{str(error)[1:-1]}")
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
            f"and {RESTORE}.",
        )

    def _look(self) -> _Seen:
        refuse_file(self._path)
        return look(self._path, self._see)

    def _see(self, connection: apsw.Connection) -> _Seen:
        version = identify(self._path, connection, self._queries, known_steps())
        known = len(known_steps())
        if version == known:
            findings = [well("store", f"{str(self._path)!r}, schema {version}")]
        else:
            text = f"{str(self._path)!r}, schema {version}; it becomes {known} when it is opened"
            findings = [well("store", text)]
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
            return well(
                "integrity", f"nothing found in {CHECK_SECONDS:g} s; --full looks at everything"
            )
        finally:
            connection.set_progress_handler(None)
        if found != ["ok"]:
            return self._corrupt(found[0].replace("\n", " "))
        return well("integrity", "the file is sound")

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
        return well("log", f"{size / _MIB:.1f} MiB")

    def _invariants(self, reader: SqliteReader) -> Finding:
        broken = reader.check()
        if not broken:
            return well("invariants", "all hold")
        more = f" (and {len(broken) - BROKEN_SHOWN} more)" if len(broken) > BROKEN_SHOWN else ""
        return problem(
            "invariants",
            f"The store contradicts itself: {' '.join(broken[:BROKEN_SHOWN])}{more} This is our "
            f"bug, please report it; {RESTORE}.",
        )

    def _facts(self, reader: SqliteReader) -> QueueFacts:
        boot = self._boot_clock.boot_time()
        return QueueFacts(
            stats=reader.stats(round(self._clock.now() * MICROSECONDS), boot),
            workers=reader.workers(boot),
            caps=reader.caps(),
            served=reader.outlook(WorkerId(""), "", boot).served_elsewhere,
            calls=figures_of(reader, None),
            units=ill_units_of(reader),
            failed_checks=failed_checks_of(reader),
            plans=tuple(open_plans_of(reader, None)),
            locks=tuple(locks_of(reader, boot)),
            datasets=len(datasets_of(reader)),
        )
