# SPDX-License-Identifier: Apache-2.0
"""The write lock of a store: writers of all processes take turns.

SQLite lets waiting writers poll, so that some starve. A lock of the kernel beside the database
hands the turn on in the order of arrival. It is a courtesy, not the safety: that is SQLite's own
lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import stat
import threading
from pathlib import Path

from penstock.stores.sqlite import fork_guard, lock_holders
from penstock.stores.sqlite.location_check import as_file_error, beside

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
TOLD_SECONDS = 2.0  # a wait for the turn that is longer is told of
LOOKS = 4  # in that time

log = logging.getLogger("penstock.store")


class WriteLock:
    """A lock file next to the database; one open file description per store object."""

    def __init__(self, database: Path) -> None:
        path = beside(database, "-turn")
        try:
            self._fd = os.open(path, _FLAGS, 0o600)
        except OSError as error:
            raise as_file_error(error, database) from None
        fork_guard.lock_file_opened(self._fd)
        self._watch = _WaitWatch(database)
        with contextlib.suppress(OSError):  # whoever may use the store may take a turn
            os.fchmod(self._fd, stat.S_IMODE(database.stat().st_mode))

    def acquire(self, *, wait: bool = True) -> bool:
        """Take the turn; first come, first served. False if it is taken and we must not wait."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                return False
            with self._watch:
                fcntl.flock(self._fd, fcntl.LOCK_EX)
        return True

    def release(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        self._watch.close()
        fork_guard.lock_file_closed(self._fd)
        with contextlib.suppress(OSError):
            os.close(self._fd)


class _WaitWatch:
    """Sees waits that do not end, such as for a process that was stopped during its turn.

    The kernel's wait cannot be cut into pieces without losing the place in the queue, so a thread
    looks at it from outside. It is started by the first wait, and a look costs next to nothing.
    """

    def __init__(self, database: Path) -> None:
        self._database = database
        self._waits = 0  # begun and ended ones together: odd while one lasts
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def __enter__(self) -> None:
        self._waits += 1
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="penstock-turn", daemon=True)
            self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._waits += 1

    def close(self) -> None:
        self._closed.set()

    def _run(self) -> None:
        """Tell of one that has the turn at every look; among many, each of them has it shortly."""
        seen, looks = (0, [0]), 0
        while not self._closed.wait(TOLD_SECONDS / LOOKS):
            waits = self._waits
            if waits % 2 == 0:
                looks = 0
                continue
            now = (waits, lock_holders.write_lock_holders(self._database))
            looks = looks + 1 if now == seen else 0
            seen = now
            if looks == LOOKS:
                self._tell(now[1])

    def _tell(self, takers: list[int]) -> None:
        log.warning(
            "The write lock of the store %r has been held by %s for more than %g s, so writing has "
            "to wait. End that process if it is stuck.",
            str(self._database),
            lock_holders.named(takers),
            TOLD_SECONDS,
        )
