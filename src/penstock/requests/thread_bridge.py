# SPDX-License-Identifier: Apache-2.0
"""Runs coroutines on the event loop for threads, which wait for their results."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from penstock.errors import AttemptOver, ProviderNotAvailableHere, UsageError
from penstock.requests import attempt_context

T = TypeVar("T")


class ThreadBridge:
    """Owns the calls of threads. Their coroutines are cancelled when their attempt is over."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tasks: set[asyncio.Task[Any]] = set()
        self._pid = os.getpid()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<ThreadBridge, {len(self._tasks)} calls>"

    def call(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the loop, with this thread's context, and wait for its end."""
        if asyncio._get_running_loop() is not None:
            raise UsageError(
                "A blocking call of a provider would stop the loop that it is made on; use the "
                "async one (`provider.http`, `async with`), or make the task a plain `def`."
            )
        if os.getpid() != self._pid:
            raise ProviderNotAvailableHere(
                "A client of a provider is used in a forked process, where no run admits its "
                "requests; use it in the process of the task."
            )
        coroutine = self._run(make)
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:  # the loop is closed
            coroutine.close()
            raise _ended() from None
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            attempt = attempt_context.current.get()
            if attempt is None or attempt.stop_reason is None:
                raise _ended() from None
            raise AttemptOver(
                f"Job {attempt.job!r} {attempt.stop_reason}: its request was interrupted."
            ) from None
        except BaseException:
            future.cancel()
            raise

    def call_soon(self, what: Callable[[], object]) -> None:
        """Call a function on the loop, without waiting for it."""
        try:
            self._loop.call_soon_threadsafe(what)
        except RuntimeError:  # the loop is closed, and with it whatever was held
            return

    def close(self) -> None:
        """Cancel every call: the run ends."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()

    async def _run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        task = asyncio.current_task()
        if self._is_closed or task is None:
            raise _ended()
        attempt = attempt_context.current.get()
        self._tasks.add(task)
        if attempt is not None:
            attempt.on_stop(task.cancel)
        try:
            return await make()
        finally:
            self._tasks.discard(task)
            if attempt is not None:
                attempt.forget(task.cancel)


def _ended() -> ProviderNotAvailableHere:
    return ProviderNotAvailableHere("A provider is used after its run has ended.")
