# SPDX-License-Identifier: Apache-2.0
"""How does Ctrl-C stop a long command between two steps, and not inside one?"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def interrupts_between(steps: Iterator[T]) -> Iterator[Iterator[T]]:
    """Hand the steps on; KeyboardInterrupt comes only while one is waited for.

    What is done with a step is done to its end, so that whoever counts has counted right. A second
    Ctrl-C comes through at once. In other threads, and where somebody else handles the signal,
    nothing is changed.
    """
    ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if not ours:
        yield steps
        return
    gate = _Gate()
    signal.signal(signal.SIGINT, gate.note)
    try:
        yield gate.through(steps)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class _Gate:
    """Knows whether a step is being waited for, and whether the signal came meanwhile."""

    def __init__(self) -> None:
        self._waiting = False
        self._came = False

    def note(self, number: int, frame: FrameType | None) -> None:
        again, self._came = self._came, True
        if self._waiting or again:
            raise KeyboardInterrupt

    def through(self, steps: Iterator[T]) -> Iterator[T]:
        while True:
            self._waiting = True
            if self._came:
                raise KeyboardInterrupt
            try:
                step = next(steps)
            except StopIteration:
                return
            finally:
                self._waiting = False
            yield step
