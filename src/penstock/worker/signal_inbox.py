# SPDX-License-Identifier: Apache-2.0
"""How do signals reach a process that waits in a selector, without tearing its work?"""

from __future__ import annotations

import signal
import socket
from types import FrameType

from penstock.worker.signals import stop_signals


class SignalInbox:
    """Notes the signals that stop a run, and can be waited for in a selector; main thread only."""

    def __init__(self) -> None:
        self._came: list[int] = []
        self._reading, self._writing = socket.socketpair()
        for end in (self._reading, self._writing):
            end.setblocking(False)
        fd = self._writing.fileno()
        self._former_fd = signal.set_wakeup_fd(fd, warn_on_full_buffer=False)
        self._former = {number: signal.signal(number, self._note) for number in stop_signals()}

    def fileno(self) -> int:
        return self._reading.fileno()

    def take(self) -> list[int]:
        """What came since the last call."""
        try:
            while self._reading.recv(4096):
                pass
        except BlockingIOError:
            pass
        taken, self._came = self._came, []
        return taken

    def close(self) -> None:
        """Give the signals back to whoever had them."""
        signal.set_wakeup_fd(self._former_fd)
        for number, handler in self._former.items():
            signal.signal(number, handler)
        self._reading.close()
        self._writing.close()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came.append(number)
