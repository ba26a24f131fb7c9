# SPDX-License-Identifier: Apache-2.0
"""How does an idle worker of the memory store learn that there may be something to lease?

A version rises with everything that may be leased. It is a hint: whoever wakes asks for a lease.
"""

from __future__ import annotations

import asyncio


class Idlers:
    """Owns the wake-ups of one loop. Does not know what there is to lease."""

    def __init__(self) -> None:
        self._seen = 0  # the version of which the last lease call left nothing
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def saw(self, version: int) -> None:
        """A lease call has found all there was."""
        self._seen = version

    def wake(self, version: int) -> None:
        """Wake those who began to wait at another version."""
        for began, future in self._waiting:
            if began != version:
                _resolve(future)

    def wake_all(self) -> None:
        for _, future in self._waiting:
            _resolve(future)

    async def wait(self, version: int, timeout: float | None) -> None:
        """Return when the version has changed since the last lease call, or is late."""
        if version != self._seen or (timeout is not None and timeout <= 0):
            return
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        timer = None if timeout is None else loop.call_later(timeout, _resolve, future)
        self._waiting.append((version, future))
        try:
            await future
        finally:
            if timer is not None:
                timer.cancel()
            self._waiting.remove((version, future))


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
