# SPDX-License-Identifier: Apache-2.0
"""Does a run serve its app's providers: admitted, fair to others, and with nothing left over?"""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from penstock import Context, Penstock, ReplyFacts
from penstock.admission.requests.algorithm import LearnedLimit
from penstock.errors import AttemptOver, ProviderNotAvailableHere, StoreCorrupt, UsageError
from penstock.model.job import ErrorCategory
from penstock.model.provider import ProviderModelKey
from penstock.model.worker import WorkerStatus, read_status
from penstock.stores.store_future import Reply as Reply_
from penstock.testing import SimulatedRequest, harness
from penstock.testing.simulated_provider import Change, ProviderRules, Reply, SimulatedProvider

URL = "http://simulated.invalid"
KEY = ProviderModelKey("api", "simulated.invalid")


def shop(**options: Any) -> tuple[Penstock, Any, Any]:
    """An app with one provider, and a task that calls it once."""
    app = Penstock("shop")
    api = app.provider("api", base_url=URL, **options)

    @app.task(uses=api, timeout=10)
    async def fetch(ctx: Context, n: int) -> int:
        reply = await api.http.get(f"/things/{n}")
        return int(reply.status_code)

    return app, api, fetch


def test_requests_of_jobs_are_admitted_and_refusals_waited_out() -> None:
    app, api, fetch = shop()
    simulated = SimulatedProvider(ProviderRules(concurrency=5, latency=0.5), seed=3)

    with harness(app, providers={"api": simulated}) as t:
        t.enqueue_many(fetch.job(n=n) for n in range(200))
        t.drain()
        assert set(t.results.values()) == {200}

    assert simulated.counts.served == 200
    assert simulated.counts.refused < 40
    with pytest.raises(ProviderNotAvailableHere):
        _ = api.http


@pytest.mark.parametrize("cap", [1, 3])
def test_a_declared_cap_holds(cap: int) -> None:
    app, _, fetch = shop(max_parallel=cap)
    simulated = SimulatedProvider(ProviderRules(latency=0.5))

    with harness(app, providers={"api": simulated}) as t:
        t.enqueue_many(fetch.job(n=n) for n in range(30))
        t.drain()

    assert simulated.counts.served == 30
    assert simulated.counts.in_flight_max == cap


def test_settings_override_the_cap_of_the_code() -> None:
    app, _, fetch = shop(max_parallel=8)
    simulated = SimulatedProvider(ProviderRules(latency=0.5))
    settings = {"providers": {"api": {"max_parallel": 2}}}

    with harness(app, settings=settings, providers={"api": simulated}) as t:
        t.enqueue_many(fetch.job(n=n) for n in range(30))
        t.drain()

    assert simulated.counts.in_flight_max == 2


def test_jobs_that_would_wait_for_their_provider_hold_no_slot() -> None:
    app = Penstock("shop")
    api = app.provider("api", base_url=URL, max_parallel=2)
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()

    def enters(kind: str) -> None:
        running[kind] += 1
        most[kind] = max(most[kind], running[kind])

    @app.task(uses=api)
    async def fetch(ctx: Context, n: int) -> None:
        enters("fetch")
        await api.http.get(f"/{n}")
        running["fetch"] -= 1

    @app.task()
    async def other(ctx: Context, n: int) -> None:
        enters("other")
        await asyncio.sleep(0.1)
        running["other"] -= 1

    simulated = SimulatedProvider(ProviderRules(latency=1.0))
    settings = {"runtime": {"async_slots": 16}}
    with harness(app, settings=settings, providers={"api": simulated}) as t:
        t.enqueue_many(fetch.job(n=n) for n in range(100))
        t.enqueue_many(other.job(n=n) for n in range(400))
        t.drain(within=3600)

    assert simulated.counts.served == 100
    assert most["fetch"] <= 4  # two requests fly, two jobs stand by
    assert most["other"] >= 12


def rate_of_b(*, with_a: bool) -> float:
    """How many seconds B's jobs take, with A's in a long cool-down or without them."""
    app = Penstock("shop")
    a, b = app.provider("a", base_url="http://a.invalid"), app.provider("b", base_url=URL)
    ends: list[float] = []

    @app.task(uses=a)
    async def call_a(ctx: Context, n: int) -> None:
        await a.http.get(f"/{n}")

    @app.task(uses=b)
    async def call_b(ctx: Context, n: int) -> None:
        await b.http.get(f"/{n}")
        ends.append(asyncio.get_running_loop().time())

    refusing = SimulatedProvider(ProviderRules(concurrency=0, retry_after_seconds=25.0))
    serving = SimulatedProvider(ProviderRules(concurrency=8, latency=0.2), seed=5)
    settings = {"runtime": {"async_slots": 64}, "tasks": {"give_up_after": 60}}
    with harness(app, settings=settings, providers={"a": refusing, "b": serving}) as t:
        if with_a:
            t.enqueue_many(call_a.job(n=n) for n in range(400))
        t.enqueue_many(call_b.job(n=n) for n in range(600))
        try:
            t.drain(within=60)
        except UsageError:
            assert with_a  # A never ends
        assert len(ends) == 600
    return max(ends)


def test_a_provider_that_cools_down_costs_the_others_nothing() -> None:
    alone, beside = rate_of_b(with_a=False), rate_of_b(with_a=True)

    assert alone / beside >= 0.95, (alone, beside)


def test_bodies_that_lend_their_slots_take_them_back() -> None:
    """A refuses for 20 s at a time, then serves: slots are lent, and none is lost or kept."""
    app = Penstock("lent")
    a = app.provider("a", base_url="http://a.invalid")
    refusing = SimulatedProvider(ProviderRules(concurrency=0, retry_after_seconds=20))
    awake = Counter[str]()
    most = Counter[str]()

    @app.task(uses=a, max_attempts=1, timeout=60)
    async def call(ctx: Context, n: int) -> None:
        (await a.http.get(f"/{n}")).raise_for_status()
        if n >= 100:  # what comes after a permit counts again
            awake["all"] += 1
            most["all"] = max(most["all"], awake["all"])
            await asyncio.sleep(0.5)
            awake["all"] -= 1

    @app.task(max_attempts=1)
    async def work(ctx: Context, n: int) -> None:
        awake["all"] += 1
        most["all"] = max(most["all"], awake["all"])
        await asyncio.sleep(1)
        awake["all"] -= 1
        if n == 99:
            refusing.change(concurrency=None)

    settings = {"runtime": {"async_slots": 4}}
    with harness(app, settings=settings, providers={"a": refusing}) as t:
        t.enqueue_many(call.job(n=n) for n in range(20))
        t.enqueue_many(work.job(n=n) for n in range(100))
        t.drain()
        assert set(t.states.values()) == {"done"}
        assert most["all"] == 4  # nobody lent anything who was awake
        t.enqueue_many(call.job(n=n) for n in range(100, 160))
        t.drain()
        assert set(t.states.values()) == {"done"}
    assert most["all"] <= 8


def test_a_task_of_several_providers_waits_for_each_without_a_slot() -> None:
    """B has room; A cools down for 20 s, so what needs both does not start, and all else does."""
    app = Penstock("several")
    a = app.provider("a", base_url="http://a.invalid")
    b = app.provider("b", base_url="http://b.invalid")
    refusing = SimulatedProvider(
        ProviderRules(concurrency=0, retry_after_seconds=20),
        changes=[Change(rules=ProviderRules(), after_seconds=10)],
    )
    began: list[float] = []

    @app.task(uses=a, max_attempts=1)
    async def first(ctx: Context) -> None:
        (await a.http.get("/")).raise_for_status()

    @app.task(uses=[b, a], max_attempts=1)
    async def both(ctx: Context, n: int) -> None:
        began.append(asyncio.get_running_loop().time())
        (await b.http.get("/")).raise_for_status()
        (await a.http.get("/")).raise_for_status()

    settings = {"runtime": {"async_slots": 2}}
    with harness(app, settings=settings, providers={"a": refusing, "b": SimulatedProvider()}) as t:
        t.enqueue(first.job(), key="first")
        for n in range(5):
            t.enqueue(both.job(n=n), key=f"both:{n}", delay=5)
        t.drain()
        assert set(t.states.values()) == {"done"}

    assert len(began) == 5
    assert min(began) >= 20


def test_the_time_limit_stands_still_while_a_job_waits_for_a_permit() -> None:
    app = Penstock("shop")
    api = app.provider("api", base_url=URL, max_parallel=1)

    @app.task(uses=api, timeout=3, max_attempts=1)
    async def fetch(ctx: Context, n: int) -> None:
        async def one() -> None:
            await api.http.get(f"/{n}")

        await asyncio.gather(one(), one(), one(), one(), one(), one())

    simulated = SimulatedProvider(ProviderRules(latency=2.0))
    with harness(app, providers={"api": simulated}) as t:
        t.enqueue_many(fetch.job(n=n) for n in range(3))
        t.drain()
        assert set(t.states.values()) == {"done"}
    assert simulated.counts.served == 18


def test_the_time_limit_goes_on_while_a_reply_is_awaited() -> None:
    app, _, fetch = shop()
    simulated = SimulatedProvider(ProviderRules(latency=11.0))

    with harness(app, settings={"tasks": {"max_attempts": 1}}, providers={"api": simulated}) as t:
        t.enqueue(fetch.job(n=1), key="late")
        t.drain()
        assert t.errors["late"].kind == "TimeLimitError"


def test_requests_of_an_expired_job_are_refused() -> None:
    app = Penstock("shop")
    api = app.provider("api", base_url=URL)
    raised: list[BaseException] = []

    @app.task(uses=api, timeout=1, max_attempts=1)
    async def stubborn(ctx: Context) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            try:
                await api.http.get("/never")
            except AttemptOver as error:
                raised.append(error)

    simulated = SimulatedProvider(ProviderRules())
    with harness(app, providers={"api": simulated}) as t:
        t.enqueue(stubborn.job(), key="s")
        t.drain()

    assert simulated.counts.calls == 0
    assert "'s' has run past its time limit" in str(raised[0])


def test_a_provider_is_not_available_to_a_body_of_another_process() -> None:
    app, api, _ = shop()

    @app.task(executor="process", max_attempts=1)
    async def apart(ctx: Context) -> None:
        await api.http.get("/never")

    with harness(app, providers={"api": SimulatedProvider(ProviderRules())}) as t:
        t.enqueue(apart.job(), key="p")
        t.drain()
        assert t.errors["p"].kind == "ProviderNotAvailableHere"


def test_a_call_that_is_not_http_is_admitted() -> None:
    app = Penstock("shop")
    api = app.provider("api", max_parallel=2)
    inside: list[int] = []
    most = 0

    @app.task(uses=api)
    async def call(ctx: Context, n: int) -> None:
        nonlocal most
        async with ctx.admit(api, domain="chat", model="m", tokens=3) as admitted:
            inside.append(n)
            most = max(most, len(inside))
            await asyncio.sleep(0.2)
            inside.remove(n)
            admitted.used(5)

    with harness(app) as t:
        t.enqueue_many(call.job(n=n) for n in range(20))
        t.drain()
        assert set(t.states.values()) == {"done"}
        statuses = [status for status in seen_statuses(t) if status.providers]
    assert most == 2
    (use,) = statuses[-1].providers
    assert (use.provider, use.model, use.limit_max) == ("api", "m", 2)
    assert use.tokens_last_minute in range(5, 101)


def seen_statuses(t: Any) -> list[WorkerStatus]:
    """Every status that the worker of a harness has published."""
    return [status for text in t.store.published if (status := read_status(text)) is not None]


@pytest.fixture(autouse=True)
def published(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the memory store remember what workers have said."""
    from penstock.stores.sqlite.in_process import InProcessStore

    publish = InProcessStore.publish

    def noting(self: Any, worker: Any, document: str) -> Any:
        self.published.append(document)
        return publish(self, worker, document)

    monkeypatch.setattr(InProcessStore, "published", [], raising=False)
    monkeypatch.setattr(InProcessStore, "publish", noting)


@pytest.mark.parametrize(
    ("status", "headers", "waits"),
    [
        (429, [("retry-after", "120")], 120.0),
        (503, [("retry-after", "100000")], 900.0),
        (500, [], None),
        (408, [], None),
        (425, [], None),
    ],
)
def test_a_job_of_an_ill_provider_comes_back_uncharged(
    status: int, headers: list[tuple[str, str]], waits: float | None
) -> None:
    app, _, fetch = shop()
    answers = [Reply.of({"error": "no"}, status=status, headers=headers)]

    def script(request: Any, **_: Any) -> Any:
        return answers.pop() if answers else None

    simulated = SimulatedProvider(ProviderRules(), script=script)
    settings = {"tasks": {"max_attempts": 1}}
    with harness(app, settings=settings, providers={"api": simulated}) as t:
        t.enqueue(fetch.job(n=1), key="k")
        t.drain()
        assert t.states["k"] == "done"
        first, second = t.attempts("k")
        assert first.error is not None
        assert first.error.category is ErrorCategory.SERVICE
        assert first.ended_at is not None
        assert second.started_at is not None
        gap = (second.started_at - first.ended_at) / 1e6
        assert t.job("k").attempts == 0
    assert gap > 0
    if waits is not None:
        assert gap == pytest.approx(waits, abs=1.0)


def test_what_was_learned_is_kept_and_the_next_run_begins_with_it() -> None:
    app, _, fetch = shop()
    refused: list[int] = []
    with harness(app) as t:  # one store for both runs
        for _ in range(2):
            simulated = SimulatedProvider(ProviderRules(concurrency=12, latency=0.3), seed=1)
            transport = simulated.transport()
            t._wires = {"api": lambda _, transport=transport: transport}  # type: ignore[misc]
            t.enqueue_many(
                fetch.job(n=n).with_options(key=f"{len(refused)}:{n}") for n in range(600)
            )
            t.drain()
            refused.append(simulated.counts.refused)
            (kept,) = t.store.learned().result()
            learned = msgspec.json.decode(kept.document, type=LearnedLimit)
            assert kept.key == KEY
            assert learned.ceiling == pytest.approx(12, abs=3)
    assert refused[1] < refused[0]


def test_what_aimd_has_learned_is_kept_and_the_next_run_begins_with_it() -> None:
    app, _, fetch = shop(algorithm="aimd", max_parallel=64)
    rules = ProviderRules(concurrency=6, latency=0.5)
    first, second = SimulatedProvider(rules, seed=1), SimulatedProvider(rules, seed=2)

    with harness(app, providers={"api": first}) as t:
        t.enqueue_many(fetch.job(n=n) for n in range(200))
        t.drain()
        (kept,) = t.store.learned().result()
        with harness(app, providers={"api": second}) as again:
            again.store.save_learned({kept.key: kept.document}).result()
            again.enqueue_many(fetch.job(n=n) for n in range(200))
            again.drain()

    assert kept.key == KEY
    ceiling = msgspec.json.decode(kept.document, type=LearnedLimit).ceiling
    assert ceiling is not None
    assert 6 <= ceiling <= 12
    assert second.counts.refused < first.counts.refused / 2


def test_two_runs_at_once_do_not_share_a_provider() -> None:
    app, api, fetch = shop()

    class Other:
        """Clients of another run."""

    api._clients = Other()
    with harness(app, providers={"api": SimulatedProvider(ProviderRules())}) as t:
        t.enqueue(fetch.job(n=1))
        with pytest.raises(UsageError, match="Provider 'api' serves another run"):
            t.drain()
    assert isinstance(api._clients, Other)


def test_only_providers_of_the_app_are_simulated() -> None:
    app, _, _ = shop()

    with (
        pytest.raises(UsageError, match="The app 'shop' has no provider 'apy' to be simulated"),
        harness(app, providers={"apy": SimulatedProvider(ProviderRules())}),
    ):
        pass


def test_a_provider_is_free_again_when_a_run_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    app, api, fetch = shop()

    def fails(*_: Any) -> Any:
        return Reply_.failed(StoreCorrupt("The file is damaged."))

    with harness(app, providers={"api": SimulatedProvider(ProviderRules(latency=3.0))}) as t:
        t.enqueue(fetch.job(n=1))
        monkeypatch.setattr(t.store, "ack", fails)
        with pytest.raises(StoreCorrupt):
            t.drain()
    assert api._clients is None


def test_a_classifier_says_what_a_reply_really_is() -> None:
    """The service says in the body that it is busy; a call that it refused is sent again."""
    app = Penstock("classified")
    seen: list[int] = []

    def said(reply: ReplyFacts) -> str | None:
        seen.append(reply.status_code)
        return "rate_limited" if b"busy" in reply.body_start else None

    api = app.provider("api", base_url=URL, classify=said)

    @app.task(uses=api, max_attempts=1)
    async def fetch(ctx: Context) -> str:
        return str((await api.http.get("/")).text)

    calls: Counter[str] = Counter()

    def answer(request: SimulatedRequest) -> bytes:
        calls["all"] += 1
        return b"busy" if calls["all"] == 1 else b"fine"

    with harness(app, providers={"api": SimulatedProvider(answer=answer)}) as t:
        t.enqueue(fetch.job(), key="k")
        t.drain()
        assert t.results["k"] == "fine"

    assert seen == [200, 200]


def test_a_classifier_that_says_nonsense_leaves_it_to_the_status(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app, _, fetch = shop(classify=lambda reply: "no such outcome")

    with harness(app, providers={"api": SimulatedProvider()}) as t:
        t.enqueue(fetch.job(n=1), key="k")
        t.drain()
        assert t.results["k"] == 200

    assert "The reply classifier raised ValueError" in caplog.text


def test_settings_bound_what_a_reply_may_take() -> None:
    app, _, fetch = shop(reply_body_bytes_max=1_000_000)
    big = SimulatedProvider(answer=lambda request: b"x" * 5_000)

    with harness(app, providers={"api": big}) as t:
        t.enqueue(fetch.job(n=1), key="fits")
        t.drain()
        assert t.results["fits"] == 200
    settings = {
        "tasks": {"give_up_after": 1},
        "providers": {"api": {"reply_body_bytes_max": 4_999}},
    }
    with harness(app, settings=settings, providers={"api": big}) as t:
        t.enqueue(fetch.job(n=2), key="beyond")
        t.drain()
        assert t.states["beyond"] == "error"
        assert "4999" in t.errors["beyond"].message.replace(",", "")


def test_settings_bound_how_long_a_reply_may_take() -> None:
    app, _, fetch = shop(reply_deadline_seconds=timedelta(seconds=3))
    settings = {"tasks": {"give_up_after": 1}}

    slow = SimulatedProvider(ProviderRules(latency=5))
    with harness(app, settings=settings, providers={"api": slow}) as t:
        t.enqueue(fetch.job(n=1), key="k")
        t.drain()

        assert t.states["k"] == "error"
        assert "3 s" in t.errors["k"].message
