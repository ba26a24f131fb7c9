# SPDX-License-Identifier: Apache-2.0
"""Does a provider that refuses slow down the work of another one, end to end?"""

from __future__ import annotations

import pytest

from penstock import Context, Penstock
from penstock.testing import ProviderRules, SimulatedProvider, harness
from tests.depth import depth

CALLS = 300


def seconds_of_b(slots: int, *, beside_a: bool) -> float:
    """When B's last call has ended; A, if there, has work first and refuses all the time."""
    app = Penstock("two")
    sick = SimulatedProvider(ProviderRules(concurrency=0, retry_after_seconds=20))
    well = SimulatedProvider(ProviderRules(concurrency=12, latency=0.5))
    a = app.provider("a", base_url="http://a.invalid")
    b = app.provider("b", base_url="http://b.invalid")

    @app.task(uses=a, max_attempts=1)
    async def of_a(ctx: Context, number: int) -> None:
        (await a.http.get(f"/{number}")).raise_for_status()

    @app.task(uses=b, max_attempts=1)
    async def of_b(ctx: Context, number: int) -> None:
        (await b.http.get(f"/{number}")).raise_for_status()
        if well.counts.served >= CALLS:
            sick.change(concurrency=None)  # so that the drain comes to an end

    settings = {"runtime": {"async_slots": slots}}
    with harness(app, settings=settings, providers={"a": sick, "b": well}) as t:
        if beside_a:
            t.enqueue_many(of_a.job(number=number) for number in range(CALLS))
        t.enqueue_many(of_b.job(number=number) for number in range(CALLS))
        t.drain()
        assert set(t.states.values()) == {"done"}
    ends = [call.ended_seconds for call in well.log if call.ended_seconds is not None]
    return max(ends)


@pytest.mark.parametrize("slots", depth(quick=[32, 4], soak=[32, 16, 8, 4]))
def test_provider_in_cooldown_leaves_the_other_its_throughput(slots: int) -> None:
    """B needs 12 slots; A begins in some of them, and lends them while it cools down."""
    alone = seconds_of_b(slots, beside_a=False)

    beside = seconds_of_b(slots, beside_a=True)

    assert alone / beside >= 0.95
