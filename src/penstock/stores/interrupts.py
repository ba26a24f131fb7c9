# SPDX-License-Identifier: Apache-2.0
"""How is a piece of work kept whole when Ctrl-C comes in its middle?"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def deferred_interrupt() -> Iterator[bool]:
    """Keep Python's own Ctrl-C away until the end; False if that cannot be had here.

    Only the main thread is ever interrupted, and only the handler that raises KeyboardInterrupt
    is known to us; whoever has installed another one may raise whatever it likes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield True
        return
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield False
        return
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)

    signal.signal(signal.SIGINT, note)
    try:
        yield True
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if came:
            raise KeyboardInterrupt
