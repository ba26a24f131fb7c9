# SPDX-License-Identifier: Apache-2.0
"""Are paid calls of ended jobs forgotten in time, in slices, and nothing else?"""

from __future__ import annotations

import asyncio

import pytest

from penstock import Context
from penstock.errors import StoreUnavailable
from penstock.model.job import JobId
from penstock.requests.journal.retention import JournalRetention
from penstock.stores.store_future import Reply
from penstock.testing import harness
from penstock.testing.virtual_loop import VirtualClock, VirtualLoop
from tests.budget_shop import BudgetShop, today


@pytest.mark.parametrize("setting", ["journal_retention", "retention"])
def test_a_worker_forgets_the_calls_of_jobs_that_ended_long_ago(setting: str) -> None:
    shop = BudgetShop()

    @shop.app.task()
    async def waits(ctx: Context) -> None:
        await asyncio.sleep(1_000)

    settings = {setting: "20s"}
    with harness(shop.app, providers={"api": shop.provider}, settings=settings) as t:
        t.enqueue(shop.ask.job(prompt="p", calls=3), key="old")
        t.drain()
        assert t.store.call_figures(None).result().bought == 3
        t.enqueue(waits.job(), key="slow")
        t.drain()
        assert t.store.calls(t.job("old").id).result() == []
        assert t.store.call_figures(None).result().bought == 0
        assert today(t).bought == 3  # what was spent is not forgotten


def test_it_comes_once_an_hour_and_a_store_that_is_away_is_let_be() -> None:
    loop = VirtualLoop(seed=1)
    clock = VirtualClock(loop)

    asked: list[float] = []

    class Away:
        def prune_calls(self, before: int, after: JobId) -> Reply[object]:
            asked.append(clock.monotonic())
            return Reply.failed(StoreUnavailable("away"))

    async def main() -> None:
        pruning = JournalRetention(Away(), clock, 7 * 86_400.0, lambda: 0.5)  # type: ignore[arg-type]
        for _ in range(3 * 360):
            await clock.sleep(10.0)
            if pruning.is_due:
                assert await pruning.run_once() == 0

    began = clock.monotonic()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()

    assert [round(at - began) for at in asked] == [90, 3690, 7290]
