# SPDX-License-Identifier: Apache-2.0
"""Is a call written down before it leaves, its answer before it is had, whatever the store does?"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from penstock.errors import BudgetUsedUp, StoreUnavailable, StoreUnknown
from penstock.model.job import JobState
from penstock.model.spending import Amount, Budget, Period
from penstock.requests.journal.paid_policy import CALL_MICROS_MAX
from penstock.stores.store_future import Reply as StoreReply
from penstock.testing import harness
from penstock.testing.simulated_provider import (
    Reply,
    SimulatedProvider,
    SimulatedRequest,
)
from tests.paid_shop import AwayStore, Lost, Shop, calls_of, listen, numbered


@pytest.mark.parametrize("name", ["intend", "answered", "closed", "calls", "answer_of", "reused"])
@pytest.mark.parametrize("takes", [False, True])
def test_a_store_that_is_away_for_a_while_is_waited_for(name: str, takes: bool) -> None:
    async def body(shop: Shop) -> list[int]:
        found = [await shop.ask("a"), await shop.ask("b")]
        await shop.api.http_client().post("/refused", json={})
        if shop.attempts == 1:
            raise Lost
        return [*found, await shop.ask("c")]

    def script(request: SimulatedRequest) -> Reply | None:
        return Reply.of({}, status=404) if request.path == "/refused" else None

    shop = Shop(body, SimulatedProvider(script=script, answer=numbered))
    kind = StoreUnknown if takes else StoreUnavailable
    with harness(shop.app, providers={"api": shop.provider}) as t:
        away = AwayStore(t.store, name, [kind("away") for _ in range(3)], takes=takes)
        t.enqueue(shop.work.job(), key="job")
        t.drain()
        assert t.results["job"] == [1, 2, 5]
        figures = t.store.call_figures(None).result()
        assert figures.bought == 3
        if name != "reused" or not takes:
            assert figures.reused == 2
        assert figures.in_doubt == 0
        assert away.asked >= 2
    assert shop.provider.counts.served == 3


def test_whoever_leaves_while_his_answer_is_written_finds_it_when_he_asks_again() -> None:
    async def body(shop: Shop) -> int:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.2):  # the provider takes 0.1, and the store is away
                await shop.ask("a")
        return await shop.ask("a")

    shop = Shop(body)
    with harness(shop.app, providers={"api": shop.provider}) as t:
        AwayStore(t.store, "answered", [StoreUnavailable("away") for _ in range(6)], takes=False)
        t.enqueue(shop.work.job(), key="job")
        t.drain()
        assert t.results["job"] == 1
    assert shop.provider.counts.calls == 1


def test_a_call_is_begun_again_when_its_end_before_is_durable() -> None:
    async def body(shop: Shop) -> int:
        client = shop.api.http_client()
        assert (await client.post("/ask", json={"prompt": "x"})).status_code == 429
        return int((await client.post("/ask", json={"prompt": "x"})).json()["n"])

    def script(request: SimulatedRequest) -> Reply | None:
        return Reply.of({}, status=429) if request.number == 1 else None

    shop = Shop(body, SimulatedProvider(script=script, answer=numbered))
    order: list[str] = []
    with harness(shop.app, providers={"api": shop.provider}) as t:
        AwayStore(t.store, "closed", [StoreUnavailable("away") for _ in range(6)], takes=False)
        for name in ("intend", "closed", "answered"):
            listen(t.store, name, order)
        t.enqueue(shop.work.job(), key="job")
        t.drain()
        assert t.results["job"] == 2
    assert order == ["intend", "closed", "intend", "answered"]


def test_a_first_attempt_looks_nothing_up() -> None:
    async def body(shop: Shop) -> int:
        return await shop.ask("a")

    shop = Shop(body)
    order: list[str] = []
    with harness(shop.app, providers={"api": shop.provider}) as t:
        listen(t.store, "calls", order)
        t.enqueue(shop.work.job(), key="job")
        t.drain()
        assert t.results["job"] == 1
    assert order == []


def test_a_budget_that_is_used_up_gives_the_job_back_uncharged() -> None:
    class Wrapped(Exception):
        """What an SDK makes of an error of its transport."""

    async def body(shop: Shop) -> list[int]:
        found = [await shop.ask("a")]
        try:
            return [*found, await shop.ask("b")]
        except BudgetUsedUp as error:
            refusals.append(str(error))
            raise Wrapped from error

    refusals: list[str] = []
    shop = Shop(body, SimulatedProvider(answer=numbered))
    budget = Budget("provider:api", Period.RUN, tokens=-1)
    with harness(shop.app, providers={"api": shop.provider}) as t:
        inner, intents = t.store.intend, 0

        def intend(asked: Any, _: Any) -> StoreReply[Any]:
            nonlocal intents
            intents += 1
            return inner(asked, [budget] if intents in (2, 3) else [])

        t.store.intend = intend  # type: ignore[method-assign,assignment]
        t.enqueue(shop.work.job(), key="job")
        for _ in range(2):  # it is not tried again in the same run
            with pytest.raises(BudgetUsedUp, match=r"\[budget.provider.api.run\]"):
                t.drain()
        t.drain()
        assert t.results["job"] == [1, 2]
        assert t.job("job").attempts == 0
        assert t.store.call_figures(None).result().in_doubt == 0
    assert shop.attempts == 3
    assert shop.provider.counts.served == 2
    assert "[budget.provider.api.run]" in refusals[0]
    assert "0 tokens" in refusals[0]


def test_usage_and_cost_are_settled_and_reserves_given_back() -> None:
    async def body(shop: Shop) -> Any:
        asked = {"model": "gpt-x", "messages": [], "max_tokens": 50}
        reply = await shop.api.http.post("/v1/chat/completions", json=asked)
        return reply.json()["usage"]

    shop = Shop(body, SimulatedProvider())
    with harness(shop.app, providers={"api": shop.provider}) as t:
        t.enqueue(shop.work.job(), key="job")
        t.drain()
        usage = t.results["job"]
        (call,) = calls_of(t)
        answer = t.store.answer_of(call.key).result()
        assert answer is not None
        assert answer.input_tokens == usage["prompt_tokens"]
        assert answer.output_tokens == usage["completion_tokens"]
        assert call.used == answer.used == Amount(0, usage["total_tokens"])
        assert call.reserved == Amount()
        assert call.model == "gpt-x"


def test_half_a_usage_costs_the_other_half_as_it_was_reserved() -> None:
    def half(request: SimulatedRequest) -> dict[str, Any]:
        return {"usage": {"prompt_tokens": 12, "completion_tokens": "many"}}

    async def body(shop: Shop) -> None:
        asked = {"model": "gpt-x", "messages": [], "max_tokens": 50}
        await shop.api.http.post("/v1/chat/completions", json=asked)

    shop = Shop(body, SimulatedProvider(answer=half))
    shop.run()

    assert shop.figures.spent == Amount(0, 12 + 50)
    assert (shop.figures.bought, shop.figures.estimated) == (1, 1)


def test_whatever_a_provider_claims_is_counted_or_not_believed() -> None:
    claimed = iter([2**63, 10**9, 10**8, -1, 1e300])

    def absurd(request: SimulatedRequest) -> dict[str, Any]:
        count = next(claimed)
        return {"usage": {"prompt_tokens": count, "completion_tokens": count}}

    async def body(shop: Shop) -> None:
        for number in range(5):
            asked = {"model": "gpt-x", "messages": [number], "max_tokens": 50}
            await shop.api.http.post("/v1/chat/completions", json=asked)

    price = {"usd_per_million_tokens": {"input": 100_000, "output": 100_000}}
    shop = Shop(body, SimulatedProvider(answer=absurd), models={"gpt-x": price})
    shop.run()

    assert shop.state is JobState.DONE
    assert (shop.figures.bought, shop.figures.estimated) == (5, 4)
    assert shop.figures.spent.tokens > 2 * 10**8
    assert shop.figures.spent.micros < 2 * CALL_MICROS_MAX
