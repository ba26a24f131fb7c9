# SPDX-License-Identifier: Apache-2.0
"""Work that is held back costs other work no time: whoever ends makes room for the next at once."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from penstock import Context, Penstock
from penstock.errors import BudgetUsedUp, UsageError
from penstock.testing import harness
from penstock.testing.simulated_provider import ProviderRules, SimulatedProvider
from tests.budget_shop import BudgetShop

JOBS = 100
SECONDS = 0.01  # of each
MOST = 1.2  # times the time without the work that is held back

SETTINGS: dict[str, Any] = {"limits": {"host": {"*": 1}}}


def add_steps(app: Penstock) -> tuple[Any, Any, list[float]]:
    """Tasks that run one after the other: by a keyed limit, and as a chain that grows."""
    ended: list[float] = []

    @app.task(limits={"host": "one"})
    async def step(ctx: Context, n: int) -> None:
        await asyncio.sleep(SECONDS)
        ended.append(asyncio.get_running_loop().time())

    @app.task()
    async def link(ctx: Context, left: int) -> None:
        await asyncio.sleep(SECONDS)
        ended.append(asyncio.get_running_loop().time())
        if left:
            ctx.enqueue(link.job(left=left - 1), key=f"link{left - 1}", delay=timedelta(seconds=0))

    return step, link, ended


def work(kind: str, step: Any, link: Any) -> list[Any]:
    if kind == "keyed":
        return [step.job(n=n) for n in range(JOBS)]
    return [link.job(left=JOBS - 1)]


def alone_seconds(kind: str) -> float:
    """How long the work takes with nothing held back beside it."""
    app = Penstock("alone")
    step, link, ended = add_steps(app)
    with harness(app, settings=SETTINGS) as t:
        t.enqueue_many(work(kind, step, link))
        t.drain()
    assert len(ended) == JOBS
    return ended[-1]


@pytest.mark.parametrize("kind", ["keyed", "chain"])
def test_f81_jobs_that_a_budget_holds_back_cost_others_no_time(kind: str) -> None:
    shop = BudgetShop()
    step, link, ended = add_steps(shop.app)
    settings = {**SETTINGS, "budget": {"run": {"usd": 0.0001}}}

    with harness(shop.app, providers={"api": shop.provider}, settings=settings) as t:
        t.enqueue_many(shop.ask.job(prompt=f"p{n}") for n in range(50))
        t.enqueue_many(work(kind, step, link))
        with pytest.raises(BudgetUsedUp):
            t.drain()

    assert len(ended) == JOBS
    assert ended[-1] <= MOST * alone_seconds(kind)


@pytest.mark.parametrize("kind", ["keyed", "chain"])
def test_f81_a_provider_that_cools_down_costs_others_no_time(kind: str) -> None:
    app = Penstock("cools")
    api = app.provider("api", base_url="http://simulated.invalid", max_parallel=1)
    step, link, ended = add_steps(app)

    @app.task(uses=api)
    async def fetch(ctx: Context, n: int) -> None:
        await api.http.get(f"/{n}")

    simulated = SimulatedProvider(ProviderRules(concurrency=0, retry_after_seconds=25))
    with harness(app, providers={"api": simulated}, settings=SETTINGS) as t:
        t.enqueue_many(fetch.job(n=n) for n in range(50))
        t.enqueue_many(work(kind, step, link))
        with suppress(UsageError):  # the provider never serves
            t.drain(within=60)

    assert simulated.counts.refused > 0
    assert len(ended) == JOBS
    assert ended[-1] <= MOST * alone_seconds(kind)
