# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: moves the write-ahead log into the database.

SQLite's own way hides the errors of it. Here they are seen: an I/O error ends the store, a full
disk is waited out, and a reader that keeps an old state alive is named when the log has grown
large. The log is moved during the writer's turn, when no other writer makes it longer.
"""

from __future__ import annotations

import logging
from pathlib import Path

import apsw

from penstock.clock import Clock
from penstock.stores.sqlite import lock_holders
from penstock.stores.sqlite.location_check import beside

CHECKPOINT_PAGES = 1_000  # the log is moved when it holds this many
AGAIN_SECONDS = 1.0  # after a move that was not complete
TOLD_BYTES = 32 * 1024 * 1024  # a log above this that cannot be moved is told of
MEBIBYTE = 1024 * 1024

log = logging.getLogger("penstock.store")


class Checkpoints:
    """Watches the length of the log of one write connection. Used by the writer's thread."""

    def __init__(self, path: Path, connection: apsw.Connection, clock: Clock) -> None:
        self._path = path
        self._connection = connection
        self._clock = clock
        self._page_bytes = int(str(connection.pragma("page_size")))
        self._pages = 0  # in the log after the last commit
        self._tried_pages = 0
        self._again_monotonic = 0.0
        self._told_bytes = 0
        self._full_told = False
        connection.set_wal_hook(self._note)

    def _note(self, connection: apsw.Connection, name: str, pages: int) -> int:
        self._pages = pages
        return apsw.SQLITE_OK

    def run_if_due(self) -> None:
        """Move the log if it is long enough and the last try was not a moment ago."""
        pages = self._pages
        if pages < CHECKPOINT_PAGES:
            if self._told_bytes:
                log.warning("The log %s is short again.", self._name())
                self._told_bytes = 0
            self._tried_pages = 0
            return
        grown = pages >= self._tried_pages + CHECKPOINT_PAGES or pages < self._tried_pages
        if grown or self._clock.monotonic() >= self._again_monotonic:
            self.run()

    def run(self) -> None:
        """Move what can be moved; apsw.IOError and apsw.CorruptError are the caller's to tell."""
        self._tried_pages = self._pages
        self._again_monotonic = self._clock.monotonic() + AGAIN_SECONDS
        try:
            pages, moved = self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.BusyError:
            return  # another process is at it
        except apsw.FullError:
            if not self._full_told:
                self._full_told = True
                log.warning(
                    "No space left to move the log %s into the store; it grows until there is.",
                    self._name(),
                )
            return
        self._full_told = False
        if moved < pages:
            self._tell(pages * self._page_bytes)

    def _tell(self, size: int) -> None:
        """Say who keeps the log from being moved: once, and again when it has doubled."""
        if size < max(TOLD_BYTES, 2 * self._told_bytes):
            return
        self._told_bytes = size
        log.warning(
            "The log %s has grown to %d MiB, because %s reads an old state of the store and does "
            "not end. End that reader; the log then shrinks by itself.",
            self._name(),
            size // MEBIBYTE,
            lock_holders.named(lock_holders.readers(self._path)),
        )

    def _name(self) -> str:
        return repr(str(beside(self._path, "-wal")))
