# SPDX-License-Identifier: Apache-2.0
"""Does a limiter ever lose a slot or pass a waiter over, however waiters are cancelled?"""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
import signal
import threading
import time
from datetime import timedelta

import pytest

from penstock import KeyedLimiter
from penstock.errors import UsageError
from penstock.keyed_limiter import KeyCount
from penstock.testing import run_virtual
from tests.waiting import wait_until


async def passes(count: int) -> None:
    """Let the loop turn so often."""
    for _ in range(count):
        await asyncio.sleep(0)


def test_no_more_than_the_limit_hold_a_key_and_first_come_is_first_served() -> None:
    async def main() -> tuple[list[int], int]:
        limiter = KeyedLimiter(2)
        order: list[int] = []
        running = most = 0

        async def work(number: int) -> None:
            nonlocal running, most
            async with limiter.hold("k"):
                order.append(number)
                running += 1
                most = max(most, running)
                await asyncio.sleep(1)
                running -= 1

        await asyncio.gather(*(work(number) for number in range(10)))
        assert limiter.snapshot() == {}
        return order, most

    assert run_virtual(main()) == (list(range(10)), 2)


def test_keys_do_not_wait_for_each_other() -> None:
    async def main() -> float:
        limiter = KeyedLimiter(1, per_key={"wide": 3})

        async def work(key: str) -> None:
            async with limiter.hold(key):
                await asyncio.sleep(1)

        began = asyncio.get_running_loop().time()
        await asyncio.gather(work("a"), work("b"), *(work("wide") for _ in range(3)))
        return asyncio.get_running_loop().time() - began

    assert run_virtual(main()) == 1.0


def test_every_moment_of_cancellation_loses_no_slot_and_skips_nobody() -> None:
    """Goal: cancel each of three waiters, and every pair, at every turn of the loop.

    Method: one holder releases at turn 4; the waiters hold for two turns each. `moments` goes past
    the end of everything, so it meets a waiter before it is served, between its grant and its
    wake-up, while it holds, and after. Both orders of release and cancel at one moment are met.
    """
    for victims in ([0], [1], [2], [0, 1], [0, 2], [1, 2], [0, 1, 2]):
        turns = 15 if len(victims) == 1 else 10
        for moments in itertools.product(range(turns), repeat=min(len(victims), 2)):
            for limit in (1, 2):
                for cancel_first in (True, False):
                    run_virtual(_cancelled(victims, moments, limit, cancel_first))


async def _cancelled(
    victims: list[int], moments: tuple[int, ...], limit: int, cancel_first: bool
) -> None:
    limiter = KeyedLimiter(limit)
    for _ in range(limit):
        assert limiter.try_acquire("k")
    served: list[int] = []
    running = 0

    async def work(number: int) -> None:
        nonlocal running
        await limiter.acquire("k")
        served.append(number)
        running += 1
        assert running <= limit
        try:
            await passes(2)
        finally:
            running -= 1
            limiter.release("k")

    async def release() -> None:
        await passes(4)
        for _ in range(limit):
            limiter.release("k")

    async def cancel(number: int, moment: int) -> None:
        await passes(moment)
        tasks[number].cancel()

    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(work(number)) for number in range(3)]
    others = [release()]
    cancels = [cancel(v, moments[min(i, len(moments) - 1)]) for i, v in enumerate(victims)]
    helpers = [
        loop.create_task(c) for c in ([*cancels, *others] if cancel_first else [*others, *cancels])
    ]
    await asyncio.gather(*helpers)
    ends = await asyncio.gather(*tasks, return_exceptions=True)

    assert limiter.snapshot() == {}
    assert served == sorted(served)  # in the order they came
    for number, end in enumerate(ends):
        if number not in victims:
            assert end is None
            assert number in served


def test_a_waiter_that_is_served_and_cancelled_in_one_moment_hands_its_slot_on() -> None:
    async def main() -> None:
        limiter = KeyedLimiter(1)
        await limiter.acquire("k")
        first = asyncio.create_task(limiter.acquire("k"))
        second = asyncio.create_task(limiter.acquire("k"))
        await passes(2)

        limiter.release("k")  # the first is served, and does not know it yet
        first.cancel()
        await passes(3)

        assert first.cancelled()
        assert second.done()
        assert limiter.snapshot() == {"k": KeyCount(1, 1, 0)}

    run_virtual(main())


def test_a_time_out_says_the_numbers_and_leaves_the_line() -> None:
    async def main() -> None:
        limiter = KeyedLimiter(1)
        await limiter.acquire("k")
        with pytest.raises(TimeoutError, match=r"'k' became free within 3 s: limit 1, held 1, wai"):
            await limiter.acquire("k", timeout=timedelta(seconds=3))
        with pytest.raises(TimeoutError, match="within 0 s"):
            async with limiter.hold("k", timeout=0):
                raise AssertionError("nobody comes here")
        assert limiter.snapshot() == {"k": KeyCount(1, 1, 0)}
        assert asyncio.get_running_loop().time() == 3.0
        limiter.release("k")
        await limiter.acquire("k", timeout=1)

    run_virtual(main())


def test_a_time_out_of_the_caller_is_left_to_the_caller() -> None:
    async def main() -> None:
        limiter = KeyedLimiter(0)
        with pytest.raises(TimeoutError) as late:
            async with asyncio.timeout(1):
                await limiter.acquire("k", timeout=60)
        assert "became free" not in str(late.value)
        assert limiter.snapshot() == {}

    run_virtual(main())


def test_a_raised_limit_lets_waiters_go_at_once_and_a_lowered_one_lets_holders_finish() -> None:
    async def main() -> None:
        limiter = KeyedLimiter(1)
        tasks = [asyncio.create_task(limiter.acquire("k")) for _ in range(5)]
        await passes(2)
        assert [task.done() for task in tasks] == [True, False, False, False, False]

        limiter.set_limit("k", 3)
        await passes(2)
        assert [task.done() for task in tasks] == [True, True, True, False, False]

        limiter.set_limit("k", 1)
        for _ in range(2):
            limiter.release("k")
            await passes(2)
            assert limiter.snapshot()["k"].waiting == 2
        limiter.release("k")
        await passes(2)
        assert limiter.snapshot() == {"k": KeyCount(1, 1, 1)}

        limiter.set_limit("k", 0)
        limiter.release("k")
        await passes(2)
        assert limiter.snapshot() == {"k": KeyCount(0, 0, 1)}
        limiter.set_limit("k", None)  # the default again
        await passes(2)
        assert all(task.done() for task in tasks)

    run_virtual(main())


def test_a_release_too_many_and_a_wrong_key_are_refused() -> None:
    limiter = KeyedLimiter(1)

    with pytest.raises(UsageError, match="'k' was released although nobody holds it"):
        limiter.release("k")
    for key in ("", 5, "x" * 300, "a\nb"):
        with pytest.raises(UsageError, match="A limiter key"):
            limiter.try_acquire(key)  # type: ignore[arg-type]
    assert limiter.try_acquire("k")
    assert not limiter.try_acquire("k")
    assert repr(limiter) == "<KeyedLimiter default 1, 1 keys in use, 1 held, 0 waiting>"


def test_a_thread_waits_and_may_give_up() -> None:
    limiter = KeyedLimiter(1)
    limiter.acquire_sync("k")
    with pytest.raises(TimeoutError, match=r"within 0\.01 s: limit 1, held 1, waiting 1"):
        limiter.acquire_sync("k", timeout=0.01)
    threading.Timer(0.02, limiter.release, ["k"]).start()

    with limiter.hold("k", timeout=30):
        assert limiter.snapshot() == {"k": KeyCount(1, 1, 0)}
    assert limiter.snapshot() == {}


def test_a_signal_that_ends_the_wait_of_a_thread_leaves_the_line() -> None:
    limiter = KeyedLimiter(1)
    limiter.acquire_sync("k")

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(KeyboardInterrupt):
            limiter.acquire_sync("k")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)

    assert limiter.snapshot() == {"k": KeyCount(1, 1, 0)}


def test_a_blocking_wait_on_a_loop_is_refused_but_a_free_slot_is_given() -> None:
    async def main() -> None:
        limiter = KeyedLimiter(1)
        limiter.acquire_sync("k")
        with pytest.raises(UsageError, match="would block the event loop; write await acquire"):
            limiter.acquire_sync("k")

    run_virtual(main())


def test_loops_and_threads_stand_in_one_line() -> None:
    limiter = KeyedLimiter(1)
    limiter.acquire_sync("k")
    order: list[int] = []

    def in_thread(number: int) -> None:
        with limiter.hold("k"):
            order.append(number)

    async def on_loop(number: int) -> None:
        async with limiter.hold("k"):
            order.append(number)

    threads = []
    for number in range(6):
        target, arguments = (
            (in_thread, (number,)) if number % 2 else (asyncio.run, (on_loop(number),))
        )
        thread = threading.Thread(target=target, args=arguments)
        thread.start()
        threads.append(thread)
        wait_until(lambda: limiter.snapshot()["k"].waiting == len(threads))
    limiter.release("k")
    for thread in threads:
        thread.join(30)

    assert order == list(range(6))
    assert limiter.snapshot() == {}


def test_a_waiter_of_a_closed_loop_holds_nobody_up_and_gives_back_once() -> None:
    limiter = KeyedLimiter(1)
    limiter.acquire_sync("k")
    loop = asyncio.new_event_loop()
    aio_task = loop.create_task(limiter._acquire("k", None))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    aio_task._log_destroy_pending = False  # type: ignore[attr-defined]  # it is meant to be
    got: list[bool] = []

    def wait() -> None:
        limiter.acquire_sync("k", timeout=30)
        got.append(True)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: limiter.snapshot()["k"].waiting == 2)

    limiter.release("k")  # the closed loop's waiter is first, and cannot hear it
    thread.join(30)
    del aio_task
    gc.collect()  # its coroutine ends now

    assert got == [True]
    assert limiter.snapshot() == {"k": KeyCount(1, 1, 0)}


def test_a_coroutine_that_is_thrown_away_gives_back_what_it_was_given() -> None:
    limiter = KeyedLimiter(1)
    limiter.acquire_sync("k")
    loop = asyncio.new_event_loop()
    waiting = limiter._acquire("k", None)
    aio_task = loop.create_task(waiting)
    loop.run_until_complete(asyncio.sleep(0))
    limiter.release("k")  # served; its loop never turns again
    assert limiter.snapshot() == {"k": KeyCount(1, 1, 0)}
    loop.close()
    aio_task._log_destroy_pending = False  # type: ignore[attr-defined]  # it is meant to be
    del aio_task, waiting
    gc.collect()

    assert limiter.snapshot() == {}


def test_a_slot_given_back_in_the_midst_of_a_decision_is_counted_after_it() -> None:
    """The garbage collector may run anywhere, also while this very thread decides."""
    limiter = KeyedLimiter(2)
    limiter.acquire_sync("k")
    with limiter._decision():
        limiter.release("k")
        assert limiter._slots.count("k").held == 1

    assert limiter.snapshot() == {}


def test_threads_and_loops_under_stress_lose_nothing() -> None:
    limits = {"a": 1, "b": 3}
    limiter = KeyedLimiter(2, limits)
    lock = threading.Lock()
    running = {"a": 0, "b": 0, "c": 0}
    broken: list[str] = []
    done = [0]

    def begin(key: str) -> None:
        with lock:
            running[key] += 1
            done[0] += 1
            if running[key] > limits.get(key, 2):
                broken.append(key)

    def end(key: str) -> None:
        with lock:
            running[key] -= 1
        limiter.release(key)

    def thread(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(150):
            key = rng.choice("abc")
            try:
                limiter.acquire_sync(key, rng.choice([None, 0, 0.0005]))
            except TimeoutError:
                continue
            begin(key)
            if rng.random() < 0.3:
                time.sleep(0)
            end(key)

    async def one(rng: random.Random) -> None:
        key = rng.choice("abc")
        await limiter.acquire(key)
        begin(key)
        try:
            await asyncio.sleep(0)
        finally:
            end(key)

    async def on_loop(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(30):
            tasks = [asyncio.create_task(one(rng)) for _ in range(8)]
            for task in tasks:
                if rng.random() < 0.4:
                    await asyncio.sleep(0)
                    task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    workers = [threading.Thread(target=thread, args=(seed,), daemon=True) for seed in range(4)]
    workers += [
        threading.Thread(target=lambda s=seed: asyncio.run(on_loop(s)), daemon=True)
        for seed in range(2)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)

    assert not any(worker.is_alive() for worker in workers)
    assert broken == []
    assert limiter.snapshot() == {}
    assert done[0] > 300


def test_an_acquire_that_nobody_can_await_fails_at_once() -> None:
    limiter = KeyedLimiter(1)

    with pytest.raises(UsageError, match=r"in a thread write acquire_sync"):
        limiter.acquire("k")

    async def main() -> None:
        with pytest.raises(UsageError, match="was not awaited"), limiter.acquire("k"):
            pass
        with pytest.raises(UsageError, match="was not awaited"):
            async with limiter.acquire("k"):
                pass
        with pytest.raises(UsageError, match="was not awaited"):
            bool(limiter.acquire("k"))
        limiter.acquire("k").close()
        with pytest.raises(UsageError, match="await acquire"):
            limiter.release("k")

    asyncio.run(main())
    assert limiter.snapshot() == {}
