# SPDX-License-Identifier: Apache-2.0
"""Which signals stop a run, and who gets them afterwards?"""

from __future__ import annotations

import signal
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
