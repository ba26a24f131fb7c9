# SPDX-License-Identifier: Apache-2.0
"""Does a mistake in the use of a provider hurt only the job that makes it, and say what it is?"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock import Context, Penstock
from penstock.app import wiring
from penstock.model.provider import ProviderModelKey
from penstock.testing import harness
from penstock.testing.simulated_provider import Change, ProviderRules, SimulatedProvider
from penstock.worker.parts import Stopping
from penstock.worker.worker import Worker

Body = Callable[[Context, Any], Awaitable[None]]


def run(body: Body, *, within: float = 1_000, **options: Any) -> tuple[str, str]:
    """How a job with this body ends, and what is said; another one must still be served."""
    app = Penstock("shop")
    api = app.provider("api", base_url="http://simulated.invalid", **options)

    @app.task(max_attempts=1, timeout=50)
    async def wrong(ctx: Context) -> None:
        await body(ctx, api)

    @app.task(max_attempts=1, timeout=50)
    async def right(ctx: Context) -> None:
        async with ctx.admit(api, tokens=1):
            await asyncio.sleep(0.01)

    with harness(app, providers={"api": SimulatedProvider(ProviderRules(latency=0.5))}) as t:
        t.enqueue(wrong.job(), key="wrong")
        t.enqueue(right.job(), key="right", delay=5)
        t.drain(within=within)
        assert t.states["right"] == "done"
        error = t.errors.get("wrong")
        return t.states["wrong"], "" if error is None else f"{error.kind}: {error.message}"


NO_COUNT = ["5", 1.5, True, -1, math.nan, math.inf, 10**30, 10**400]


@pytest.mark.parametrize("tokens", NO_COUNT)
def test_an_estimate_that_is_no_count_is_refused(tokens: Any) -> None:
    async def body(ctx: Context, api: Any) -> None:
        async with ctx.admit(api, tokens=tokens):
            pass

    state, said = run(body, tpm=600)

    assert state == "error"
    assert "tokens= is a whole number of tokens from 0 to 1,000,000,000" in said


@pytest.mark.parametrize("tokens", NO_COUNT)
def test_a_use_that_is_no_count_is_refused_and_its_permit_comes_back(tokens: Any) -> None:
    async def body(ctx: Context, api: Any) -> None:
        async with ctx.admit(api, tokens=1) as call:
            call.used(tokens)

    state, said = run(body, tpm=600, max_parallel=1)

    assert state == "error"
    assert "used(...) is a whole number of tokens" in said


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"domain": "talk"}, "A domain is one of chat, embedding, image, healthcheck, http"),
        ({"domain": None}, "A domain is one of"),
        ({"domain": []}, "A domain is one of"),
        ({"model": 3}, "model= is the name of a model, got 3"),
    ],
)
def test_a_call_of_no_kind_is_refused(options: dict[str, Any], says: str) -> None:
    async def body(ctx: Context, api: Any) -> None:
        async with ctx.admit(api, **options):
            pass

    state, said = run(body)

    assert state == "error"
    assert says in said


def test_a_permit_is_for_one_call() -> None:
    async def body(ctx: Context, api: Any) -> None:
        permit = ctx.admit(api)
        async with permit, permit:
            pass

    state, said = run(body, max_parallel=2)

    assert state == "error"
    assert "is for one call" in said


async def admit_inside(ctx: Context, api: Any) -> None:
    async with ctx.admit(api), ctx.admit(api):
        pass


async def fetch_inside(ctx: Context, api: Any) -> None:
    async with ctx.admit(api):
        await api.http.get("/things/1")


async def fetch_while_streaming(ctx: Context, api: Any) -> None:
    async with api.http.stream("GET", "/things"):
        await asyncio.gather(*(api.http.get(f"/things/{n}") for n in range(2)))


@pytest.mark.parametrize("body", [admit_inside, fetch_inside, fetch_while_streaming])
def test_a_call_inside_a_call_that_waits_for_itself_runs_past_its_time_limit(body: Body) -> None:
    state, said = run(body, max_parallel=1)

    assert state == "error"
    assert "time limit" in said


def test_calls_beside_each_other_do_not_count_as_inside() -> None:
    async def body(ctx: Context, api: Any) -> None:
        await api.http.get("/things")
        await asyncio.gather(*(api.http.get(f"/things/{n}") for n in range(200)))

    assert run(body, max_parallel=1) == ("done", "")


@pytest.mark.parametrize(
    "document",
    [
        '{"rate":0,"mode":"requests"}',
        '{"rate":1e-300,"mode":"requests"}',
        '{"rate":-1,"mode":"tokens"}',
        '{"latency_seconds":1e300}',
        '{"ceiling":-5}',
        '{"ceiling":5,"confidence":' + "9" * 400 + "}",
    ],
)
def test_a_damaged_row_of_a_learned_limit_is_as_good_as_none(document: str) -> None:
    app = Penstock("shop")
    api = app.provider("api", base_url="http://simulated.invalid")

    @app.task(max_attempts=1, uses=api)
    async def fetch(ctx: Context, n: int) -> None:
        await api.http.get(f"/things/{n}")

    with harness(app, providers={"api": SimulatedProvider(ProviderRules(latency=0.1))}) as t:
        t.store.save_learned({ProviderModelKey("api", "simulated.invalid"): document}).result()
        t.enqueue_many(fetch.job(n=n) for n in range(20))
        t.drain(within=60)
        assert set(t.states.values()) == {"done"}


def test_a_pause_beyond_every_float_is_refused_and_its_permit_comes_back() -> None:
    async def body(ctx: Context, api: Any) -> None:
        async with ctx.admit(api) as call:
            call.rate_limited(10**400)

    state, said = run(body, max_parallel=1)

    assert state == "error"
    assert said.startswith("UsageError: A duration is a number of seconds, a timedelta, or a text")


def test_no_job_begins_before_its_provider_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Penstock("shop")
    api = app.provider("api", base_url="http://simulated.invalid")

    @app.task(max_attempts=1)
    async def fetch(ctx: Context) -> None:
        await api.http.get("/")

    with harness(app, providers={"api": SimulatedProvider()}) as t:

        async def slowly() -> list[Any]:
            await asyncio.sleep(5)
            return []

        monkeypatch.setattr(t.store, "learned", slowly)
        t.enqueue(fetch.job(), key="a")
        t.drain()
        assert t.states["a"] == "done"


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> list[Worker]:
    """The workers that a harness makes."""
    made: list[Worker] = []
    build_worker = wiring.build_worker

    def noting(*args: Any, **kwargs: Any) -> Worker:
        made.append(build_worker(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(wiring, "build_worker", noting)
    return made


def test_a_stop_does_not_wait_for_a_provider_that_cools_down_for_longer(
    workers: list[Worker],
) -> None:
    app = Penstock("shop")
    api = app.provider("api", base_url="http://simulated.invalid", max_parallel=1)

    @app.task(uses=api)
    async def fetch(ctx: Context, n: int) -> None:
        await api.http.get(f"/things/{n}")

    @app.task()
    async def stop(ctx: Context) -> None:
        await asyncio.sleep(5)
        workers[0].stop(Stopping.GRACEFUL)

    closed = SimulatedProvider(ProviderRules(concurrency=0, retry_after_seconds=600))
    with harness(app, providers={"api": closed}) as t:
        t.enqueue(stop.job(), key="stop")
        t.enqueue_many(fetch.job(n=n) for n in range(10))
        t.drain()
        assert t.clock.monotonic() < 10
        assert Counter(t.states.values()) == {"done": 1, "queued": 10}
    assert closed.counts.calls == 1


def test_a_stop_gives_back_who_waits_to_send_for_the_first_time(workers: list[Worker]) -> None:
    app = Penstock("shop")
    api = app.provider("api", base_url="http://simulated.invalid")
    calls: list[int] = []

    @app.task()
    async def fetch(ctx: Context, n: int) -> None:
        await api.http.get(f"/things/{n}")

    @app.task()
    async def stop(ctx: Context) -> None:
        await asyncio.sleep(5)
        workers[0].stop(Stopping.GRACEFUL)
        calls.append(down.counts.calls)

    down = SimulatedProvider(ProviderRules(failure_rate=1.0, latency=0.01))
    with harness(app, providers={"api": down}) as t:
        t.enqueue(stop.job(), key="stop")
        t.enqueue_many(fetch.job(n=n) for n in range(50))
        t.drain()
        assert t.clock.monotonic() < 6
        assert Counter(t.states.values()) == {"done": 1, "queued": 50}
        assert {t.job(key).attempts for key in t.states} == {0}
    assert calls == [down.counts.calls]


def test_a_stop_leaves_its_grace_to_who_has_sent_before_it_waits(workers: list[Worker]) -> None:
    app = Penstock("shop")
    api = app.provider("api", base_url="http://simulated.invalid", max_parallel=1)

    @app.task()
    async def fetch(ctx: Context, n: int) -> None:
        await api.http.get(f"/first/{n}")
        await asyncio.sleep(10 - asyncio.get_running_loop().time())
        workers[0].stop(Stopping.GRACEFUL)
        await api.http.get(f"/second/{n}")

    with harness(app, providers={"api": SimulatedProvider(ProviderRules(latency=1.0))}) as t:
        t.enqueue_many(fetch.job(n=n) for n in range(3))
        t.drain()
        assert set(t.states.values()) == {"done"}


def test_a_provider_that_refused_everything_for_a_while_is_used_again_soon() -> None:
    app = Penstock("shop")
    api = app.provider("api", base_url="http://simulated.invalid")
    done: list[float] = []

    @app.task(uses=api)
    async def fetch(ctx: Context, n: int) -> None:
        await api.http.get(f"/things/{n}")
        done.append(asyncio.get_running_loop().time())

    opens = Change(rules=ProviderRules(latency=0.1), after_seconds=600)
    closed = ProviderRules(concurrency=0, retry_after_text="0")
    with harness(app, providers={"api": SimulatedProvider(closed, changes=(opens,))}) as t:
        t.enqueue_many(fetch.job(n=n) for n in range(20))
        t.drain()
    assert min(done) > 600
    assert max(done) < 600 + 120
