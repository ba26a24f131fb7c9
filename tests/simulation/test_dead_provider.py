# SPDX-License-Identifier: Apache-2.0
"""A dead provider keeps nobody from working, and is given up when `give_up_after` says so."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

from penstock import Context, Penstock
from penstock.errors import UsageError
from penstock.model.job import JobState
from penstock.testing import Harness, harness
from penstock.testing.simulated_provider import ProviderRules, SimulatedProvider

SLOTS = 4
WITHIN_SECONDS = 40.0  # virtual
DEAD = {
    "503": ProviderRules(outages=((0, 1e9),)),
    "429": ProviderRules(concurrency=0),
    "429 for long": ProviderRules(concurrency=0, retry_after_seconds=100),
    "reset": ProviderRules(reset_rate=1.0),
}
WELL = ProviderRules(concurrency=2, latency=0.2)


class Shop:
    """Tasks `bad` and `good`, which call a dead provider and a healthy one."""

    def __init__(self, *, declared: bool = False) -> None:
        self.app = app = Penstock("shop")
        dead = app.provider("dead", base_url="http://dead.invalid")
        well = app.provider("well", base_url="http://well.invalid")
        self.harness: Harness | None = None
        self.good_ended: list[float] = []

        @app.task(uses=dead if declared else ())
        async def bad(ctx: Context, n: int) -> None:
            await dead.http.get(f"/{n}")

        @app.task(uses=well if declared else ())
        async def good(ctx: Context, n: int) -> None:
            await well.http.get(f"/{n}")
            assert self.harness is not None
            self.good_ended.append(self.harness.clock.monotonic())

        self.bad, self.good = bad, good

    def run(self, mode: str, *, bad: int = 30, good: int = 30, **tasks: Any) -> float:
        """Run for a while; when it ended, in seconds."""
        providers = {"dead": SimulatedProvider(DEAD[mode]), "well": SimulatedProvider(WELL)}
        settings = {"tasks": tasks, "runtime": {"async_slots": SLOTS}}
        with harness(self.app, providers=providers, settings=settings) as t:
            self.harness = t
            t.enqueue_many(self.bad.job(n=n) for n in range(bad))
            t.enqueue_many(self.good.job(n=n) for n in range(good))
            with suppress(UsageError):  # the dead one is waited for
                t.drain(within=WITHIN_SECONDS)
            self.states = list(t.states.values())
            return t.clock.monotonic()


@pytest.mark.parametrize("mode", DEAD)
def test_f82_a_dead_provider_starves_no_task_of_a_healthy_one(mode: str) -> None:
    """Goal: without `uses=` the healthy one is served at 95% of its rate alone, or better."""
    alone, beside = Shop(), Shop()
    alone.run(mode, bad=0, good=100)

    beside.run(mode, good=100)

    assert len(beside.good_ended) == 100
    assert beside.good_ended[-1] <= alone.good_ended[-1] / 0.95


@pytest.mark.parametrize("declared", [False, True], ids=["learned", "declared"])
@pytest.mark.parametrize("mode", DEAD)
def test_f82_a_dead_provider_is_given_up_within_seconds(mode: str, declared: bool) -> None:
    """Goal: in flight, delayed, waiting for a permit or not begun, every job ends in time."""
    shop = Shop(declared=declared)

    ended_at = shop.run(mode, give_up_after=5)

    assert ended_at <= 5 + 10
    assert Counter(shop.states) == {JobState.ERROR: 30, JobState.DONE: 30}
