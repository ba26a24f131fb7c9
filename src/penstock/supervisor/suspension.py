# SPDX-License-Identifier: Apache-2.0
"""Ctrl-Z (SIGTSTP): a supervisor that is told to stop stops whatever it has started first.

Workers have process groups of their own, so a terminal reaches the supervisor only. Guards go on:
they end the others if the supervisor is killed while it is stopped.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType

from penstock.process_tree import signal_descendants
from penstock.worker.process_guard import GUARD_NAME


class Suspension:
    """Listens to SIGTSTP; main thread only."""

    def __init__(self, end_lapsed: Callable[[], list[int]]) -> None:
        """Listen, unless somebody else does.

        Args:
            end_lapsed: kills workers whose leases are over, before the others are continued; their
                pids. Called between any two steps of the main thread: it takes no lock.
        """
        self._end_lapsed = end_lapsed
        self._ended: list[int] | None = None
        self._listens = signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL
        if self._listens:
            signal.signal(signal.SIGTSTP, self._stop)

    def take_ended(self) -> list[int] | None:
        """The workers that were killed at the end of the last stop; None: there was no new one."""
        taken, self._ended = self._ended, None
        return taken

    def close(self) -> None:
        """Give the signal back."""
        if self._listens:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Stop, and go on here: the main thread may be waiting for one of those that stand."""
        signal_descendants(os.getpid(), signal.SIGSTOP, spared=GUARD_NAME)
        handler = signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.signal(number, handler)  # we go on
        self._ended = [*(self._ended or ()), *self._end_lapsed()]
        signal_descendants(os.getpid(), signal.SIGCONT)
