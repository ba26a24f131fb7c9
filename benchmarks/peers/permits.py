# SPDX-License-Identifier: Apache-2.0
"""How long does it take to get a permit for a request, and to give it back?

The same loop drives all controllers, on asyncio's own event loop. Alone, one task takes and gives
in turn. In a crowd every task holds its permit for one turn of the loop and then asks again, so
that all but those that have one wait; what counts is how many are served in the time.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import importlib.metadata
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from benchmarks.measuring import Answer

BATCH = 200  # operations between two looks at the clock
WARM_UP_PART = 0.25  # of the time, before it counts


@dataclass(frozen=True, slots=True)
class Permits:
    """The verbs of one controller, bound to one resource."""

    acquire: Callable[[], Awaitable[Any]]
    release: Callable[[Any], Any]  # a success


class Driver(Protocol):
    """A module that knows one controller."""

    PACKAGE: str

    def open_permits(self, cap: int, algorithm: str) -> Permits:
        """A controller with one resource, of which so many may be in flight. On a loop."""
        ...


def measure(driver: str, cap: int, waiters: int, seconds: float, algorithm: str) -> Answer:
    """Microseconds of the wall and of the CPU per operation, with so many tasks (0: alone)."""
    module: Driver = importlib.import_module(f"benchmarks.peers.{driver}")
    version = importlib.metadata.version(module.PACKAGE)
    return {**asyncio.run(_measure(module, cap, waiters, seconds, algorithm)), "version": version}


async def _measure(
    module: Driver, cap: int, waiters: int, seconds: float, algorithm: str
) -> Answer:
    permits = module.open_permits(cap, algorithm)
    gc.collect()
    gc.freeze()
    if waiters:
        return await _crowd(permits, waiters, seconds)
    return await _alone(permits, seconds)


async def _alone(permits: Permits, seconds: float) -> Answer:
    acquire, release = permits.acquire, permits.release
    walls: list[float] = []
    cpus: list[float] = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
        for _ in range(BATCH):
            release(await acquire())
        cpus.append((time.thread_time_ns() - cpu) / BATCH / 1_000)
        walls.append((time.perf_counter_ns() - wall) / BATCH / 1_000)
        await asyncio.sleep(0)
    kept = int(len(walls) * WARM_UP_PART)
    return {
        "microseconds": statistics.median(walls[kept:]),
        "cpu": statistics.median(cpus[kept:]),
        "operations": BATCH * len(walls[kept:]),
    }


async def _crowd(permits: Permits, waiters: int, seconds: float) -> Answer:
    acquire, release = permits.acquire, permits.release
    count = 0

    async def ask_for_ever() -> None:
        nonlocal count
        while True:
            lease = await acquire()
            await asyncio.sleep(0)
            release(lease)
            count += 1

    tasks = [asyncio.ensure_future(ask_for_ever()) for _ in range(waiters)]
    await asyncio.sleep(seconds * WARM_UP_PART)
    before, wall, cpu = count, time.perf_counter(), time.thread_time()
    await asyncio.sleep(seconds)
    done = max(1, count - before)
    wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return {"microseconds": 1e6 * wall / done, "cpu": 1e6 * cpu / done, "operations": done}
