# SPDX-License-Identifier: Apache-2.0
"""What do very many who wait do to a provider that refuses, and to each other? In virtual time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from itertools import pairwise

import pytest

from penstock.admission.requests.adaptive.limit import Adaptive
from penstock.admission.requests.controller import AdaptiveRequestAdmissionController
from penstock.admission.requests.policy import ProviderPolicy
from penstock.model.provider import ProviderModelKey, RequestResourceKey
from penstock.model.request import RequestOutcome, RequestReleaseOutcome
from penstock.requests.admission import RequestAdmissionController
from penstock.testing import VirtualClock, run_virtual
from tests.requests import CHAT, EMBEDDING, SUCCESS, Core, item, policy, refused

LATENCY = 1.0  # seconds of a reply
REFUSAL = 0.02  # seconds of a refusal
RETRY_AFTER = 2.0


class Provider:
    """So many at once; during a storm it refuses everything."""

    def __init__(self, capacity: int, storm: tuple[float, float], seed: int) -> None:
        self.capacity = capacity
        self.storm = storm
        self.in_flight = 0
        self.sent: list[float] = []
        self.refused: list[float] = []
        self.answered: list[float] = []
        self._chance = random.Random(seed)

    async def call(self) -> RequestReleaseOutcome:
        loop = asyncio.get_running_loop()
        self.sent.append(loop.time())
        begin, end = self.storm
        if self.in_flight >= self.capacity or begin <= loop.time() < end:
            await asyncio.sleep(REFUSAL)
            self.refused.append(loop.time())
            return refused(RETRY_AFTER)
        self.in_flight += 1
        await asyncio.sleep(LATENCY * self._chance.uniform(0.8, 1.2))
        self.in_flight -= 1
        self.answered.append(loop.time())
        return SUCCESS


def opened(seed: int, cap: int = 256) -> RequestAdmissionController:
    def make(
        declared: ProviderPolicy, key: ProviderModelKey, effective_max: int, now: float
    ) -> Adaptive:
        return Adaptive(effective_max, now, random.Random(seed).random)

    core = AdaptiveRequestAdmissionController([policy(cap)], make)
    return RequestAdmissionController(core, VirtualClock())


async def one_call(
    admission: RequestAdmissionController,
    provider: Provider,
    resource: RequestResourceKey = CHAT,
    group: str = "g",
    weight: int = 1,
) -> int:
    """Send until it is answered; how often it was refused."""
    refusals = 0
    while True:
        lease = await admission.acquire_async(item(resource, group, weight, refusals=refusals))
        ending = RequestReleaseOutcome(RequestOutcome.LOCAL_CANCELLED)
        try:
            ending = await provider.call()
        finally:
            admission.release(lease, ending)
        if ending is SUCCESS:
            return refusals
        refusals += 1


@pytest.mark.parametrize("seed", [1])
def test_f44_a_storm_of_refusals_with_10_000_waiting(seed: int) -> None:
    capacity, storm = 40, (60.0, 120.0)

    async def main() -> None:
        admission = opened(seed)
        provider = Provider(capacity, storm, seed)
        calls = [
            asyncio.get_running_loop().create_task(one_call(admission, provider))
            for _ in range(10_000)
        ]
        await asyncio.sleep(storm[0] + 2.0)
        assert admission.core.waiting > 7_000
        await asyncio.sleep(storm[1] - storm[0] + 150.0)
        during = [at for at in provider.sent if storm[0] + 2.0 <= at < storm[1]]
        assert 1 <= len(during) <= (storm[1] - storm[0]) / RETRY_AFTER + 1, "it hammered"
        assert all(b - a >= RETRY_AFTER for a, b in pairwise(during)), "two in one cool-down"
        limit = admission.pressure.snapshot(CHAT)
        assert limit is not None
        assert limit.limit >= 1
        late = [at for at in provider.answered if storm[1] + 60.0 <= at < storm[1] + 120.0]
        assert len(late) >= 0.9 * capacity / LATENCY * 60.0
        assert admission.core.in_flight <= limit.effective_max
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert (admission.core.in_flight, admission.core.waiting) == (0, 0)

    run_virtual(main())


@pytest.mark.parametrize("seed", [1, 2])
def test_f50_no_herd_leaves_after_a_cool_down(seed: int) -> None:
    storm = (60.0, 61.0)

    async def main() -> None:
        admission = opened(seed)
        provider = Provider(64, storm, seed)
        calls = [
            asyncio.get_running_loop().create_task(one_call(admission, provider))
            for _ in range(8_000)
        ]
        await asyncio.sleep(storm[0] + 30.0)
        rests = [(b - a, b) for a, b in pairwise(provider.sent) if b > storm[0]]
        rest, again = max(rests)
        assert rest >= RETRY_AFTER - 2 * REFUSAL, "there was no cool-down"
        herd = [at for at in provider.sent if again <= at < again + LATENCY / 10]
        assert len(herd) <= 2
        assert len([at for at in provider.sent if again <= at < again + LATENCY]) <= 64
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert (admission.core.in_flight, admission.core.waiting) == (0, 0)

    run_virtual(main())


def test_two_domains_of_weights_3_and_1_behind_one_limit_get_3_to_1() -> None:
    async def main() -> None:
        admission = opened(3)
        provider = Provider(32, (-1.0, -1.0), 3)
        answered: Counter[str] = Counter()

        async def ask_for_ever(resource: RequestResourceKey, weight: int) -> None:
            while True:
                await one_call(admission, provider, resource, resource.domain, weight)
                answered[resource.domain] += 1

        calls = [
            asyncio.get_running_loop().create_task(ask_for_ever(resource, weight))
            for resource, weight in ((CHAT, 3), (EMBEDDING, 1))
            for _ in range(200)
        ]
        await asyncio.sleep(30.0)
        answered.clear()
        await asyncio.sleep(200.0)
        assert answered["chat"] / answered["embedding"] == pytest.approx(3.0, rel=0.05)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    run_virtual(main())


def test_thousands_of_hosts_behind_one_cap_take_turns() -> None:
    """Every host gets its first call before any gets its third."""

    async def main() -> None:
        core = Core(policy(50))
        admission = RequestAdmissionController(core, VirtualClock())
        order: list[str] = []

        async def ask(host: str) -> None:
            lease = await admission.acquire_async(item(RequestResourceKey("p", host, "http")))
            order.append(host)
            await asyncio.sleep(0.1)
            admission.release(lease, SUCCESS)

        hosts = [f"host-{number}" for number in range(2_000)]
        await asyncio.gather(*(ask(host) for host in hosts for _ in range(3)))
        seen: Counter[str] = Counter()
        for host in order[50:]:  # those found it empty
            seen[host] += 1
            if seen[host] == 3:
                break
        assert len(seen) >= len(hosts) - 50

    run_virtual(main())
