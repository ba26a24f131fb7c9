# SPDX-License-Identifier: Apache-2.0
"""How are idle workers of this process woken, by whichever thread has news for them?

A version rises with everything that may be leased. It is a hint: whoever wakes asks for a lease.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


class Waiters:
    """Owns the wake-ups of one store in one process. Does not know what there is to lease."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards all of the following
        self._wakes: set[Callable[[], None]] = set()
        self._version = 0
        self._seen = 0  # the version that the last one who waited went away with

    @property
    def has_news(self) -> bool:
        """Has anything been made that may be leased, since somebody last went to look?"""
        return self._version != self._seen

    @property
    def are_waiting(self) -> bool:
        """Does anybody wait for news?"""
        return bool(self._wakes)

    def saw(self) -> None:
        """Somebody goes to look."""
        with self._lock:
            self._seen = self._version

    def tell(self) -> None:
        """There may be something to lease; wake all."""
        with self._lock:
            self._version += 1
        self.wake()

    def wake(self) -> None:
        """Wake all, who shall look for themselves whether there is."""
        with self._lock:
            for wake in self._wakes:
                with suppress(RuntimeError):  # its loop is closed
                    wake()

    @contextmanager
    def joined(self) -> Iterator[asyncio.Event]:
        """What is set when this loop is woken, as long as it waits."""
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(woken.set)

        with self._lock:
            self._wakes.add(wake)
        try:
            yield woken
        finally:
            with self._lock:
                self._wakes.discard(wake)
