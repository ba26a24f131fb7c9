# SPDX-License-Identifier: Apache-2.0
"""An event loop in virtual time: code that waits runs at once, and reproducibly from a seed.

`VirtualLoop` is an asyncio loop whose time is a variable: when nothing is ready it jumps to the
next timer. With a seed it also shuffles what is ready before each pass, so that a simulation meets
many orders and repeats any of them. It leans on private parts of asyncio (`_ready`, `_scheduled`,
`_process_events`), which CPython 3.11 to 3.14 share; its tests are the check for a new version.

Real sockets are polled but time does not wait for them, and a shuffled loop breaks the order that
asyncio's transports rely on: simulations keep away from both. Work given to `run_in_executor` is
waited for, for a bounded real time.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import math
import random
import selectors
import threading
import traceback
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, TypeVar, TypeVarTuple

from penstock.clock import Clock
from penstock.config.settings import Settings
from penstock.model.job import WorkerId
from penstock.stores.protocol import JobStore
from penstock.worker.heartbeat import margin

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

START_EPOCH = 1_700_000_000.0  # seconds since 1970 UTC: 2023-11-14 22:13:20
LEFTOVER_SECONDS_MAX = 3600.0  # virtual; how long cancelled tasks may take to end
THREAD_PATIENCE_SECONDS = 1.0  # real; how long timers stand still for work in a thread
THREADS_MAX = 8  # of the loop's own executor
FRAMES_MAX = 50  # of one task, in a report


class VirtualBeat:
    """Renews the worker's lease on the loop, where time is virtual and nothing can block."""

    def __init__(self, store: JobStore, clock: Clock, settings: Settings) -> None:
        self._store = store
        self._clock = clock
        self._ttl_seconds = settings.runtime.lease_ttl_seconds
        self._beat_seconds = settings.runtime.beat_seconds
        self._worker: WorkerId | None = None
        self._until = float("inf")

    def adopt(self, worker: WorkerId, until_monotonic: float) -> None:
        self._worker = worker
        self._until = until_monotonic - margin(self._ttl_seconds)

    def believed_until(self) -> float:
        return self._until

    async def run(self) -> None:
        while True:
            await self._clock.sleep(self._beat_seconds)
            sent = self._clock.monotonic()
            if self._worker in await self._store.beat(
                [self._worker] if self._worker else [], self._ttl_seconds
            ):
                self._until = sent + self._ttl_seconds - margin(self._ttl_seconds)


class Deadlock(Exception):
    """Tasks can never go on; the message shows where each of them stands."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop that owns its time and, with a seed, its order. It belongs to one thread."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _clock_resolution: float

    def __init__(self, *, seed: int | None = None, start_seconds: float = 0.0) -> None:
        self._now_seconds = start_seconds
        self._order = None if seed is None else random.Random(seed)
        self._thread_work_count = 0
        self._threads: ThreadPoolExecutor | None = None
        self._owner = threading.get_ident()
        super().__init__(_VirtualSelector(self))
        self._clock_resolution = 0.0  # no timer is early: time stands exactly on the next one

    def __repr__(self) -> str:
        return (
            f"<VirtualLoop at {self._now_seconds:.6f} s, {len(self._ready)} ready, "
            f"{len(self._scheduled)} timers>"
        )

    def time(self) -> float:
        return self._now_seconds

    def _pass_time(self, timeout: float | None, real: selectors.BaseSelector) -> list[_Event]:
        """Let time pass as the selector is asked to; return what real I/O has happened."""
        events = real.select(0)
        if events or timeout == 0:
            return events
        when = self._scheduled[0].when() if self._scheduled else math.inf
        if self._thread_work_count:
            events = real.select(None if when == math.inf else THREAD_PATIENCE_SECONDS)
            if events:
                return events
        if when < math.inf:
            self._now_seconds = max(self._now_seconds, when)
            return []
        if len(real.get_map()) > 1:  # more than the loop's own wake-up pipe
            return real.select(None)
        raise Deadlock(
            f"Nothing is ready and nothing is scheduled at {self._now_seconds:.6f} s.\n\n"
            + describe_tasks(self)
        )

    def end_leftovers(self) -> None:
        """Cancel every task and run until they have ended; their errors are reported.

        Raises:
            Deadlock: some tasks go on although they were cancelled.
        """
        leftovers = _tasks_in_order(self)
        for aio_task in leftovers:
            aio_task.cancel()
        if leftovers:
            waiting = asyncio.wait(leftovers, timeout=LEFTOVER_SECONDS_MAX)
            _, pending = self.run_until_complete(waiting)
            if pending:
                raise Deadlock(
                    f"{len(pending)} tasks still run {LEFTOVER_SECONDS_MAX:.0f} s after they were "
                    "cancelled.\n\n" + describe_tasks(self)
                )
        for aio_task in leftovers:
            if not aio_task.cancelled() and (error := aio_task.exception()) is not None:
                self.call_exception_handler(
                    {
                        "message": "a leftover task raised while it was cancelled",
                        "exception": error,
                        "task": aio_task,
                    }
                )
        self.run_until_complete(self.shutdown_asyncgens())

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        if executor is None:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(THREADS_MAX, "virtual-loop")
            executor = self._threads
        future: asyncio.Future[T] = super().run_in_executor(executor, func, *args)
        self._thread_work_count += 1
        future.add_done_callback(self._thread_work_ended)
        return future

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)
            self._threads = None
        super().close()

    def _thread_work_ended(self, _future: asyncio.Future[Any]) -> None:
        self._thread_work_count -= 1

    def _write_to_self(self) -> None:
        # The loop's own thread is awake when it calls this: a byte in the pipe would only be
        # read back by the next pass.
        if threading.get_ident() != self._owner:
            super()._write_to_self()  # type: ignore[misc]  # private in typeshed

    def _process_events(self, event_list: list[_Event]) -> None:
        # asyncio calls this after the wait and before it moves due timers to the ready queue.
        # They are moved here, so that timers of one moment are shuffled too.
        super()._process_events(event_list)  # type: ignore[misc]  # private in typeshed
        while self._scheduled and self._scheduled[0].when() <= self._now_seconds:
            timer = heapq.heappop(self._scheduled)
            timer._scheduled = False  # type: ignore[attr-defined]  # private in typeshed
            self._ready.append(timer)
        if self._order is not None and len(self._ready) > 1:
            # Popped one by one: other threads may append meanwhile.
            handles = [self._ready.popleft() for _ in range(len(self._ready))]
            self._order.shuffle(handles)
            self._ready.extend(handles)


_Event = tuple[selectors.SelectorKey, int]


class _VirtualSelector(selectors.BaseSelector):
    """Keeps real registrations and leaves the waiting to its loop."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._real = selectors.DefaultSelector()

    def select(self, timeout: float | None = None) -> list[_Event]:
        return self._loop._pass_time(timeout, self._real)

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:  # noqa: ANN401
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:  # noqa: ANN401
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:  # noqa: ANN401
        return self._real.modify(fileobj, events, data)

    def get_map(self) -> Any:  # noqa: ANN401 (a mapping that typeshed names by private types)
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()


class VirtualClock:
    """The engine's clock on a virtual loop; tests may jump its wall time."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop | None = None, start_epoch: float = START_EPOCH
    ) -> None:
        self._loop = asyncio.get_running_loop() if loop is None else loop
        self._start_epoch = start_epoch
        self._offset_seconds = 0.0

    def __repr__(self) -> str:
        return f"<VirtualClock {self.monotonic():.6f} s, wall {self._offset_seconds:+.6f} s>"

    def cpu(self) -> float:
        return 0.0  # time that a test owns costs nothing

    def monotonic(self) -> float:
        return self._loop.time()

    def now(self) -> float:
        return self._start_epoch + self._loop.time() + self._offset_seconds

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def jump(self, seconds: float) -> None:
        """Move the wall clock, forwards or back; monotonic time stays."""
        self._offset_seconds += seconds


def run_virtual(main: Coroutine[Any, Any, T], seed: int | None = None) -> T:
    """Run a coroutine to its end in virtual time; tasks it leaves behind are cancelled.

    Args:
        main: what to run.
        seed: shuffles what is ready before each pass; None keeps asyncio's order.

    Raises:
        Deadlock: everything waits for ever, or a leftover will not end.
    """
    if asyncio._get_running_loop() is not None:
        main.close()
        raise RuntimeError("run_virtual() was called while a loop is running; await it instead.")
    loop = VirtualLoop(seed=seed)
    try:
        try:
            result = loop.run_until_complete(main)
        except BaseException:
            with contextlib.suppress(Deadlock):  # the error that brought us here says more
                loop.end_leftovers()
            raise
        loop.end_leftovers()
        return result
    finally:
        loop.close()


def describe_tasks(loop: asyncio.AbstractEventLoop) -> str:
    """Show every unfinished task of a loop with the line that it waits at, innermost last."""
    parts = []
    for aio_task in _tasks_in_order(loop):
        coroutine = aio_task.get_coro()
        name = getattr(coroutine, "__qualname__", type(coroutine).__name__)
        lines = "".join(traceback.format_list(list(_stack(coroutine)))) or "  no frame\n"
        parts.append(f"{aio_task.get_name()} ({name}) waits at\n{lines}")
    return "\n".join(parts) if parts else "There is no task.\n"


def _stack(awaited: object) -> Iterator[traceback.FrameSummary]:
    # A suspended task knows only its outermost frame; the others are found through what each
    # coroutine or generator awaits.
    for _ in range(FRAMES_MAX):
        for frame_name, next_name in (
            ("cr_frame", "cr_await"),
            ("gi_frame", "gi_yieldfrom"),
            ("ag_frame", "ag_await"),
        ):
            frame = getattr(awaited, frame_name, None)
            if frame is not None:
                code = frame.f_code
                yield traceback.FrameSummary(code.co_filename, frame.f_lineno, code.co_name)
                awaited = getattr(awaited, next_name)
                break
        else:
            return


def _tasks_in_order(loop: asyncio.AbstractEventLoop) -> list[asyncio.Task[Any]]:
    # `all_tasks` is a set in the order of addresses; `Task-10` comes after `Task-9`.
    return sorted(asyncio.all_tasks(loop), key=lambda t: (len(t.get_name()), t.get_name()))
