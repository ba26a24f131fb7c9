# SPDX-License-Identifier: Apache-2.0
"""How does a thread that must not be held up ask a store?

The supervisor has signals and deadlines to serve: a server that does not answer may not keep it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from penstock.stores.store_future import Reply

T = TypeVar("T")


class Question(Generic[T]):
    """Owns at most one question that is not answered yet."""

    def __init__(self, ask: Callable[[], Reply[T]]) -> None:
        self._ask = ask
        self._reply: Reply[T] | None = None

    def answer(self, wait_seconds: float = 0.0) -> T | None:
        """The answer, once, as soon as it is there; None before. Asks if nothing is asked."""
        if self._reply is None:
            self._reply = self._ask()
        if not _comes(self._reply, wait_seconds):
            return None
        reply, self._reply = self._reply, None
        return reply.result()

    def settled(self, wait_seconds: float = 0.0) -> bool:
        """For what is asked only to be done: has it been? Raises what went wrong."""
        if self._reply is None:
            self._reply = self._ask()
        if not _comes(self._reply, wait_seconds):
            return False
        reply, self._reply = self._reply, None
        reply.result()
        return True

    def forget(self) -> None:
        """Ask anew next time: an answer to what was asked before now would be too old."""
        self._reply = None


def within(reply: Reply[T], seconds: float) -> T:
    """The answer if it comes soon; else TimeoutError, and what was asked may still happen."""
    if not _comes(reply, seconds):
        raise TimeoutError(f"no answer within {seconds:g} s")
    return reply.result()


def aside(call: Callable[[], T]) -> Reply[T]:
    """Do something that may take long in a thread of its own."""
    reply: Reply[T] = Reply()

    def run() -> None:
        try:
            value = call()
        except BaseException as error:
            reply.refuse(error)
        else:
            reply.resolve(value)

    threading.Thread(target=run, name="penstock-aside", daemon=True).start()
    return reply


def _comes(reply: Reply[T], seconds: float) -> bool:
    if not reply.done:
        there = threading.Event()
        reply.add_done_callback(there.set)  # also wakes a store that was not asked to begin yet
        if seconds > 0:
            there.wait(seconds)
    return reply.done
