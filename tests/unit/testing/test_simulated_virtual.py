# SPDX-License-Identifier: Apache-2.0
"""Does a client without a network meet a simulated provider as it would meet a real one?"""

from __future__ import annotations

import asyncio
from types import ModuleType
from typing import Any

import pytest

from penstock.testing import Lognormal, ProviderRules, Reply, SimulatedProvider, run_virtual
from penstock.testing.simulated_provider import Ending, Part

httpx = pytest.importorskip("httpx")
httpx2 = pytest.importorskip("httpx2")

LIBRARIES = pytest.mark.parametrize("library", [httpx2, httpx], ids=["httpx2", "httpx"])


def client(library: ModuleType, provider: SimulatedProvider, **more: Any) -> Any:
    return library.AsyncClient(transport=provider.transport(), base_url=provider.url, **more)


@LIBRARIES
def test_reply_comes_after_its_latency_in_virtual_time(library: ModuleType) -> None:
    provider = SimulatedProvider(ProviderRules(latency=3600.0))

    async def run() -> tuple[Any, float]:
        async with client(library, provider, timeout=None) as http:
            reply = await http.get("/documents/7?page=2")
            return reply, asyncio.get_running_loop().time()

    reply, took = run_virtual(run())

    assert reply.json() == {"path": "/documents/7", "call": 1}
    assert took == 3600.0
    assert provider.counts.served == 1
    assert provider.counts.in_flight == 0


@LIBRARIES
def test_slow_reply_is_a_timeout_of_the_library(library: ModuleType) -> None:
    provider = SimulatedProvider(ProviderRules(latency=60.0))

    async def run() -> float:
        async with client(library, provider, timeout=5.0) as http:
            with pytest.raises(library.ReadTimeout):
                await http.get("/")
            return asyncio.get_running_loop().time()

    assert run_virtual(run()) == 5.0
    assert provider.counts.abandoned == 1
    assert provider.counts.in_flight == 0


@LIBRARIES
def test_reset_in_a_body_is_an_error_of_the_library(library: ModuleType) -> None:
    provider = SimulatedProvider(ProviderRules(reset_rate=1.0))

    async def run() -> None:
        async with client(library, provider) as http:
            with pytest.raises(library.ReadError):
                await http.get("/")

    run_virtual(run())

    assert provider.counts.broken == 1
    assert provider.counts.in_flight == 0


def test_connection_that_ends_before_an_answer_is_an_error_of_the_library() -> None:
    provider = SimulatedProvider(
        script=lambda _: Reply(status=None, ending=Ending.RESET, wait_seconds=1.0)
    )

    async def run() -> None:
        async with client(httpx2, provider) as http:
            with pytest.raises(httpx2.ReadError):
                await http.get("/")

    run_virtual(run())

    assert provider.counts.broken == 1


def test_hung_body_stays_in_flight_until_the_client_leaves() -> None:
    provider = SimulatedProvider(ProviderRules(hang_rate=1.0))

    async def run() -> int:
        async with client(httpx2, provider, timeout=None) as http:
            reading = asyncio.create_task(http.get("/"))
            await asyncio.sleep(1_000)
            held = provider.counts.in_flight
            reading.cancel()
            await asyncio.wait([reading])
            return held

    assert run_virtual(run()) == 1
    assert provider.counts.in_flight == 0
    assert provider.counts.abandoned == 1


def test_stream_is_in_flight_while_it_is_read_and_left_when_it_is_closed() -> None:
    endless = Reply(parts=(Part(b"x", 1.0) for _ in iter(int, 1)))
    provider = SimulatedProvider(script=lambda _: endless)

    async def run() -> list[int]:
        held = []
        async with client(httpx2, provider) as http, http.stream("GET", "/") as reply:
            async for _ in reply.aiter_raw():
                held.append(provider.counts.in_flight)
                if len(held) == 3:
                    break
        return held

    assert run_virtual(run()) == [1, 1, 1]
    assert provider.counts.in_flight == 0


def test_two_runs_of_one_seed_are_the_same_run() -> None:
    def course(seed: int) -> list[tuple[float, int | None, float | None]]:
        rules = ProviderRules(latency=Lognormal(1.0), concurrency=4, failure_rate=0.1)
        provider = SimulatedProvider(rules, seed=seed)

        async def work(http: Any) -> None:
            for _ in range(20):
                reply = await http.get("/")
                await asyncio.sleep(1.0 if reply.status_code == 429 else 0.0)

        async def run() -> None:
            async with client(httpx2, provider) as http:
                await asyncio.gather(*(work(http) for _ in range(6)))

        run_virtual(run(), seed=5)
        return [(call.at_seconds, call.status, call.ended_seconds) for call in provider.log]

    assert course(1) == course(1)
    assert course(1) != course(2)
