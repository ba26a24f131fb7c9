# SPDX-License-Identifier: Apache-2.0
"""Who obeys the supervisor: what comes before the work, or the worker?"""

from __future__ import annotations

from typing import Protocol

from penstock.supervisor import protocol
from penstock.worker.config import Stopping
from penstock.worker.worker import Worker


class Lead(Protocol):
    """What comes before the work."""

    def stop(self) -> None: ...

    async def run(self) -> bool: ...


class Reins:
    """Passes words on to whoever is at work in this process. Belongs to its loop."""

    def __init__(self) -> None:
        self._lead: Lead | None = None
        self._worker: Worker | None = None
        self._kept: list[protocol.ToWorker] = []  # said before there was a worker
        self._is_stopped = False

    async def led_by(self, lead: Lead) -> bool:
        """Let this come first; False if no work shall follow."""
        self._lead = lead
        try:
            return not self._is_stopped and await lead.run() and not self._is_stopped
        finally:
            self._lead = None

    def take(self, worker: Worker) -> None:
        """From now on the worker obeys, also what was said before."""
        self._worker = worker
        for word in self._kept:
            self.obey(word)
        self._kept.clear()

    def obey(self, word: protocol.ToWorker) -> None:
        if isinstance(word, protocol.Stop | protocol.Abort):
            self._is_stopped = True
            if self._lead is not None:
                self._lead.stop()
        if self._worker is None:
            self._kept.append(word)
            return
        match word:
            case protocol.Drain():
                self._worker.drain()
            case protocol.Held():
                self._worker.hold.held_elsewhere(word.stops)
            case protocol.Stop():
                self._worker.stop(Stopping.GRACEFUL)
            case protocol.Abort():
                self._worker.stop(Stopping.NOW)
            case protocol.Go():
                pass  # it has begun
