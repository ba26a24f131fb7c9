# SPDX-License-Identifier: Apache-2.0
"""The answer of a store to come, for a loop and for a thread alike."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from typing import Generic, TypeVar

T = TypeVar("T")


class Reply(Generic[T]):
    """An answer that will come when it is durable: `await` it, or ask for `.result()` in a thread.

    Owns one value or error and the wake-up of whoever waits. Does not know how the work is done.
    """

    __slots__ = ("_done", "_error", "_help", "_lock", "_start", "_value", "_waiters", "_withdraw")

    def __init__(
        self,
        withdraw: Callable[[], bool] | None = None,
        help_out: Callable[[], None] | None = None,
        start: Callable[[], None] | None = None,
    ) -> None:
        self._done = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._waiters: list[Callable[[], None]] = []
        self._withdraw = withdraw
        self._help = help_out  # lets a thread that would only wait do the work itself
        self._start = start  # wakes the store's thread, if it was not woken before

    @classmethod
    def of(cls, value: T) -> Reply[T]:
        """An answer that is there already."""
        reply = cls()
        reply._done, reply._value = True, value
        return reply

    @classmethod
    def failed(cls, error: BaseException) -> Reply[T]:
        """A refusal that is there already."""
        reply = cls()
        reply._done, reply._error = True, error
        return reply

    @property
    def done(self) -> bool:
        return self._done

    def resolve(self, value: T) -> None:
        """Give the answer; called once, by the store."""
        self._finish(value, None)

    def refuse(self, error: BaseException) -> None:
        """Give the error; called once, by the store."""
        self._finish(None, error)

    def _finish(self, value: T | None, error: BaseException | None) -> None:
        with self._lock:
            self._value, self._error, self._done = value, error, True
            waiters, self._waiters = self._waiters, []
            # They lead back here: without them the answer goes when its reader has gone, not when
            # Python next looks for cycles. A lease's answer is a thousand jobs.
            self._withdraw = self._help = self._start = None
        for wake in waiters:
            wake()

    def _get(self) -> T:
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # done without error: it is a T

    def add_done_callback(self, wake: Callable[[], None]) -> None:
        """Call `wake` when the answer is there: at once, or from the store's thread."""
        with self._lock:
            waiting = not self._done
            if waiting:
                self._waiters.append(wake)
            start = self._start
        if not waiting:
            wake()
        elif start is not None:
            start()

    def result(self, timeout: float | None = None) -> T:
        """Block this thread until the answer is there.

        A time-out raises TimeoutError only if the work could be withdrawn, so that it is certain
        that nothing happened; work that has begun is waited for.
        """
        help_out = self._help
        if not self._done and help_out is not None:
            help_out()
        if not self._done:
            gate = threading.Lock()
            gate.acquire()
            self.add_done_callback(gate.release)
            if not gate.acquire(timeout=-1 if timeout is None else timeout):
                withdraw = self._withdraw
                if withdraw is not None and withdraw():
                    self.refuse(TimeoutError())  # also to others who wait for it
                gate.acquire()
        return self._get()

    def __await__(self) -> Generator[object, None, T]:
        if not self._done:
            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()

            def wake() -> None:
                if not future.done():
                    future.set_result(None)

            def wake_soon() -> None:
                try:
                    loop.call_soon_threadsafe(wake)
                except RuntimeError:  # the loop is closed: nobody waits any more
                    return

            self.add_done_callback(wake_soon)
            yield from future.__await__()
        return self._get()


class Question(Generic[T]):
    """Owns at most one question that is not answered yet."""

    def __init__(self, ask: Callable[[], Reply[T]]) -> None:
        self._ask = ask
        self._reply: Reply[T] | None = None

    def answer(self, wait_seconds: float = 0.0) -> T | None:
        """The answer, once, as soon as it is there; None before. Asks if nothing is asked."""
        reply = self._answered(wait_seconds)
        return None if reply is None else reply.result()

    def settled(self) -> bool:
        """Whether what was asked only to be done has been done; raises what went wrong."""
        reply = self._answered(0.0)
        if reply is not None:
            reply.result()
        return reply is not None

    def _answered(self, wait_seconds: float) -> Reply[T] | None:
        if self._reply is None:
            self._reply = self._ask()
        if not _comes(self._reply, wait_seconds):
            return None
        reply, self._reply = self._reply, None
        return reply

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
