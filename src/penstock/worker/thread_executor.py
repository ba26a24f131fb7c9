# SPDX-License-Identifier: Apache-2.0
"""The thread executor runs the bodies of `def` tasks."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol

Done = Callable[[Any, BaseException | None], None]


class ThreadRunner(Protocol):
    """Runs a function somewhere and reports its end on the loop."""

    def submit(self, body: Callable[[], Any], done: Done) -> None: ...

    def close(self) -> None: ...


class ThreadPool:
    """Threads that are made when needed and wait for more; daemons, so that they hold nobody up."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._inbox: queue.SimpleQueue[tuple[Callable[[], Any], Done] | None] = queue.SimpleQueue()
        self._idle = 0
        self._count = 0
        self._lock = threading.Lock()

    def submit(self, body: Callable[[], Any], done: Done) -> None:
        with self._lock:
            if self._idle:
                self._idle -= 1
            else:
                self._count += 1
                name = f"penstock-task-{self._count}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
        self._inbox.put((body, done))

    def _work(self) -> None:
        while (item := self._inbox.get()) is not None:
            body, done = item
            value, error = None, None
            try:
                value = body()
            except BaseException as raised:
                error = raised
            with self._lock:
                self._idle += 1
            try:
                self._loop.call_soon_threadsafe(done, value, error)
            except RuntimeError:  # the loop has ended: nobody listens any more
                return
            del item, body, done, value, error

    def close(self) -> None:
        for _ in range(self._count):
            self._inbox.put(None)


class InlineRunner:
    """Runs the body on the loop itself: for virtual time, where threads have no place."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def submit(self, body: Callable[[], Any], done: Done) -> None:
        self._loop.call_soon(self._run, body, done)

    def _run(self, body: Callable[[], Any], done: Done) -> None:
        value, error = None, None
        try:
            value = body()
        except BaseException as raised:
            error = raised
        done(value, error)

    def close(self) -> None:
        """There is nothing to end."""
