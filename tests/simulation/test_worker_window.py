# SPDX-License-Identifier: Apache-2.0
"""Does a worker hold no more jobs than it can soon run?"""

from __future__ import annotations

import asyncio

from penstock import Context, Penstock
from penstock.model.job import JobState
from penstock.testing import harness


def test_a_group_that_comes_after_fast_jobs_does_not_wait_for_a_window_of_slow_ones() -> None:
    app = Penstock("sim")
    began: list[float] = []

    @app.task()
    async def body(ctx: Context, n: int, seconds: float) -> None:
        await asyncio.sleep(seconds)

    @app.task()
    async def late(ctx: Context) -> None:
        began.append(asyncio.get_running_loop().time())

    with harness(app, settings={"runtime": {"async_slots": 4}}) as test:
        test.enqueue_many(
            body.job(n=n, seconds=0.001).with_options(group="big", priority=1) for n in range(3_000)
        )
        test.enqueue_many(body.job(n=n, seconds=10.0).with_options(group="big") for n in range(200))
        test.enqueue(late.job(), delay=2.0)
        test.drain()

    assert began[0] < 32.0  # two rounds of the slots, and not the 20 of the window


def test_the_window_for_slow_bodies_does_not_grow_with_the_rate_of_others() -> None:
    app = Penstock("sim")
    most = 0

    @app.task()
    async def slow(ctx: Context, n: int) -> None:
        nonlocal most
        await asyncio.sleep(5.0)
        held = [key for key, state in test.states.items() if state is JobState.IN_PROGRESS]
        most = max(most, sum(test.job(key).task == "slow" for key in held))

    @app.task()
    def fast(ctx: Context, n: int) -> None: ...

    settings = {"runtime": {"async_slots": 2, "thread_slots": 2}}
    with harness(app, settings=settings) as test:
        test.enqueue_many(fast.job(n=n) for n in range(2_000))
        test.enqueue_many(slow.job(n=n) for n in range(40))
        test.drain()

    assert most <= 6
