# SPDX-License-Identifier: Apache-2.0
"""KeyedLimiter: a semaphore per key for task code, on event loops and in threads.

`KeyedSlots` decides under one short lock; `KeyedLimiter` waits and wakes outside of it. Loops and
threads stand in the same line. A waiter that is cancelled, timed out or interrupted leaves it; if
it had been served meanwhile, the slot goes on to the next one, so none is ever lost.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict, deque
from collections.abc import Coroutine, Generator, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Generic, NoReturn, TypeVar

import msgspec

from penstock.clock import Duration, to_seconds
from penstock.errors import InternalError, UsageError
from penstock.model.names import check_name

LIMIT_MAX = 1_000_000  # at once for one key; more is a slip of the pen

W = TypeVar("W")  # whatever stands for a waiter; told apart by identity or equality


class KeyCount(msgspec.Struct, frozen=True):
    """One key in numbers."""

    limit: int
    held: int
    waiting: int


class _Line(Generic[W]):
    """One key that somebody holds or waits for; nothing is kept of others."""

    __slots__ = ("held", "waiting")

    def __init__(self) -> None:
        self.held = 0
        self.waiting: OrderedDict[W, None] = OrderedDict()  # first come first; any may leave


class KeyedSlots(Generic[W]):
    """Owns who holds and who waits, first come first served per key.

    Every method is O(1), plus the waiters that it serves. Does not wake anybody: it returns the
    waiters that were served, and the caller tells them.
    """

    def __init__(self, default_limit: int, per_key: Mapping[str, int] | None = None) -> None:
        check_limit("default_limit", default_limit)
        self._default = default_limit
        self._limits: dict[str, int] = {}
        self._lines: dict[str, _Line[W]] = {}
        self._held = self._waiting = 0
        for key, limit in (per_key or {}).items():
            check_limit(f"the limit of {key!r}", limit)
            self._limits[key] = limit

    def __repr__(self) -> str:
        return (
            f"default {self._default}, {len(self._lines)} keys in use, {self._held} held, "
            f"{self._waiting} waiting"
        )

    def limit(self, key: str) -> int:
        return self._limits.get(key, self._default)

    def count(self, key: str) -> KeyCount:
        """One key in numbers."""
        line = self._lines.get(key)
        if line is None:
            return KeyCount(self.limit(key), 0, 0)
        return KeyCount(self.limit(key), line.held, len(line.waiting))

    def snapshot(self) -> dict[str, KeyCount]:
        """Every key that is held or waited for."""
        return {key: self.count(key) for key in self._lines}

    def try_acquire(self, key: str) -> bool:
        """Take a slot if there is one; who waits already goes first."""
        line = self._lines.get(key)
        if (0 if line is None else line.held) >= self.limit(key):
            return False  # where somebody waits there is no room, so nobody is overtaken
        if line is None:
            line = self._lines[key] = _Line()
        line.held += 1
        self._held += 1
        return True

    def wait(self, key: str, waiter: W) -> None:
        """Stand at the end of the line of a key that `try_acquire` has refused."""
        line = self._lines.get(key)
        if line is None:  # a limit of 0: nobody holds it, and nobody may
            line = self._lines[key] = _Line()
        if line.held < self.limit(key):
            raise InternalError(f"A waiter for {key!r} stands in line although there is room.")
        line.waiting[waiter] = None
        self._waiting += 1

    def leave(self, key: str, waiter: W) -> list[W]:
        """Give up: out of the line, or hand on what was served already. Who is served by that."""
        line = self._lines.get(key)
        if line is not None and waiter in line.waiting:
            del line.waiting[waiter]
            self._waiting -= 1
            self._forget(key, line)
            return []
        return self.release(key)

    def release(self, key: str) -> list[W]:
        """Give a slot back; who is served by that."""
        line = self._lines.get(key)
        if line is None or not line.held:
            raise UsageError(
                f"{key!r} was released although nobody holds it; await acquire, call release once "
                f"for each, or use hold()."
            )
        line.held -= 1
        self._held -= 1
        return self._serve(key, line)

    def set_limit(self, key: str, limit: int | None) -> list[W]:
        """Change a limit, with None back to the default; who is served by that.

        A lower limit takes nothing from those who hold: it is reached as they release.
        """
        if limit is None:
            self._limits.pop(key, None)
        else:
            check_limit(f"the limit of {key!r}", limit)
            self._limits[key] = limit
        line = self._lines.get(key)
        return [] if line is None else self._serve(key, line)

    def _serve(self, key: str, line: _Line[W]) -> list[W]:
        served: list[W] = []
        limit = self.limit(key)
        while line.waiting and line.held < limit:
            waiter, _ = line.waiting.popitem(last=False)
            line.held += 1
            served.append(waiter)
        self._held += len(served)
        self._waiting -= len(served)
        self._forget(key, line)
        return served

    def _forget(self, key: str, line: _Line[W]) -> None:
        if not line.held and not line.waiting:
            del self._lines[key]


def check_limit(what: str, limit: int) -> None:
    """Refuse what is no limit: UsageError."""
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise UsageError(f"{what} is a whole number, got {limit!r}.")
    if not 0 <= limit <= LIMIT_MAX:
        raise UsageError(f"{what} lies between 0 and {LIMIT_MAX:,}, got {limit}.")


class _LoopWaiter:
    """Waits on an event loop."""

    __slots__ = ("_loop", "key", "left", "served")

    def __init__(self, key: str, loop: asyncio.AbstractEventLoop) -> None:
        self.key = key
        self.left = False
        self._loop = loop
        self.served: asyncio.Future[None] = loop.create_future()

    def wake(self) -> bool:
        """Say that it is served; False if its loop is closed, so that nobody can hear it."""
        if asyncio._get_running_loop() is self._loop:
            self._set()
            return True
        try:
            self._loop.call_soon_threadsafe(self._set)
        except RuntimeError:
            return False
        return True

    def _set(self) -> None:
        if not self.served.done():  # it may have been cancelled
            self.served.set_result(None)


class _ThreadWaiter:
    """Waits in a thread."""

    __slots__ = ("key", "left", "served")

    def __init__(self, key: str) -> None:
        self.key = key
        self.left = False
        self.served = threading.Event()

    def wake(self) -> bool:
        """Say that it is served; a thread can always hear it."""
        self.served.set()
        return True


_Waiter = _LoopWaiter | _ThreadWaiter


class Acquiring(Coroutine[Any, Any, None]):
    """A slot that is being waited for, once this is awaited; whatever else it is used as fails."""

    __slots__ = ("_key", "_waiting")

    def __init__(self, key: str, waiting: Coroutine[Any, Any, None]) -> None:
        self._key = key
        self._waiting = waiting

    def __await__(self) -> Generator[Any, Any, None]:
        return self._waiting.__await__()

    def send(self, value: Any) -> Any:  # noqa: ANN401 (a coroutine's)
        return self._waiting.send(value)

    def throw(self, *error: Any) -> Any:  # noqa: ANN401 (a coroutine's)
        return self._waiting.throw(*error)

    def close(self) -> None:
        self._waiting.close()

    def _refused(self, *_: object) -> NoReturn:
        self._waiting.close()
        raise UsageError(
            f"acquire({self._key!r}) was not awaited, so nothing is held; write await "
            "limiter.acquire(...), or async with limiter.hold(...)."
        )

    __bool__ = __enter__ = __exit__ = __aenter__ = __aexit__ = _refused


class KeyedLimiter:
    """At most so many at once for each key, in this process; first come, first served per key.

    For use inside task code; limits over processes are the `limits=` of a task. One limiter serves
    any number of event loops and threads at the same time. A key that nobody holds or waits for
    costs nothing.

    Args:
        default_limit: how many may hold a key at once; 0 stops every key.
        per_key: other limits, by key.
    """

    def __init__(self, default_limit: int, per_key: Mapping[str, int] | None = None) -> None:
        self._slots: KeyedSlots[_Waiter] = KeyedSlots(default_limit, per_key)
        # Guards the turns; nothing waits or wakes while it is held. The garbage collector may end
        # a forgotten coroutine, and so give a slot back, in the midst of a decision of the same
        # thread: so the lock can be taken twice, and what comes in the midst is done at the end.
        self._lock = threading.RLock()
        self._deciding = False
        self._late: deque[tuple[str, _Waiter | None]] = deque()

    def __repr__(self) -> str:
        return f"<KeyedLimiter {self._slots!r}>"

    def snapshot(self) -> dict[str, KeyCount]:
        """Limit, holders and waiters of every key that is in use."""
        with self._decision():
            return self._slots.snapshot()

    def try_acquire(self, key: str) -> bool:
        """Take a slot of a key if there is one; never waits."""
        check_name("limiter key", key)
        with self._decision():
            return self._slots.try_acquire(key)

    def acquire(self, key: str, timeout: Duration | None = None) -> Acquiring:
        """Wait for a slot of a key and take it; TimeoutError if it takes longer than `timeout`.

        To be awaited. UsageError in a thread without an event loop, which nobody could await it on.
        """
        if asyncio._get_running_loop() is None:
            raise UsageError(
                f"acquire({key!r}) must be awaited on an event loop; in a thread write "
                "acquire_sync(...), or with limiter.hold(...)."
            )
        return Acquiring(key, self._acquire(key, timeout))

    async def _acquire(self, key: str, timeout: Duration | None) -> None:
        if self.try_acquire(key):
            return
        waiter = _LoopWaiter(key, asyncio.get_running_loop())
        if self._try_or_wait(key, waiter):
            return
        try:
            if timeout is None:
                await waiter.served
            else:
                async with asyncio.timeout(to_seconds(timeout)) as limit:
                    await waiter.served
        except BaseException as error:
            count = self._leave(key, waiter)
            if isinstance(error, TimeoutError) and timeout is not None and limit.expired():
                raise _too_late(key, timeout, count) from None
            raise

    def acquire_sync(self, key: str, timeout: Duration | None = None) -> None:
        """The same in a thread, which it blocks."""
        if self.try_acquire(key):
            return
        if asyncio._get_running_loop() is not None:
            raise UsageError(
                f"acquire_sync({key!r}) would block the event loop; write await acquire(...)."
            )
        seconds = None if timeout is None else max(0.0, to_seconds(timeout))
        waiter = _ThreadWaiter(key)
        if self._try_or_wait(key, waiter):
            return
        try:
            in_time = waiter.served.wait(seconds)
        except BaseException:  # the handler of a signal raised
            self._leave(key, waiter)
            raise
        if not in_time:
            raise _too_late(key, timeout or 0.0, self._leave(key, waiter))

    def release(self, key: str) -> None:
        """Give a slot back, on whatever loop or thread; UsageError if nobody holds one."""
        self._give_back(key, None)

    def set_limit(self, key: str, limit: int | None) -> None:
        """Change the limit of a key; None: back to the default.

        A higher limit lets waiters go at once. A lower one lets holders finish; 0 stops the key.
        """
        check_name("limiter key", key)
        with self._decision() as served:
            served += self._slots.set_limit(key, limit)

    def hold(self, key: str, timeout: Duration | None = None) -> Hold:
        """Hold a slot for a block: `async with limiter.hold(key):`, in a thread `with`."""
        return Hold(self, key, timeout)

    def _try_or_wait(self, key: str, waiter: _Waiter) -> bool:
        with self._decision():
            if self._slots.try_acquire(key):
                return True
            self._slots.wait(key, waiter)
            return False

    def _leave(self, key: str, waiter: _Waiter) -> KeyCount:
        """Give up, once; the numbers of the key before that."""
        count = self._slots.count(key)
        if not waiter.left:
            waiter.left = True
            self._give_back(key, waiter)
        return count

    def _give_back(self, key: str, waiter: _Waiter | None) -> None:
        with self._lock:
            in_the_midst = self._deciding
            if in_the_midst:
                self._late.append((key, waiter))
        if not in_the_midst:
            with self._decision() as served:
                served += self._given_back(key, waiter)

    def _given_back(self, key: str, waiter: _Waiter | None) -> list[_Waiter]:
        """A holder releases, or a waiter leaves; who is served by that."""
        if waiter is None:
            return self._slots.release(key)
        return self._slots.leave(key, waiter)

    @contextmanager
    def _decision(self) -> Iterator[list[_Waiter]]:
        """Decide alone; those who were served are told when the lock is free again."""
        served: list[_Waiter] = []
        try:
            with self._lock:
                self._deciding = True
                try:
                    yield served
                    while self._late:
                        served += self._given_back(*self._late.popleft())
                finally:
                    self._deciding = False
        finally:
            for waiter in served:
                if not waiter.wake():
                    self._leave(waiter.key, waiter)  # hands on what it can never use


def _too_late(key: str, timeout: Duration, count: KeyCount) -> TimeoutError:
    return TimeoutError(
        f"No slot of {key!r} became free within {to_seconds(timeout):g} s: limit {count.limit}, "
        f"held {count.held}, waiting {count.waiting}."
    )


class Hold:
    """One slot of a key for the length of a block, on a loop or in a thread."""

    __slots__ = ("_key", "_limiter", "_timeout")

    def __init__(self, limiter: KeyedLimiter, key: str, timeout: Duration | None) -> None:
        self._limiter = limiter
        self._key = key
        self._timeout = timeout

    async def __aenter__(self) -> None:
        await self._limiter._acquire(self._key, self._timeout)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._limiter.release(self._key)

    def __enter__(self) -> None:
        self._limiter.acquire_sync(self._key, self._timeout)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._limiter.release(self._key)
