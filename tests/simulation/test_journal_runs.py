# SPDX-License-Identifier: Apache-2.0
"""Is an answer bought once, whatever happens to the attempts of a job?"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from penstock import Context, Penstock
from penstock.errors import BudgetUsedUp, StoreUnavailable, StoreUnknown
from penstock.model.job import JobId, JobState
from penstock.model.journal import CallRecord, CallState
from penstock.model.spending import Amount, Budget, Period
from penstock.stores.reply import Reply as StoreReply
from penstock.testing import Harness, harness
from penstock.testing.simulated_provider import (
    Ending,
    Part,
    ProviderRules,
    Reply,
    SimulatedProvider,
    SimulatedRequest,
)

URL = "http://simulated.invalid"


class Lost(ConnectionError):
    """The attempt dies by no fault of its task: it comes back, uncharged."""


def numbered(request: SimulatedRequest) -> dict[str, Any]:
    """An answer that tells which one it is."""
    asked = request.json() or {}
    return {"n": request.number, "asked": asked.get("prompt")}


class Shop:
    """An app with one provider that costs money, and a task whose body is given."""

    def __init__(self, body: Any, provider: SimulatedProvider | None = None, **options: Any):
        self.app = Penstock("shop")
        self.api = self.app.provider("api", base_url=URL, paid=True, **options)
        self.provider = provider or SimulatedProvider(answer=numbered)
        self.attempts = 0

        @self.app.task(uses=self.api, max_attempts=5)
        async def work(ctx: Context) -> Any:
            self.attempts += 1
            return await body(self)

        self.work = work

    async def ask(self, prompt: str) -> int:
        reply = await self.api.http.post("/ask", json={"prompt": prompt})
        reply.raise_for_status()
        assert reply.json()["asked"] == prompt
        return int(reply.json()["n"])

    def run(self) -> Harness:
        """Run one job to its end; the harness is closed by whoever looked at it."""
        with harness(self.app, providers={"api": self.provider}) as t:
            t.enqueue(self.work.job(), key="job")
            t.drain()
            self.calls = calls_of(t)
            self.state = t.states["job"]
            self.result = t.results["job"] if self.state is JobState.DONE else None
            self.error = t.errors["job"] if self.state is JobState.ERROR else None
            self.figures = t.store.call_figures(None).result()
            self.history = t.attempts("job")
            return t


def calls_of(t: Harness, key: str = "job") -> list[CallRecord]:
    return t.store.calls(t.job(key).id).result()


def states(shop: Shop) -> Counter[CallState]:
    return Counter(call.state for call in shop.calls)


def test_an_attempt_after_a_loss_buys_only_what_is_missing() -> None:
    async def body(shop: Shop) -> list[int]:
        found = [await shop.ask("a"), await shop.ask("b")]
        if shop.attempts == 1:
            raise Lost
        return [*found, await shop.ask("c")]

    shop = Shop(body)
    shop.run()

    assert shop.result == [1, 2, 3]
    assert shop.provider.counts.served == 3
    assert (shop.figures.bought, shop.figures.reused, shop.figures.in_doubt) == (3, 2, 0)
    assert states(shop) == {CallState.ANSWERED: 3}


def test_the_last_answer_before_a_fault_of_the_task_is_bought_anew() -> None:
    async def body(shop: Shop) -> list[int]:
        found = [await shop.ask("a"), await shop.ask("b")]
        if shop.attempts == 1:
            raise ValueError("this answer is no good")
        return found

    shop = Shop(body)
    shop.run()

    assert shop.result == [1, 3]
    assert shop.provider.counts.served == 3
    assert sorted(call.bought for call in shop.calls) == [1, 2]


def test_the_last_answer_is_the_one_that_was_handed_out_last_even_if_it_was_reused() -> None:
    async def body(shop: Shop) -> list[int]:
        found = [await shop.ask("a"), await shop.ask("b")]
        if shop.attempts == 1:
            raise Lost
        if shop.attempts == 2:
            raise ValueError("reused, and no good")
        return found

    shop = Shop(body)
    shop.run()

    assert shop.result == [1, 3]


def test_a_changed_prompt_is_another_call() -> None:
    async def body(shop: Shop) -> int:
        number = await shop.ask(f"attempt {shop.attempts}")
        if shop.attempts == 1:
            raise Lost
        return number

    shop = Shop(body)
    shop.run()

    assert shop.result == 2
    assert shop.figures.reused == 0


def test_equal_prompts_are_told_apart_by_their_order() -> None:
    async def body(shop: Shop) -> list[int]:
        found = [await shop.ask("same") for _ in range(3)]
        if shop.attempts == 1:
            raise Lost
        return [*found, await shop.ask("same")]

    shop = Shop(body)
    shop.run()

    assert shop.result == [1, 2, 3, 4]
    assert shop.figures.reused == 3


def test_fifty_calls_at_once_of_which_some_are_equal() -> None:
    async def body(shop: Shop) -> list[int]:
        found = await asyncio.gather(*(shop.ask(f"p{n % 20}") for n in range(50)))
        if shop.attempts < 4:
            raise Lost
        return sorted(found)

    shop = Shop(body)
    shop.run()

    assert shop.result == list(range(1, 51))
    assert shop.provider.counts.served == 50
    assert shop.figures.reused == 150


def test_calls_that_were_refused_are_sent_again_under_one_intent() -> None:
    async def body(shop: Shop) -> int:
        return len(await asyncio.gather(*(shop.ask(f"p{n}") for n in range(30))))

    shop = Shop(body, SimulatedProvider(ProviderRules(concurrency=4), answer=numbered))
    shop.run()

    assert shop.provider.counts.refused > 0
    assert shop.provider.counts.served == shop.figures.bought == 30
    assert states(shop) == {CallState.ANSWERED: 30}


def test_a_client_that_tries_again_by_itself_makes_the_same_call() -> None:
    async def body(shop: Shop) -> int:
        client = shop.api.http_client()
        reply = await client.post("/ask", json={"prompt": "x"})
        if reply.status_code == 429:
            reply = await client.post("/ask", json={"prompt": "x"})
        if shop.attempts == 1:
            raise Lost
        return int(reply.json()["n"])

    def script(request: SimulatedRequest) -> Reply | None:
        return Reply.of({}, status=429) if request.number == 1 else None

    shop = Shop(body, SimulatedProvider(script=script, answer=numbered))
    shop.run()

    assert shop.result == 2
    assert shop.provider.counts.calls == 2
    assert [call.key.ordinal for call in shop.calls] == [0]


@pytest.mark.parametrize("status", [400, 404, 500, 302])
def test_what_is_no_success_is_closed_and_asked_again(status: int) -> None:
    async def body(shop: Shop) -> int:
        reply = await shop.api.http_client().post("/ask", json={"prompt": "x"})
        if shop.attempts == 1:
            assert reply.status_code == status
            raise Lost
        return int(reply.json()["n"])

    def script(request: SimulatedRequest) -> Reply | None:
        return Reply.of({}, status=status) if request.number == 1 else None

    shop = Shop(body, SimulatedProvider(script=script, answer=numbered))
    shop.run()

    assert shop.result == 2
    assert (shop.figures.bought, shop.figures.in_doubt) == (1, 0)


def stream_cut_once(request: SimulatedRequest) -> Reply | None:
    parts = [Part(b"data: %d\n\n" % n, 0.1) for n in range(10)]
    cut = request.number == 1
    return Reply(
        headers=(("content-type", "text/event-stream"),),
        parts=parts[:5] if cut else parts,
        ending=Ending.RESET if cut else Ending.COMPLETE,
    )


async def read_stream(shop: Shop) -> int:
    pieces = 0
    async with shop.api.http.stream("POST", "/ask", json={"stream": True}) as reply:
        async for _ in reply.aiter_bytes():
            pieces += 1
    return pieces


def test_a_stream_that_is_cut_in_the_middle_is_in_doubt_and_sent_again() -> None:
    async def body(shop: Shop) -> int:
        return await read_stream(shop)

    shop = Shop(body, SimulatedProvider(script=stream_cut_once))
    shop.run()

    assert shop.result == 10
    assert shop.attempts == 2
    assert (shop.figures.bought, shop.figures.in_doubt) == (1, 0)


def test_a_stream_is_replayed_as_a_stream() -> None:
    async def body(shop: Shop) -> str:
        text = b""
        async with shop.api.http.stream("POST", "/ask", json={"stream": True}) as reply:
            assert reply.headers["content-type"] == "text/event-stream"
            async for piece in reply.aiter_bytes():
                text += piece
        if shop.attempts == 1:
            raise Lost
        return text.decode()

    shop = Shop(body, SimulatedProvider(script=lambda request: stream_cut_once(_second(request))))
    shop.run()

    assert shop.result == "".join(f"data: {n}\n\n" for n in range(10))
    assert shop.provider.counts.calls == 1


def _second(request: SimulatedRequest) -> SimulatedRequest:
    from dataclasses import replace

    return replace(request, number=2)


def test_a_call_in_doubt_is_held_until_a_person_puts_its_job_back() -> None:
    async def body(shop: Shop) -> int:
        return await read_stream(shop)

    shop = Shop(body, SimulatedProvider(script=stream_cut_once), in_doubt="hold")
    with harness(shop.app, providers={"api": shop.provider}) as t:
        t.enqueue(shop.work.job(), key="job")
        t.drain()
        assert t.errors["job"].kind == "CallInDoubt"
        assert "retry-failed" in t.errors["job"].message
        assert [call.state for call in calls_of(t)] == [CallState.HELD]
        assert shop.provider.counts.calls == 1

        t.store.retry_failed(None, None, JobId(0)).result()
        t.drain()
        assert t.results["job"] == 10
        assert [call.state for call in calls_of(t)] == [CallState.ANSWERED]


def test_a_doubt_of_the_same_attempt_is_held_as_well() -> None:
    async def body(shop: Shop) -> int:
        try:
            return await read_stream(shop)
        except Exception:
            return await read_stream(shop)

    shop = Shop(body, SimulatedProvider(script=stream_cut_once), in_doubt="hold")
    shop.run()

    assert shop.error is not None
    assert shop.error.kind == "CallInDoubt"
    assert shop.attempts == 1
    assert shop.provider.counts.calls == 1


def test_an_answer_that_is_too_large_is_passed_on_and_bought_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import penstock.outbound.journal.recording as recording

    monkeypatch.setattr(recording, "BODY_BYTES_MAX", 1_000)
    noise = bytes((n * n * 31 + n // 7) % 256 for n in range(20_000))

    async def body(shop: Shop) -> int:
        reply = await shop.api.http.post("/ask", json={"prompt": "x"})
        assert reply.content == noise
        if shop.attempts == 1:
            raise Lost
        return len(reply.content)

    shop = Shop(body, SimulatedProvider(answer=lambda request: noise))
    shop.run()

    assert shop.result == len(noise)
    assert shop.figures.bought == 2
    assert shop.figures.reused == 0
    assert states(shop) == {CallState.SPOILED: 1}
    assert all(call.reserved == Amount() for call in shop.calls)


class AwayStore:
    """Lets some journal operations of a store fail first, as a server that is away."""

    def __init__(self, store: Any, name: str, errors: list[Exception], *, takes: bool) -> None:
        self.asked = 0
        inner = getattr(store, name)

        def flaky(*args: Any) -> StoreReply[Any]:
            self.asked += 1
            if errors:
                if takes:
                    inner(*args).result()
                return StoreReply.failed(errors.pop(0))
            reply: StoreReply[Any] = inner(*args)
            return reply

        setattr(store, name, flaky)


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
            with pytest.raises(BudgetUsedUp, match=r"\[budget.provider.api\]"):
                t.drain()
        t.drain()
        assert t.results["job"] == [1, 2]
        assert t.job("job").attempts == 0
        assert t.store.call_figures(None).result().in_doubt == 0
    assert shop.attempts == 3
    assert shop.provider.counts.served == 2
    assert "[budget.provider.api]" in refusals[0]
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
