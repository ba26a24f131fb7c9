# SPDX-License-Identifier: Apache-2.0
"""Whose turn is it to write?

SQLite lets waiting writers poll, so that some starve. A lock of the kernel beside the database
hands the turn on in the order of arrival. It is a courtesy, not the safety: that is SQLite's own
lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from pathlib import Path

from penstock.stores.sqlite import forking
from penstock.stores.sqlite.placing import as_file_error, beside


class Turn:
    """A lock file next to the database; one open file description per store object."""

    def __init__(self, database: Path) -> None:
        path = beside(database, "-turn")
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise as_file_error(error, database) from None
        forking.lock_file_opened(self._fd)
        with contextlib.suppress(OSError):  # whoever may use the store may take a turn
            os.fchmod(self._fd, stat.S_IMODE(database.stat().st_mode))

    def take(self, *, wait: bool = True) -> bool:
        """Take the turn; first come, first served. False if it is taken and we shall not wait."""
        if wait:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            return True
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def give(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        forking.lock_file_closed(self._fd)
        with contextlib.suppress(OSError):
            os.close(self._fd)
