# SPDX-License-Identifier: Apache-2.0
"""How does something happen again and again outside of the event loop?"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod


class RepeatingThread(ABC):
    """Calls `run_once` every so many seconds in a thread of its own, until it is stopped."""

    def __init__(self, name: str, every_seconds: float) -> None:
        self._every_seconds = every_seconds
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def run_once(self) -> object:
        """Do it once."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End it; idempotent, safe before the start, and not held up by a call that hangs."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(self._every_seconds)

    def _run(self) -> None:
        while not self._end.wait(self._every_seconds):
            self.run_once()
