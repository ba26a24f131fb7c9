# SPDX-License-Identifier: Apache-2.0
"""Providers that are ill: failures, resets, bodies without end, callers who leave. Virtual time."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Iterator

import pytest

from penstock import Context, Penstock
from penstock.testing import ProviderRules, Reply, SimulatedProvider, SimulatedRequest, harness
from penstock.testing.simulated_provider import Ending, Part
from tests.faults.provider_world import run_calls

DEADLINE_SECONDS = 600.0  # of one reply
BODY_BYTES = 64 * 1024 * 1024  # of one reply


def first_only(reply: Reply, request: SimulatedRequest) -> Reply | None:
    return reply if request.number == 1 else None


def test_f46_failures_and_resets_cost_no_attempt_and_give_no_half_results() -> None:
    def unreachable(request: SimulatedRequest) -> Reply | None:
        if request.number % 7 == 0:
            return Reply(status=None, ending=Ending.RESET)
        return None

    provider = SimulatedProvider(
        ProviderRules(failure_rate=0.2, reset_rate=0.2, latency=0.2), script=unreachable
    )

    course = run_calls(provider, 200)

    assert course.states == {"done": 200}
    assert provider.counts.failed > 20
    assert provider.counts.broken > 20
    assert provider.counts.in_flight == 0


def test_f46_outage_is_waited_out_with_few_calls() -> None:
    provider = SimulatedProvider(ProviderRules(outages=((5, 65),), latency=0.5, concurrency=16))

    course = run_calls(provider, 1_000)

    assert course.states == {"done": 1_000}
    in_outage = sum(call.status == 503 for call in provider.log)
    assert in_outage < 300


@pytest.mark.parametrize("where", ["before the head", "in the body"])
def test_f47_hung_reply_ends_at_its_deadline_and_gives_its_permit_back(where: str) -> None:
    begun = (Part(b'{"call":'),) if where == "in the body" else ()
    hung = Reply(status=200 if begun else None, parts=begun, ending=Ending.HANG, length=100)
    provider = SimulatedProvider(script=lambda request: first_only(hung, request))

    course = run_calls(provider, 20, settings={"providers": {"api": {"max_parallel": 1}}})

    assert course.states == {"done": 20}
    ended = provider.log[0].ended_seconds
    assert ended is not None
    assert ended <= DEADLINE_SECONDS + 1
    assert provider.counts.in_flight == 0
    assert provider.counts.in_flight_max == 1


def test_f47_byte_by_byte_reply_ends_at_its_deadline() -> None:
    slow = Reply(parts=tuple(Part(b"x", 10.0) for _ in range(1_000)), length=1_000)
    provider = SimulatedProvider(script=lambda request: first_only(slow, request))

    course = run_calls(provider, 5)

    assert course.states == {"done": 5}
    ended = provider.log[0].ended_seconds
    assert ended is not None
    assert ended <= DEADLINE_SECONDS + 1


def test_f47_endless_reply_is_cut_at_its_size_and_the_others_go_on() -> None:
    sent = 0

    def endless() -> Iterator[Part]:
        nonlocal sent
        while True:
            sent += 1
            yield Part(b"x" * 1_048_576, 0.001)

    provider = SimulatedProvider(script=lambda request: first_only(Reply(parts=endless()), request))

    course = run_calls(provider, 5, max_attempts=2)

    assert course.states == {"done": 5}
    assert sent <= BODY_BYTES // 1_048_576 + 2
    assert provider.counts.in_flight == 0


def test_f47_small_reply_that_unpacks_to_a_large_one_is_cut() -> None:
    bomb = Reply.of(
        gzip.compress(bytes(2 * BODY_BYTES)),
        headers=[("content-encoding", "gzip"), ("content-type", "application/json")],
    )
    provider = SimulatedProvider(script=lambda _: bomb)

    course = run_calls(provider, 1)

    assert course.states == {"error": 1}
    assert set(course.errors.values()) == {"ReplyRefused"}


def test_f48_callers_who_leave_at_any_moment_leave_no_permit_behind() -> None:
    """Calls end at every moment of a grid, some while they wait, some on the wire, some reading."""
    cap = 3
    app = Penstock("leaving")
    provider = SimulatedProvider(
        ProviderRules(latency=lambda request: 0.1 + request.number % 5 * 0.01)
    )
    api = app.provider("api", base_url=provider.url, max_parallel=cap)

    async def call(patience: float | None) -> None:
        try:
            async with asyncio.timeout(patience):
                (await api.http.get("/")).raise_for_status()
        except TimeoutError:
            pass

    @app.task(uses=api, max_attempts=1, timeout=None)
    async def leaving(ctx: Context, steps: int) -> int:
        for step in range(steps):
            await asyncio.gather(*(call(step * 0.005 + index * 0.01) for index in range(12)))
        await asyncio.sleep(10)
        return provider.counts.in_flight

    @app.task(uses=api, max_attempts=1, timeout=None)
    async def staying(ctx: Context) -> int:
        most = 0
        calls = [asyncio.ensure_future(call(None)) for _ in range(30)]
        while not all(one.done() for one in calls):
            most = max(most, provider.counts.in_flight)
            await asyncio.sleep(0.01)
        return most

    with harness(app, seed=4, providers={"api": provider}) as t:
        t.enqueue(leaving.job(steps=60), key="leaving")
        t.drain()
        t.enqueue(staying.job(), key="staying")
        t.drain()

        assert t.results["leaving"] == 0
        assert t.results["staying"] == cap
    assert provider.counts.in_flight_max == cap
    assert provider.counts.abandoned > 50
