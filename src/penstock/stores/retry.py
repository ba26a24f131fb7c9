# SPDX-License-Identifier: Apache-2.0
"""Retries a store call until it is answered, with one back-off and one log line for an outage.

What is transient is said in `errors.TRANSIENT`. `StoreRetry` is for a loop, `retry_in_thread` for a
thread; whoever has a loop of its own keeps a `RetryDelay` and asks it when the next try is due.
Producers and commands wait for a limited time: `open_when_reachable`, `wait_for`, `repeat_unknown`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from math import inf
from typing import TypeVar

from penstock.clock import Clock
from penstock.errors import (
    TRANSIENT,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreUnavailable,
    StoreUnknown,
)
from penstock.stores.protocol import Store
from penstock.stores.store_future import Reply

RETRY_FIRST_SECONDS = 0.05  # at most, after the first refusal; doubled with each further one
RETRY_MAX_SECONDS = 2.0  # at most, however long the store does not answer
RETRY_DOUBLINGS_MAX = 10  # beyond, the maximum holds anyway
STORE_WAIT_SECONDS = 30.0  # producers, commands and starting workers wait this long for a store
UNKNOWN_MAX = 3  # answers that may get lost before the caller hears of it

UNREACHABLE = "The store is unreachable"
REACHABLE = "The store is reachable again"

T = TypeVar("T")


class RetryDelay:
    """How long to wait before the next try. A value for one caller, and for one thread."""

    __slots__ = ("_rand", "_refusals")

    def __init__(self, rand: Callable[[], float]) -> None:
        """The next wait is the first; `rand` gives numbers in [0, 1)."""
        self._rand = rand
        self._refusals = 0

    def next_seconds(self) -> float:
        """The wait after one more refusal: it doubles, and its second half is random."""
        doublings = min(self._refusals, RETRY_DOUBLINGS_MAX)
        self._refusals += 1
        ceiling = min(RETRY_FIRST_SECONDS * 2.0**doublings, RETRY_MAX_SECONDS)
        return ceiling * (0.5 + self._rand() / 2)

    def reset(self) -> None:
        """There was an answer."""
        self._refusals = 0


class Outage:
    """Logs once that something does not work, and once that it does again. For one thread."""

    def __init__(
        self,
        log: logging.Logger,
        clock: Clock,
        begins: str = UNREACHABLE,
        ends: str | None = REACHABLE,
        *,
        meanwhile: str = "",
        level: int = logging.WARNING,
    ) -> None:
        """Everything works.

        Args:
            log: where it is logged.
            clock: the time.
            begins: what does not work; the cause follows.
            ends: what works again; for how long it did not follows. None: that is not logged.
            meanwhile: what follows from it, a sentence.
            level: of both lines.
        """
        self._log = log
        self._clock = clock
        self._begins = begins
        self._ends = ends
        self._meanwhile = meanwhile and f" {meanwhile}"
        self._level = level
        self._since: float | None = None

    @property
    def lasts(self) -> bool:
        """Whether it did not work the last time."""
        return self._since is not None

    def began(self, error: BaseException | str, since_monotonic: float | None = None) -> None:
        """It does not work, since now if nothing else is said; logged the first time."""
        if self._since is None:
            self._since = self._clock.monotonic() if since_monotonic is None else since_monotonic
            cause = str(error) or "no answer in time"
            if self._meanwhile and not cause.endswith("."):
                cause += "."
            self._log.log(self._level, "%s: %s%s", self._begins, cause, self._meanwhile)

    def ended(self) -> bool:
        """It works; True if it did not before."""
        if self._since is None:
            return False
        seconds, self._since = self._clock.monotonic() - self._since, None
        if self._ends is not None:
            self._log.log(self._level, "%s after %.1f s.", self._ends, seconds)
        return True


class StoreRetry:
    """Owns what was logged of a store that has to be waited for, and who waits. For one loop.

    Many calls meet the same outage; it is logged once, and whoever is answered first wakes the
    others.
    """

    def __init__(
        self, log: logging.Logger, clock: Clock, rand: Callable[[], float], meanwhile: str = ""
    ) -> None:
        """The store is reachable, as far as is known.

        Args:
            log: where an outage is logged.
            clock: the time.
            rand: numbers in [0, 1), for the jitter.
            meanwhile: what an outage means here, a sentence.
        """
        self._log = log
        self._clock = clock
        self._rand = rand
        self._outage = Outage(log, clock, meanwhile=meanwhile)
        self._told: set[str] = set()  # what has to wait for a store that is busy or full
        self._sleeping: dict[asyncio.Task[None], None] = {}

    @property
    def unreachable(self) -> bool:
        """Whether the store was unreachable when it was last asked."""
        return self._outage.lasts

    def delay(self) -> RetryDelay:
        """The back-off of a caller that has a loop of its own."""
        return RetryDelay(self._rand)

    def refused(self, what: str, error: StoreError) -> None:
        """Something has to wait: `what` says so, if the store can be reached at all."""
        if isinstance(error, StoreUnavailable):
            self._outage.began(error)
        elif what not in self._told:
            self._told.add(what)
            self._log.warning("%s: %s", what, error)

    def answered(self, what: str) -> None:
        """The store has done it; if it was unreachable before, nobody waits any longer."""
        self._told.discard(what)
        if self._outage.ended():
            self.wake()

    def wake(self) -> None:
        """Let whoever waits ask again at once."""
        for sleeping in self._sleeping:
            sleeping.cancel()

    async def pause(self, what: str, error: StoreError, delay: RetryDelay) -> None:
        """Something was refused: wait before it is asked for again."""
        self.refused(what, error)
        sleeping = asyncio.get_running_loop().create_task(self._clock.sleep(delay.next_seconds()))
        self._sleeping[sleeping] = None
        try:
            await asyncio.wait((sleeping,))
        finally:
            del self._sleeping[sleeping]
            sleeping.cancel()

    async def until_answered(
        self,
        what: str,
        ask: Callable[[], Awaitable[T]],
        *,
        first: Awaitable[T] | None = None,
        refused: Callable[[StoreError], None] | None = None,
        wanted: Callable[[], bool] | None = None,
        repeatable: bool = True,
    ) -> T:
        """Ask until there is an answer.

        Args:
            what: the sentence about a wait, such as "The build has to wait".
            ask: asks; called for each try.
            first: was asked before.
            refused: hears of each refusal.
            wanted: says whether somebody still wants the answer.
            repeatable: may be done twice.

        Raises:
            StoreBusy, StoreFull, StoreUnavailable: nobody wants the answer any more.
            StoreUnknown: it may have been done, and may not be repeated.
        """
        delay: RetryDelay | None = None
        while True:
            try:
                answer = await (ask() if first is None else first)
            except TRANSIENT as error:
                if not repeatable and isinstance(error, StoreUnknown):
                    raise
                if refused is not None:
                    refused(error)
                if wanted is not None and not wanted():
                    raise
                first = None
                delay = delay or self.delay()
                await self.pause(what, error, delay)
            else:
                self.answered(what)
                return answer


def retry_in_thread(
    ask: Callable[[], T],
    clock: Clock,
    delay: RetryDelay,
    outage: Outage,
    wait: Callable[[float], bool | None],
    *,
    seconds: float = inf,
    retried: tuple[type[Exception], ...] = TRANSIENT,
) -> T:
    """Ask until there is an answer; blocks the thread.

    Args:
        ask: asks and waits for the answer.
        clock: the time.
        delay: the back-off.
        outage: hears of refusals and of the answer.
        wait: waits so many seconds; True if nobody wants the answer any more.
        seconds: no try begins later than that.
        retried: what is asked for again.

    Raises:
        Exception: the last of `retried`, if time is up or nobody wants the answer any more.
    """
    until = clock.monotonic() + seconds
    while True:
        try:
            answer = ask()
        except retried as error:
            pause = delay.next_seconds()
            if clock.monotonic() + pause > until:
                raise
            outage.began(error)
            if wait(pause):
                raise
        else:
            outage.ended()
            return answer


def open_when_reachable(
    open_store: Callable[[], T],
    clock: Clock,
    rand: Callable[[], float],
    log: logging.Logger,
    wait: Callable[[float], bool | None],
    *,
    seconds: float = STORE_WAIT_SECONDS,
    level: int = logging.WARNING,
) -> T:
    """Open a store whose server may come up in a moment, as in a rolling restart.

    Args:
        open_store: opens it.
        clock: the time.
        rand: numbers in [0, 1), for the jitter.
        log: where the wait is logged, once.
        wait: waits so many seconds; True if nobody wants to wait any longer.
        seconds: how long a server is waited for.
        level: of what is logged.

    Raises:
        StoreUnavailable: it cannot be reached.
    """
    span = f" up to {seconds:g} s" if seconds < inf else ""
    outage = Outage(log, clock, meanwhile=f"Waiting for it{span}.", level=level)
    delay, retried = RetryDelay(rand), (StoreUnavailable,)
    return retry_in_thread(open_store, clock, delay, outage, wait, seconds=seconds, retried=retried)


def wait_for(reply: Reply[T], store: Store, otherwise: str) -> T:
    """The answer of a store, or StoreBusy with what its silence means and what to do."""
    try:
        return reply.result(STORE_WAIT_SECONDS)
    except TimeoutError:
        raise StoreBusy(
            f"The store {store.url} did not answer for {STORE_WAIT_SECONDS:g} s: others hold it, "
            f"or it is too slow; {otherwise}"
        ) from None


def repeat_unknown(ask: Callable[[], Reply[T]], store: Store, otherwise: str, first: Reply[T]) -> T:
    """The same for what may be done twice: asked again if nobody knows whether it was done.

    At once: a store says so only after it has waited for its server.
    """
    reply = first
    for _ in range(UNKNOWN_MAX):
        try:
            return wait_for(reply, store, otherwise)
        except StoreUnknown:
            reply = ask()
    return wait_for(reply, store, otherwise)


async def repeat_unknown_async(ask: Callable[[], Reply[T]]) -> T:
    """The same on an event loop."""
    for _ in range(UNKNOWN_MAX):
        try:
            return await ask()
        except StoreUnknown:
            continue
    return await ask()


def seen_twice(look: Callable[[], T]) -> T:
    """Look again before a store is called damaged: another process may open or migrate it now."""
    try:
        return look()
    except StoreCorrupt:
        return look()
