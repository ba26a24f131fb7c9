# SPDX-License-Identifier: Apache-2.0
"""Does virtual time jump, repeat itself by seed, and notice when nothing can happen?"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable

import pytest

from penstock.clock import Clock
from penstock.testing.virtual_loop import (
    LEFTOVER_SECONDS_MAX,
    START_EPOCH,
    Deadlock,
    VirtualClock,
    VirtualLoop,
    run_virtual,
)


def loop_time() -> float:
    return asyncio.get_running_loop().time()


async def trace_of_workers(workers: int = 6, rounds: int = 5) -> list[tuple[float, int]]:
    """Let workers meet at the same moments and note who came when."""
    trace: list[tuple[float, int]] = []

    async def work(number: int) -> None:
        for _ in range(rounds):
            await asyncio.sleep(1)
            trace.append((loop_time(), number))
            await asyncio.sleep(0)
            trace.append((loop_time(), number))

    await asyncio.gather(*(work(number) for number in range(workers)))
    return trace


def test_an_hour_of_sleeps_takes_no_real_time() -> None:
    async def main() -> float:
        for _ in range(360):
            await asyncio.sleep(10)
        return loop_time()

    began = time.monotonic()

    assert run_virtual(main()) == 3600.0
    assert time.monotonic() - began < 60


def test_time_stands_exactly_on_each_timer() -> None:
    async def main() -> list[float]:
        seen: list[float] = []

        async def wait(seconds: float) -> None:
            await asyncio.sleep(seconds)
            seen.append(loop_time())

        await asyncio.gather(*(wait(seconds) for seconds in (0.3, 0.1, 86_400.5, 0.2)))
        return seen

    assert run_virtual(main()) == [0.1, 0.2, 0.3, 86_400.5]


@pytest.mark.parametrize("start", [0.1, 1e6 + 0.1, 3e7 + 1 / 3, 1e9 + 0.7, 1e12])
def test_timers_fire_however_late_the_time(start: float) -> None:
    loop = VirtualLoop(start_seconds=start)
    try:
        for seconds in (0.001, 0.1, 1 / 3, 7.0):
            before = loop.time()

            loop.run_until_complete(asyncio.sleep(seconds))

            assert loop.time() == before + seconds
    finally:
        loop.close()


def test_time_stands_still_while_something_is_ready() -> None:
    async def main() -> float:
        for _ in range(1000):
            await asyncio.sleep(0)
        return loop_time()

    assert run_virtual(main()) == 0.0


def test_cancelled_timers_do_not_move_time() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        for number in range(500):
            loop.call_later(1 + number, lambda: None).cancel()
        await asyncio.sleep(0.5)
        return loop_time()

    assert run_virtual(main()) == 0.5


def test_timeout_ends_a_wait_at_its_moment() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.Event().wait()
        return loop_time()

    assert run_virtual(main()) == 30.0


def test_cancellation_reaches_a_sleeping_task_and_runs_its_finally() -> None:
    async def main() -> tuple[list[str], float]:
        seen: list[str] = []

        async def sleeper() -> None:
            try:
                await asyncio.sleep(1000)
            finally:
                seen.append("finally")

        aio_task = asyncio.create_task(sleeper())
        await asyncio.sleep(5)
        aio_task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await aio_task
        return seen, loop_time()

    assert run_virtual(main()) == (["finally"], 5.0)


def test_same_seed_gives_the_same_trace() -> None:
    for seed in range(5):
        first = run_virtual(trace_of_workers(), seed=seed)

        assert run_virtual(trace_of_workers(), seed=seed) == first


def test_seeds_give_different_orders_of_the_same_events() -> None:
    plain = run_virtual(trace_of_workers())
    traces = [run_virtual(trace_of_workers(), seed=seed) for seed in range(10)]

    assert len({tuple(trace) for trace in traces}) == 10
    assert all(sorted(trace) == sorted(plain) for trace in traces)
    assert all(sorted(trace, key=lambda entry: entry[0]) == trace for trace in traces)


def test_seed_shuffles_timers_of_one_moment() -> None:
    async def main() -> list[int]:
        seen: list[int] = []
        loop = asyncio.get_running_loop()
        for number in range(8):
            loop.call_at(1.0, seen.append, number)
        await asyncio.sleep(2)
        return seen

    orders = {tuple(run_virtual(main(), seed=seed)) for seed in range(10)}

    assert len(orders) > 5
    assert {tuple(sorted(order)) for order in orders} == {tuple(range(8))}


def test_without_a_seed_callbacks_run_in_the_order_of_their_calls() -> None:
    async def main() -> list[int]:
        seen: list[int] = []
        for number in range(50):
            asyncio.get_running_loop().call_soon(seen.append, number)
        await asyncio.sleep(0)
        return seen

    assert run_virtual(main()) == list(range(50))


def test_deadlock_shows_where_every_task_stands() -> None:
    async def inner_wait(event: asyncio.Event) -> None:
        await event.wait()

    async def first(event: asyncio.Event) -> None:
        await inner_wait(event)

    async def main() -> None:
        await asyncio.sleep(12.5)
        event = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(first(event), name="the-first")
            group.create_task(asyncio.Queue[int]().get(), name="the-second")

    with pytest.raises(Deadlock) as caught:
        run_virtual(main())

    text = str(caught.value)
    assert "at 12.500000 s" in text
    assert "the-first" in text
    assert "await inner_wait(event)" in text
    assert "await event.wait()" in text
    assert "the-second (Queue.get) waits at" in text
    assert "async with asyncio.TaskGroup() as group:" in text


@pytest.mark.parametrize("seed", [None, 7])
def test_deadlock_after_timers_ran_out(seed: int | None) -> None:
    async def main() -> None:
        lock = asyncio.Lock()
        await lock.acquire()
        await asyncio.sleep(60)
        await lock.acquire()

    with pytest.raises(Deadlock, match="at 60\\.0"):
        run_virtual(main(), seed=seed)


def test_waiting_for_infinity_is_a_deadlock() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_later(float("inf"), print)
        await asyncio.Event().wait()

    with pytest.raises(Deadlock):
        run_virtual(main())


def test_tasks_of_a_deadlock_are_cancelled_afterwards() -> None:
    seen: list[str] = []

    async def main() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("cleaned up")

    with pytest.raises(Deadlock):
        run_virtual(main())

    assert seen == ["cleaned up"]


def test_leftovers_are_cancelled_in_order_and_may_take_time_to_end() -> None:
    cancelled: list[str] = []
    ended: list[float] = []

    async def leftover(name: str) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(name)
            await asyncio.sleep(3)
            ended.append(loop_time())
            raise

    async def main() -> str:
        main.kept = [asyncio.create_task(leftover(f"x-{n}"), name=f"x-{n}") for n in range(12)]  # type: ignore[attr-defined]
        await asyncio.sleep(1)
        return "result"

    assert run_virtual(main()) == "result"
    assert cancelled == [f"x-{n}" for n in range(12)]
    assert ended == [4.0] * 12


def test_leftover_that_ignores_cancellation_is_reported() -> None:
    async def stubborn() -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1)

    async def main() -> None:
        main.kept = asyncio.create_task(stubborn(), name="stubborn")  # type: ignore[attr-defined]
        await asyncio.sleep(1)

    with pytest.raises(Deadlock, match=f"{LEFTOVER_SECONDS_MAX:.0f} s after") as caught:
        run_virtual(main())

    assert "stubborn" in str(caught.value)


def test_error_of_main_wins_over_a_leftover_that_will_not_end() -> None:
    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.Event().wait()

    async def main() -> None:
        main.kept = asyncio.create_task(stubborn())  # type: ignore[attr-defined]
        await asyncio.sleep(1)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run_virtual(main())


def test_errors_of_leftovers_are_reported_to_the_loop() -> None:
    reports: list[str] = []

    async def clumsy() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("while ending")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, report: reports.append(str(report["exception"])))
        main.kept = asyncio.create_task(clumsy())  # type: ignore[attr-defined]
        await asyncio.sleep(1)

    run_virtual(main())

    assert reports == ["while ending"]


def test_everything_is_closed_afterwards() -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    async def main() -> None:
        loops.append(asyncio.get_running_loop())

    run_virtual(main())
    gc.collect()  # a ResourceWarning would fail the test

    assert loops[0].is_closed()


def test_run_virtual_inside_a_running_loop_is_refused_and_leaves_nothing() -> None:
    async def inner() -> None: ...

    async def main() -> None:
        with pytest.raises(RuntimeError, match="running"):
            run_virtual(inner())

    run_virtual(main())
    gc.collect()  # "never awaited" would fail the test


def test_async_generators_are_finished() -> None:
    seen: list[str] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            seen.append("finished")

    async def main() -> None:
        main.kept = numbers()  # type: ignore[attr-defined]
        assert await anext(main.kept) == 1  # type: ignore[attr-defined]

    run_virtual(main())

    assert seen == ["finished"]


def test_call_soon_threadsafe_works_from_the_same_thread_however_often() -> None:
    async def main() -> int:
        seen: list[int] = []
        loop = asyncio.get_running_loop()
        for number in range(150_000):  # more than a socket buffer holds
            loop.call_soon_threadsafe(seen.append, number)
        await asyncio.sleep(0)
        return len(seen)

    assert run_virtual(main()) == 150_000


def test_time_waits_for_work_in_a_thread() -> None:
    async def main() -> tuple[str, float, float]:
        began = loop_time()
        ticking = asyncio.create_task(asyncio.sleep(100))
        go = threading.Event()
        asyncio.get_running_loop().call_soon(go.set)
        answer = await asyncio.to_thread(lambda: "done" if go.wait(5) else "late")
        ended = loop_time()
        await ticking
        return answer, ended - began, loop_time()

    assert run_virtual(main()) == ("done", 0.0, 100.0)


def test_thread_without_timers_is_no_deadlock() -> None:
    async def main() -> int:
        return await asyncio.to_thread(lambda: 42)

    assert run_virtual(main()) == 42


def test_real_sockets_are_no_deadlock() -> None:
    async def main() -> bytes:
        loop = asyncio.get_running_loop()
        left, right = socket.socketpair()
        with left, right:
            left.setblocking(False)
            right.setblocking(False)
            reading = asyncio.create_task(loop.sock_recv(left, 10))
            await asyncio.sleep(1)
            await loop.sock_sendall(right, b"hello")
            return await reading

    assert run_virtual(main()) == b"hello"


def test_virtual_clock_is_a_clock_whose_wall_time_alone_jumps() -> None:
    async def main() -> list[tuple[float, float]]:
        virtual = VirtualClock()
        clock: Clock = virtual
        seen = [(clock.monotonic(), clock.now())]
        await clock.sleep(10)
        seen.append((clock.monotonic(), clock.now()))
        virtual.jump(-86_400)
        seen.append((clock.monotonic(), clock.now()))
        return seen

    assert run_virtual(main()) == [
        (0.0, START_EPOCH),
        (10.0, START_EPOCH + 10),
        (10.0, START_EPOCH + 10 - 86_400),
    ]


def test_virtual_clock_may_be_made_before_its_loop_runs() -> None:
    loop = VirtualLoop()
    try:
        clock = VirtualClock(loop, start_epoch=50.0)

        loop.run_until_complete(clock.sleep(2))

        assert (clock.monotonic(), clock.now()) == (2.0, 52.0)
    finally:
        loop.close()


@pytest.mark.parametrize("make", [VirtualLoop, lambda: VirtualLoop(seed=1)])
def test_debug_mode_works(make: Callable[[], VirtualLoop]) -> None:
    loop = make()
    loop.set_debug(True)
    try:
        assert loop.run_until_complete(asyncio.sleep(1, "slept")) == "slept"
    finally:
        loop.close()
