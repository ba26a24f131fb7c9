# SPDX-License-Identifier: Apache-2.0
"""The signals that stop a run, and the death signal of its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


def stop_signals() -> tuple[signal.Signals, ...]:
    """Ctrl-C, SIGTERM, and the terminal's end (SIGHUP), unless `nohup` has switched that off."""
    wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return wanted[:2] if ignored else wanted


def ignore_late_signals() -> None:
    """The run has ended in good order: a signal that could only kill the process on its way out
    comes to nothing."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.SIG_IGN)


@contextmanager
def borrowed_signals(stop: Callable[[], object]) -> Iterator[None]:
    """Call `stop` at each signal that stops a run; the host gets its own handlers back.

    A host that listens to SIGHUP itself keeps it: many reload their settings then. Only the main
    thread may listen to signals; elsewhere nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def note(number: int, frame: FrameType | None) -> None:
        stop()

    wanted = [n for n in stop_signals() if n is not signal.SIGHUP or _is_free(n)]
    former = {number: signal.signal(number, note) for number in wanted}
    try:
        yield
    finally:
        for number, handler in former.items():
            if handler is not None:  # None: not made by Python, and out of reach
                signal.signal(number, handler)


def _is_free(number: signal.Signals) -> bool:
    return signal.getsignal(number) is signal.SIG_DFL


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


_SET_PARENT_DEATH_SIGNAL = 1  # prctl's PR_SET_PDEATHSIG


def end_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Get this signal when the thread that started this process is gone, where that is known."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, int(number), 0, 0, 0)
    if os.getppid() != parent:  # it died before we asked
        os._exit(1)
