# SPDX-License-Identifier: Apache-2.0
"""Is an answer bought once, whatever happens to the attempts of a job?"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pydantic
import pytest

from penstock import BadAnswer, Context
from penstock.model.job import ErrorCategory, JobState
from penstock.model.journal import CallState
from penstock.model.request import ReplyFacts
from penstock.model.spending import Amount
from penstock.testing import harness
from penstock.testing.simulated_provider import (
    Ending,
    Part,
    ProviderRules,
    Reply,
    SimulatedProvider,
    SimulatedRequest,
)
from tests.paid_shop import Lost, Shop, calls_of, listen, numbered, states


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


PAST = "is done without a call through its paid provider 'api'"


def test_a_task_that_passes_its_paid_provider_by_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shop = Shop(None)

    @shop.app.task(uses=shop.api)
    async def bypass(ctx: Context, number: int) -> None:
        """A client of its own would send here."""

    with harness(shop.app, providers={"api": shop.provider}) as t:
        for number in range(3):
            t.enqueue(bypass.job(number=number), key=f"job{number}")
        t.drain()

    assert [PAST in line for line in caplog.messages].count(True) == 1


@pytest.mark.parametrize("how", ["http", "admit"])
def test_a_task_that_has_called_its_paid_provider_may_also_do_without(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Shop(None)

    @shop.app.task(uses=shop.api)
    async def sometimes(ctx: Context, number: int) -> None:
        if number == 0 and how == "http":
            await shop.ask("a")
        elif number == 0:
            async with ctx.admit(shop.api, domain="http", model="m"):
                pass

    with harness(shop.app, providers={"api": shop.provider}) as t:
        for number in range(2):
            t.enqueue(sometimes.job(number=number), key=f"job{number}", delay=number)
        t.drain()

    assert PAST not in caplog.text


def test_f86_a_bug_after_good_answers_buys_nothing_again() -> None:
    """Five jobs, two good calls each, then a bug in every attempt: ten answers in all."""
    shop = Shop(None)

    @shop.app.task(uses=shop.api, max_attempts=4)
    async def buggy(ctx: Context, number: int) -> int:
        await shop.ask(f"{number}/a")
        await shop.ask(f"{number}/b")
        return {"known": 1}["unknown"]

    with harness(shop.app, providers={"api": shop.provider}) as t:
        for number in range(5):
            t.enqueue(buggy.job(number=number), key=f"job{number}")
        t.drain()
        assert {t.states[f"job{number}"] for number in range(5)} == {JobState.ERROR}
        figures = t.store.call_figures(None).result()

    assert shop.provider.counts.served == 10
    assert (figures.bought, figures.reused) == (10, 30)


def read_as_pydantic(text: str) -> None:
    class Known(pydantic.BaseModel):
        kind: str

    Known.model_validate_json(text)


def read_as_msgspec(text: str) -> None:
    msgspec.json.decode(text, type=dict[str, list[str]])


BAD: dict[str, Callable[[str], object]] = {
    "the task says so": lambda _: raise_(BadAnswer("it is no list")),
    "not JSON": lambda text: json.loads(text[1:]),
    "not what pydantic wants": read_as_pydantic,
    "not what msgspec wants": read_as_msgspec,
    "not JSON for msgspec": lambda text: msgspec.json.decode(text[1:]),
}


def raise_(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("how", BAD)
def test_an_answer_that_cannot_be_read_is_bought_anew(how: str) -> None:
    async def body(shop: Shop) -> list[int]:
        found = [await shop.ask("a"), await shop.ask("b")]
        if shop.attempts == 1:
            BAD[how]('{"n": 1}')
        return found

    shop = Shop(body)
    shop.run()

    assert shop.result == [1, 3]
    assert shop.provider.counts.served == 3
    assert sorted(call.bought for call in shop.calls) == [1, 2]
    failed = shop.history[0].error
    assert failed is not None
    assert failed.category is ErrorCategory.OWN  # so it is charged


def test_the_last_answer_is_the_one_that_was_handed_out_last_even_if_it_was_reused() -> None:
    async def body(shop: Shop) -> list[int]:
        found = [await shop.ask("a"), await shop.ask("b")]
        if shop.attempts == 1:
            raise Lost
        if shop.attempts == 2:
            raise BadAnswer("reused, and no good")
        return found

    shop = Shop(body)
    shop.run()

    assert shop.result == [1, 3]


@pytest.mark.parametrize("named", ["first", "second", "none"])
def test_a_task_rejects_the_reply_that_it_names_or_the_last_one(named: str) -> None:
    shop = Shop(None)
    attempts = []

    @shop.app.task(uses=shop.api)
    async def judge(ctx: Context) -> list[int]:
        replies = [await shop.api.http.post("/ask", json={"p": p}) for p in "ab"]
        attempts.append(1)
        if len(attempts) <= 2:  # the second time one of them was replayed
            ctx.reject({"first": replies[0], "second": replies[1], "none": None}[named])
        return [int(reply.json()["n"]) for reply in replies]

    with harness(shop.app, providers={"api": shop.provider}) as t:
        t.enqueue(judge.job(), key="job")
        t.drain()
        assert t.results["job"] == ([4, 2] if named == "first" else [1, 4])


def test_what_is_no_reply_of_a_paid_call_cannot_be_rejected() -> None:
    shop = Shop(None)

    @shop.app.task(uses=shop.api, max_attempts=1)
    async def mistaken(ctx: Context) -> None:
        reply = await shop.api.http.post("/ask", json={})
        ctx.reject(reply.json())

    with harness(shop.app, providers={"api": shop.provider}) as t:
        t.enqueue(mistaken.job(), key="job")
        t.drain()
        assert "ctx.reject takes a reply of a paid provider" in t.errors["job"].message


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


def test_fifty_calls_at_once_of_which_some_are_equal_look_up_once_an_attempt() -> None:
    async def body(shop: Shop) -> list[int]:
        found = await asyncio.gather(*(shop.ask(f"p{n % 20}") for n in range(50)))
        if shop.attempts < 4:
            raise Lost
        return sorted(found)

    shop = Shop(body)
    looked_up: list[str] = []
    with harness(shop.app, providers={"api": shop.provider}) as t:
        listen(t.store, "calls", looked_up)
        t.enqueue(shop.work.job(), key="job")
        t.drain()
        assert t.results["job"] == list(range(1, 51))
        assert t.store.call_figures(None).result().reused == 150
    assert shop.provider.counts.served == 50
    assert len(looked_up) == 3


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
    assert (shop.figures.bought, shop.figures.in_doubt) == (1, 1)


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

    return replace(request, number=2)


@pytest.mark.parametrize("ending", list(Ending))
def test_a_reader_may_leave_with_the_last_event_of_a_stream(ending: Ending) -> None:
    def script(request: SimulatedRequest) -> Reply:
        parts = [Part(b'data: {"x":1}\n\n'), Part(b"data: [DONE]\n\n")]
        return Reply(parts=parts, ending=ending)

    async def body(shop: Shop) -> int:
        pieces = 0
        async with shop.api.http.stream("POST", "/ask", json={"stream": True}) as reply:
            async for piece in reply.aiter_bytes():
                pieces += 1
                if b"[DONE]" in piece:
                    break
        if shop.attempts == 1:
            raise Lost
        return pieces

    shop = Shop(body, SimulatedProvider(script=script))
    shop.run()

    assert shop.provider.counts.calls == 1
    assert (shop.figures.bought, shop.figures.reused) == (1, 1)


def test_a_reader_who_leaves_in_the_middle_leaves_a_doubt_that_is_resent() -> None:
    async def body(shop: Shop) -> int:
        async with shop.api.http.stream("POST", "/ask", json={"stream": True}) as reply:
            async for _ in reply.aiter_bytes():
                if shop.attempts == 1:
                    break
        if shop.attempts == 1:
            raise Lost
        return shop.attempts

    shop = Shop(body, SimulatedProvider(script=lambda request: stream_cut_once(_second(request))))
    shop.run()

    assert shop.provider.counts.calls == 2
    assert (shop.figures.bought, shop.figures.reused, shop.figures.in_doubt) == (1, 0, 1)
    assert shop.figures.resent == 1


def test_a_client_that_tries_a_broken_call_again_sends_it_again() -> None:
    async def body(shop: Shop) -> int:
        for _ in range(3):
            try:
                return await read_stream(shop)
            except Exception:
                continue
        raise AssertionError

    shop = Shop(body, SimulatedProvider(script=stream_cut_once))
    shop.run()

    assert shop.attempts == 1
    assert (shop.figures.bought, shop.figures.in_doubt, shop.figures.resent) == (1, 1, 1)


def test_a_refused_call_that_is_made_again_is_not_sent_again_for_doubt() -> None:
    async def body(shop: Shop) -> int:
        if shop.attempts == 1:
            await shop.api.http.post("/ask", json={"prompt": "x"})
            raise Lost
        return await shop.ask("x")

    def script(request: SimulatedRequest) -> Reply | None:
        return Reply.of(b"no", status=400) if request.number == 1 else None

    shop = Shop(body, SimulatedProvider(script=script, answer=numbered))
    shop.run()

    assert shop.provider.counts.calls == 2
    assert (shop.figures.bought, shop.figures.resent) == (1, 0)


def test_a_success_that_is_none_is_not_bought() -> None:
    def classify(reply: ReplyFacts) -> str | None:
        return "rate_limited" if b"busy" in reply.body_start else None

    def script(request: SimulatedRequest) -> Reply | None:
        return Reply.of(b"busy") if request.number == 1 else None

    async def body(shop: Shop) -> int:
        found = await shop.ask("x")
        if shop.attempts == 1:
            raise Lost
        return found

    shop = Shop(body, SimulatedProvider(script=script, answer=numbered), classify=classify)
    shop.run()

    assert shop.result == 2
    assert (shop.figures.bought, shop.figures.reused, shop.figures.in_doubt) == (1, 1, 0)


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

        t.store.retry_failed(None, None).result()
        t.drain()
        assert t.results["job"] == 10
        assert t.store.call_figures(None).result().resent == 1
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
    import penstock.requests.journal.call as recording

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
