# SPDX-License-Identifier: Apache-2.0
"""Is a budget kept, spent as far as it goes, and does a run end in good order where it ends?"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import Context
from penstock.errors import BudgetUsedUp
from penstock.model.job import JobState
from penstock.observe.explain import RunFacts, run_facts
from penstock.testing import Harness, harness
from penstock.testing.simulated_provider import ProviderRules, Reply, SimulatedRequest
from tests.budget_shop import CHAT, BudgetShop, set_budgets, today
from tests.depth import depth

ASK = 60  # tokens that a prompt of these tests may be estimated at, at most
MOST = ASK + 2 * 100  # micro-dollars that one call may be estimated at


def dollars(micros: int) -> float:
    return micros / 1_000_000


def enqueue(t: Harness, shop: BudgetShop, jobs: int, **arguments: Any) -> None:
    for number in range(jobs):
        t.enqueue(shop.ask.job(prompt=f"p{number}", **arguments), key=f"ask{number}")


def done(t: Harness) -> int:
    return sum(state is JobState.DONE for state in t.states.values())


def test_a_run_stops_at_its_budget_and_says_so_in_one_sentence() -> None:
    shop = BudgetShop()
    budget = {"budget": {"run": {"usd": 0.001}}}
    with harness(shop.app, providers={"api": shop.provider}, settings=budget) as t:
        enqueue(t, shop, 20)
        with pytest.raises(BudgetUsedUp) as caught:
            t.drain()
        spent = today(t).spent.micros
        assert 0 < done(t) < 20
        assert 1000 - MOST < spent <= 1000
        assert today(t).reserved.micros == 0
        assert set(t.states.values()) == {JobState.DONE, JobState.QUEUED}
        assert {t.job(key).attempts for key in t.states} == {0}
    sentence = str(caught.value)
    assert caught.value.budget == "budget.run"
    assert sentence.startswith("The budget [budget.run] of $0.001 a run is used up ($0.000")
    assert (
        "raise budget.run.usd = 0.001 in penstock.toml, then run the same command again" in sentence
    )


def test_the_record_of_a_run_tells_which_budget_has_ended_it() -> None:
    shop = BudgetShop()
    budget = {"budget": {"run": {"usd": 0.001}}}
    with harness(shop.app, providers={"api": shop.provider}, settings=budget) as t:
        enqueue(t, shop, 20)
        with pytest.raises(BudgetUsedUp) as caught:
            t.drain()
        facts = run_facts(t.store.run_parts(None).result())
        assert isinstance(facts, RunFacts)
        assert facts.over_budget == str(caught.value)
        set_budgets(t, run={"usd": 1})
        t.drain()
        facts = run_facts(t.store.run_parts(None).result())
        assert isinstance(facts, RunFacts)
        assert facts.over_budget is None


def test_what_is_left_is_done_when_the_budget_is_raised_and_nothing_is_bought_twice() -> None:
    whole = BudgetShop()
    with harness(whole.app, providers={"api": whole.provider}) as t:
        enqueue(t, whole, 12, calls=3)
        t.drain()
        wanted, cost = dict(t.results), today(t).spent

    shop = BudgetShop()
    budget = {"budget": {"day": {"usd": dollars(cost.micros // 2)}}}
    with harness(shop.app, providers={"api": shop.provider}, settings=budget) as t:
        enqueue(t, shop, 12, calls=3)
        with pytest.raises(BudgetUsedUp, match="opens again at midnight UTC"):
            t.drain()
        assert done(t) < 12
        set_budgets(t, day={"usd": dollars(cost.micros + MOST)})
        t.drain()
        assert dict(t.results) == wanted
        assert today(t).spent == cost
        assert shop.provider.counts.served == whole.provider.counts.served == 36
        assert t.store.call_figures(None).result().in_doubt == 0


def test_a_scoped_budget_holds_back_its_own_task_only() -> None:
    shop = BudgetShop()
    budget = {"budget": {"task": {"ask": {"run": {"tokens": 300}}}}}
    with harness(shop.app, providers={"api": shop.provider}, settings=budget) as t:
        enqueue(t, shop, 10)
        for number in range(10):
            t.enqueue(shop.other.job(prompt=f"o{number}"), key=f"other{number}")
            t.enqueue(shop.free.job(number=number), key=f"free{number}")
        with pytest.raises(BudgetUsedUp) as caught:
            t.drain()
        states = t.states
        for number in range(10):
            assert states[f"other{number}"] == states[f"free{number}"] == "done"
        left = [key for key, state in states.items() if state != "done"]
        assert left
        assert all(key.startswith("ask") for key in left)
        assert today(t, "task:ask").spent.tokens <= 300
    assert caught.value.budget == "budget.task.ask.run"
    assert "raise budget.task.ask.run.tokens" in str(caught.value)


def test_a_budget_of_a_model_holds_back_who_calls_it() -> None:
    shop = BudgetShop()
    budget = {"budget": {"model": {"api/n": {"run": {"usd": 0.0001}}}}}
    with harness(shop.app, providers={"api": shop.provider}, settings=budget) as t:
        enqueue(t, shop, 3)
        t.enqueue(shop.other.job(prompt="o"), key="other")
        with pytest.raises(BudgetUsedUp, match=r'raise budget\.model\."api/n"\.run\.usd'):
            t.drain()
        assert done(t) == 3


def test_a_task_that_is_held_back_is_not_leased_again_in_its_run() -> None:
    shop = BudgetShop(ProviderRules(latency=50.0))
    budget = {"budget": {"task": {"ask": {"run": {"tokens": 1}}}}}
    with harness(shop.app, providers={"api": shop.provider}, settings=budget) as t:
        enqueue(t, shop, 2_000)
        t.enqueue(shop.other.job(prompt="slow"), key="other")
        with pytest.raises(BudgetUsedUp):
            t.drain()
        assert t.states["other"] == "done"
        tokens = [t.job(f"ask{number}").token for number in range(2_000)]
    assert shop.provider.counts.calls == 1
    assert max(tokens) == 1  # each was leased once at most
    assert len(shop.started) <= 2 * 256 + 1


def test_money_that_calls_on_their_way_have_reserved_is_waited_for() -> None:
    """A budget for one estimate more than the whole really costs: nobody is given back."""
    shop = BudgetShop(ProviderRules(latency=10.0))
    with harness(shop.app, providers={"api": shop.provider}) as t:
        enqueue(t, shop, 30)
        t.drain()
        cost = today(t).spent.micros

    shop = BudgetShop(ProviderRules(latency=10.0))
    budget = {"budget": {"run": {"usd": dollars(cost + MOST)}}}
    with harness(shop.app, providers={"api": shop.provider}, settings=budget) as t:
        enqueue(t, shop, 30)
        t.drain()
        assert done(t) == 30
        assert today(t).spent.micros == cost
    assert len(shop.started) == 30


def test_a_call_inside_a_stream_does_not_wait_for_others_that_wait_for_it() -> None:
    """Each of two attempts keeps a stream open and wants more: nobody would ever give back."""
    shop = BudgetShop(ProviderRules(latency=2.0))
    asked = {"model": "m", "messages": [{"content": "p"}], "max_tokens": 100}

    @shop.app.task(uses=shop.api, timeout=None)
    async def nested(ctx: Context) -> None:
        async with shop.api.http.stream("POST", CHAT, json=asked) as reply:
            await asyncio.sleep(1.0)  # until the other has its stream
            await shop.api.http.post(CHAT, json={**asked, "max_tokens": 90})
            await reply.aread()

    budget = {"budget": {"run": {"tokens": 2 * (100 + ASK)}}}
    with harness(shop.app, providers={"api": shop.provider}, settings=budget) as t:
        t.enqueue(nested.job(), key="a")
        t.enqueue(nested.job(), key="b")
        began = t.clock.monotonic()
        with pytest.raises(BudgetUsedUp):
            t.drain()
        assert t.clock.monotonic() - began < 60


def test_calls_of_one_attempt_wait_for_each_other() -> None:
    shop = BudgetShop(ProviderRules(latency=1.0))
    asked = {"model": "m", "messages": [{"content": "p"}], "max_tokens": 100}

    @shop.app.task(uses=shop.api)
    async def several(ctx: Context) -> int:
        client = shop.api.http
        replies = await asyncio.gather(
            *(client.post(CHAT, json={**asked, "user": str(n)}) for n in range(6))
        )
        return len(replies)

    budget = {"budget": {"run": {"tokens": 6 * 20 + 100 + ASK}}}  # each costs 17
    with harness(shop.app, providers={"api": shop.provider}, settings=budget) as t:
        t.enqueue(several.job(), key="job")
        t.drain()
        assert t.results["job"] == 6
        assert t.job("job").token == 1


def test_nobody_waits_for_money_of_calls_that_came_to_nothing() -> None:
    def script(request: SimulatedRequest) -> Reply | None:
        return Reply.of({}, status=404) if request.number == 1 else None

    shop = BudgetShop(ProviderRules(latency=1.0), script=script)
    asked = {"model": "m", "messages": [{"content": "p"}], "max_tokens": 100}

    @shop.app.task(uses=shop.api)
    async def tries(ctx: Context, number: int) -> int:
        reply = await shop.api.http.post(CHAT, json={**asked, "user": str(number)})
        return int(reply.status_code)

    budget = {"budget": {"run": {"tokens": 100 + ASK}}}
    with harness(shop.app, providers={"api": shop.provider}, settings=budget) as t:
        for number in range(12):
            t.enqueue(tries.job(number=number), key=f"try{number}")
        with pytest.raises(BudgetUsedUp):
            t.drain(within=100)
        assert sorted(t.results.values())[-1] == 404
        assert today(t).reserved == (0, 0)


def test_what_is_reserved_by_a_call_in_doubt_is_told() -> None:
    shop = BudgetShop(ProviderRules(latency=1_000.0), reply_deadline_seconds=5)
    budget = {"budget": {"run": {"tokens": 200}}, "tasks": {"max_attempts": 1}}
    with harness(shop.app, providers={"api": shop.provider}, settings=budget) as t:
        enqueue(t, shop, 2)
        with pytest.raises(BudgetUsedUp, match="in doubt"):
            t.drain()


def test_a_model_without_a_price_is_refused_when_it_is_called() -> None:
    shop = BudgetShop(models={})
    budget = {"budget": {"provider": {"api": {"run": {"usd": 5}}}}}
    with harness(shop.app, providers={"api": shop.provider}, settings=budget) as t:
        enqueue(t, shop, 5)
        t.enqueue(shop.free.job(number=1), key="free")
        with pytest.raises(BudgetUsedUp) as caught:
            t.drain()
        assert done(t) == 1
        assert {t.job(key).attempts for key in t.states} == {0}
    assert shop.provider.counts.calls == 0
    assert str(caught.value) == (
        "The price of api/m is not known, and [budget.provider.api.run] counts dollars: set "
        'usd_per_million_tokens = { input = …, output = … } in [providers.api.models."m"] of '
        "penstock.toml, then run the same command again."
    )


def test_jobs_that_wait_for_held_back_ones_do_not_keep_a_run_alive() -> None:
    shop = BudgetShop()
    budget = {"budget": {"run": {"tokens": 1}}}
    with harness(shop.app, providers={"api": shop.provider}, settings=budget) as t:
        t.enqueue(shop.ask.job(prompt="p"), key="ask")
        t.enqueue(shop.free.job(number=1), key="after", after=["ask"])
        t.enqueue(shop.free.job(number=2), key="later", delay=300)
        with pytest.raises(BudgetUsedUp):
            t.drain()
        assert t.states == {"ask": "queued", "after": "waiting", "later": "done"}


@settings(max_examples=depth(quick=10, soak=400), deadline=None)
@given(
    jobs=st.integers(1, 40),
    calls=st.integers(1, 3),
    cap=st.integers(1, 8_000),
    parallel=st.integers(1, 16),
    latency=st.floats(0.0, 30.0),
    refuses=st.booleans(),
    says_most=st.booleans(),
    unit=st.sampled_from(["usd", "tokens"]),
    seed=st.integers(0, 1_000),
)
def test_a_budget_is_exceeded_by_no_more_than_the_calls_in_flight(
    jobs: int,
    calls: int,
    cap: int,
    parallel: int,
    latency: float,
    refuses: bool,
    says_most: bool,
    unit: str,
    seed: int,
) -> None:
    """With known maxima it is never exceeded; without, by what is in flight; and it is used."""
    hidden = max(1, parallel // 2) if refuses else None
    shop = BudgetShop(ProviderRules(latency=latency, concurrency=hidden), max_parallel=parallel)
    said = {"budget": {"run": {unit: dollars(cap) if unit == "usd" else cap}}}
    with harness(shop.app, seed, providers={"api": shop.provider}, settings=said) as t:
        enqueue(t, shop, jobs, calls=calls, max_tokens=100 if says_most else None)
        try:
            t.drain()
        except BudgetUsedUp:
            assert done(t) < jobs
        else:
            assert done(t) == jobs
        found = today(t)
        spent = found.spent.micros if unit == "usd" else found.spent.tokens
        assert found.reserved == (0, 0)
        one = MOST if unit == "usd" else ASK + 100
        assert spent <= cap + (0 if says_most else parallel * one)
        if done(t) < jobs:
            assert spent + one > cap  # else there was money for one more call
        assert t.store.call_figures(None).result().bought == shop.provider.counts.served
        assert not t.store.check().result()


def test_a_total_is_not_begun_anew_by_a_start_and_can_be_raised_and_reset() -> None:
    shop = BudgetShop()
    budget = {"budget": {"total": {"usd": 0.001}}}
    with harness(shop.app, providers={"api": shop.provider}, settings=budget) as t:
        enqueue(t, shop, 120)
        for _ in range(3):
            with pytest.raises(BudgetUsedUp, match=r"\[budget\.total\] of \$0\.001 in all is used"):
                t.drain()
        spent = today(t).spent.micros
        assert 1000 - MOST < spent <= 1000
        set_budgets(t, total={"usd": 0.002})
        with pytest.raises(BudgetUsedUp, match=r"raise budget\.total\.usd = 0\.002"):
            t.drain()
        assert spent < today(t).spent.micros <= 2000
        t.store.reset_totals("shop", None).result()
        with pytest.raises(BudgetUsedUp):
            t.drain()
        assert 3000 < today(t).spent.micros <= 4000
