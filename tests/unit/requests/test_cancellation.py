# SPDX-License-Identifier: Apache-2.0
"""After a cancellation at any await of the path, permits held equal requests in flight.

Goal: F48 at the transport. Method: virtual time and a wire that waits at every step. One call is
cancelled at its n-th await, for every n there is: once while it waits there, and once in the same
turn of the loop in which it would have gone on. Another call goes before it and another after it.
`REQUEST_CANCELS=100000` cancels that often at random.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import pytest

from penstock.requests.exchange import ReplyLimits
from penstock.testing.virtual_loop import VirtualClock, run_virtual
from tests.connections import Cancelled
from tests.outbound_run import Run, outbound_run

STEP_SECONDS = 0.1
CANCELS = int(os.environ.get("REQUEST_CANCELS", "1000"))


class FakeWire:
    """Counts what is in flight, as a provider would."""

    def __init__(self, statuses: Callable[[str], int], chunks: int = 2) -> None:
        self._statuses = statuses
        self.chunks = chunks
        self.in_flight = 0
        self.in_flight_max = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight, self.in_flight_max)
        try:
            await asyncio.sleep(STEP_SECONDS)
            await asyncio.sleep(0)
        except BaseException:
            self.in_flight -= 1
            raise
        status = self._statuses(request.url.path)
        return httpx2.Response(status, headers={"retry-after": "0"}, stream=FakeBody(self))

    async def aclose(self) -> None: ...


class FakeBody(httpx2.AsyncByteStream):
    """Closes itself when reading it raises, as that of httpcore2 does."""

    def __init__(self, wire: FakeWire) -> None:
        self._wire = wire
        self._is_open = True

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            for _ in range(self._wire.chunks):
                await asyncio.sleep(STEP_SECONDS)
                yield b"x"
        except BaseException:
            self._close()
            raise

    async def aclose(self) -> None:
        try:
            await asyncio.sleep(0)
        finally:
            self._close()

    def _close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._wire.in_flight -= 1


def refused_once() -> Callable[[str], int]:
    seen: set[str] = set()

    def status(path: str) -> int:
        if path == "/victim" and path not in seen:
            seen.add(path)
            return 429
        return 200

    return status


async def by_get(run: Run) -> None:
    await run.clients.http.get("/victim")


async def by_stream(run: Run) -> None:
    async with run.clients.http.stream("GET", "/victim") as reply:
        async for _ in reply.aiter_bytes():
            await asyncio.sleep(STEP_SECONDS)


async def by_half_a_stream(run: Run) -> None:
    async with run.clients.http_client("httpx2").stream("GET", "/victim") as reply:
        async for _ in reply.aiter_bytes():
            break


async def by_admit(run: Run) -> None:
    async with run.clients.admit(None, "http", None):
        await asyncio.sleep(STEP_SECONDS)


async def cancel_at(call: Callable[[Run], Any], at: int, *, as_it_wakes: bool) -> bool:
    """Was there an n-th await at which the call was cancelled?"""
    wire = FakeWire(refused_once())
    async with outbound_run(
        "http://host",
        max_parallel=1,
        clock=VirtualClock(),
        make_transport=lambda module: wire,
        limits=ReplyLimits(deadline_seconds=30.0),
    ) as run:
        before = asyncio.ensure_future(run.clients.http.get("/before"))
        await asyncio.sleep(0)
        victim = Cancelled(call(run), at, as_it_wakes=as_it_wakes)

        async def suffer() -> None:
            await victim

        task = asyncio.ensure_future(suffer())
        after = asyncio.ensure_future(run.clients.http.get("/after"))
        await asyncio.wait([task])
        assert run.admission.held == wire.in_flight
        assert (await before).status_code == 200
        assert (await after).status_code == 200
        for _ in range(5):
            await asyncio.sleep(0)

        assert run.admission.held == wire.in_flight == 0
        assert run.admission.core.waiting == 0
        assert wire.in_flight_max == 1
        return victim.waits >= at


@pytest.mark.parametrize("as_it_wakes", [False, True])
@pytest.mark.parametrize("call", [by_get, by_stream, by_half_a_stream, by_admit])
def test_permits_equal_requests_in_flight_after_a_cancellation_at_every_await(
    call: Callable[[Run], Any], as_it_wakes: bool
) -> None:
    at = 1
    while run_virtual(cancel_at(call, at, as_it_wakes=as_it_wakes)):
        at += 1

    assert at > (2 if call is by_admit else 5)  # there were that many awaits


def cancel_at_random(seed: int) -> int:
    """Cancel some of many calls, whenever; how many were."""
    chance = random.Random(seed)
    cancelled = 0

    async def main() -> None:
        nonlocal cancelled
        wire = FakeWire(lambda path: chance.choice([200, 200, 200, 429, 503, 500]))
        async with outbound_run(
            "http://host",
            max_parallel=3,
            clock=VirtualClock(),
            make_transport=lambda module: wire,
            limits=ReplyLimits(deadline_seconds=0.35),
        ) as run:
            calls = [by_get, by_stream, by_half_a_stream, by_admit]
            tasks = [asyncio.ensure_future(chance.choice(calls)(run)) for _ in range(200)]
            while running := [task for task in tasks if not task.done()]:
                await asyncio.sleep(chance.choice([0.0, chance.random() * 0.3]))
                for task in chance.sample(running, min(3, len(running))):
                    cancelled += task.cancel()
                assert run.admission.held >= wire.in_flight
                assert wire.in_flight <= 3
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(1.0)

            assert run.admission.held == wire.in_flight == 0
            assert run.admission.core.waiting == 0
            assert not run.admission._futures

    run_virtual(main(), seed)
    return cancelled


def test_permits_equal_requests_in_flight_after_cancellations_at_random() -> None:
    cancelled = seed = 0
    while cancelled < CANCELS:
        cancelled += cancel_at_random(seed)
        seed += 1
