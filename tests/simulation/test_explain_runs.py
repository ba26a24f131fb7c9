# SPDX-License-Identifier: Apache-2.0
"""Does `explain` name what limited a run whose limit is known, and the change that would help?

Each scenario has one thing that is short, and ample room for all else; at least 80 percent of the
time must be charged to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pytest

from penstock import Context, Penstock
from penstock.calendars import Daily
from penstock.errors import StoreUnavailable
from penstock.model.job import WorkerId
from penstock.model.lease import ConfiguredCaps, JobRef, LeaseRequest, WorkerInfo
from penstock.model.run import LimitKind
from penstock.model.worker import WorkerStatus
from penstock.observe.explain import Advice, RunFacts, Unreadable, advise, run_facts
from penstock.process_identity import own_identity
from penstock.stores.store_future import Reply
from penstock.testing import Harness, harness
from penstock.testing.simulated_provider import Change, ProviderRules, SimulatedProvider
from tests.processes import MARK_OF_NOBODY

URL = "http://simulated.invalid"
RIGHT_PERCENT = 80

Simulations = Mapping[str, SimulatedProvider]


def explained(t: Harness) -> tuple[RunFacts, Advice]:
    """What the last run of a harness says of itself."""
    facts = run_facts(t.store.run_parts(None).result())
    assert facts is not None
    assert not isinstance(facts, Unreadable)
    said = advise(facts)
    assert said is not None
    assert facts.is_over
    assert sum(share.percent for share in facts.shares) == 100
    assert facts.busy_seconds + facts.idle_seconds == pytest.approx(facts.wall_seconds, abs=1e-3)
    return facts, said


def binding(facts: RunFacts) -> tuple[LimitKind, str]:
    first = facts.shares[0]
    assert first.percent >= RIGHT_PERCENT, facts.shares
    return first.kind, first.where


def sleepy(app: Penstock, seconds: float = 1.0, **options: Any) -> Any:
    @app.task(**options)
    async def nap(ctx: Context, n: int) -> None:
        await asyncio.sleep(seconds)

    return nap


def caller(app: Penstock, **options: Any) -> Any:
    api = app.provider("api", base_url=URL, **options)

    @app.task(uses=api)
    async def fetch(ctx: Context, n: int) -> int:
        reply = await api.http.get(f"/things/{n}")
        return int(reply.status_code)

    return fetch


def chatter(app: Penstock, **options: Any) -> Any:
    api = app.provider("api", base_url=URL, **options)

    @app.task(uses=api)
    async def chat(ctx: Context, n: int) -> int:
        asked = {"model": "m", "messages": [{"role": "user", "content": f"{n}"}], "max_tokens": 50}
        reply = await api.http.post("/v1/chat/completions", json=asked)
        return int(reply.status_code)

    return chat


def test_slots_limit_a_run_with_more_ready_jobs_than_slots() -> None:
    app = Penstock("shop")
    nap = sleepy(app)

    with harness(app, settings={"runtime": {"async_slots": 4}}) as t:
        t.enqueue_many(nap.job(n=n) for n in range(100))
        t.drain()
        facts, said = explained(t)

    assert binding(facts) == (LimitKind.SLOTS, "async")
    assert "All 4 async slots were taken" in said.sentence
    assert "runtime.async_slots from 4" in said.change


def test_slots_limit_a_run_whose_slots_wait_for_replies() -> None:
    app = Penstock("shop")
    fetch = caller(app)
    simulated = SimulatedProvider(ProviderRules(latency=1.0))

    settings = {"runtime": {"async_slots": 2}}
    with harness(app, settings=settings, providers={"api": simulated}) as t:
        t.enqueue_many(fetch.job(n=n) for n in range(60))
        t.drain()
        facts, said = explained(t)

    assert binding(facts) == (LimitKind.SLOTS, "async")
    assert "waited for replies 100% of the time" in said.change


def test_a_keyed_limit_limits_a_run() -> None:
    app = Penstock("shop")
    nap = sleepy(app, limits={"host": "example.org"})

    with harness(app, settings={"limits": {"host": {"*": 2}}}) as t:
        t.enqueue_many(nap.job(n=n) for n in range(40))
        t.drain()
        facts, said = explained(t)

    assert binding(facts) == (LimitKind.KEYED_LIMIT, "host:example.org")
    assert "limit 'host:example.org' of 2 was full" in said.sentence
    assert "penstock queue limit host:example.org 4" in said.change


def test_a_hidden_concurrency_limits_a_run() -> None:
    app = Penstock("shop")
    chat = chatter(app)
    simulated = SimulatedProvider(ProviderRules(concurrency=6, latency=1.0), seed=5)

    with harness(app, providers={"api": simulated}) as t:
        t.enqueue_many(chat.job(n=n) for n in range(600))
        t.drain()
        facts, said = explained(t)

    assert binding(facts) == (LimitKind.ADAPTIVE_LIMIT, "api/m")
    assert "api/m chat sat at its adaptive limit of" in said.sentence
    assert "the provider answered 429" in said.sentence
    assert "Ask api for a higher limit" in said.change


def test_a_declared_cap_limits_a_run() -> None:
    app = Penstock("shop")
    chat = chatter(app, max_parallel=3)
    simulated = SimulatedProvider(ProviderRules(latency=1.0))

    with harness(app, providers={"api": simulated}) as t:
        t.enqueue_many(chat.job(n=n) for n in range(60))
        t.drain()
        facts, said = explained(t)

    assert binding(facts)[0] is LimitKind.MAX_PARALLEL
    assert "Raise providers.api.max_parallel from 3" in said.change


def test_a_cool_down_limits_a_run() -> None:
    app = Penstock("shop")
    chat = chatter(app)
    ill = ProviderRules(concurrency=0, retry_after_seconds=45.0)
    well = Change(rules=ProviderRules(latency=0.1), after_seconds=400.0)
    simulated = SimulatedProvider(ill, seed=2, changes=[well])

    with harness(app, providers={"api": simulated}) as t:
        t.enqueue_many(chat.job(n=n) for n in range(30))
        t.drain()
        facts, said = explained(t)

    assert binding(facts) == (LimitKind.COOLDOWN, "api/m")
    assert "was in a cool-down" in said.sentence


@pytest.mark.parametrize(
    ("cap", "kind"), [({"rpm": 30}, LimitKind.RPM), ({"tpm": 1_200}, LimitKind.TPM)]
)
def test_a_declared_rate_limits_a_run(cap: dict[str, int], kind: LimitKind) -> None:
    app = Penstock("shop")
    chat = chatter(app, **cap)
    simulated = SimulatedProvider(ProviderRules(latency=0.2), seed=2)

    with harness(app, providers={"api": simulated}) as t:
        t.enqueue_many(chat.job(n=n) for n in range(100))
        t.drain()
        facts, said = explained(t)

    assert binding(facts)[0] is kind
    assert f"Raise providers.api.{kind.value} from {next(iter(cap.values())):,}" in said.change


def test_a_chain_of_jobs_limits_itself() -> None:
    app = Penstock("shop")
    nap = sleepy(app, 3.0)

    with harness(app) as t:
        t.enqueue(nap.job(n=0), key="0")
        for n in range(1, 20):
            t.enqueue(nap.job(n=n), key=f"{n}", after=[f"{n - 1}"])
        t.drain()
        facts, said = explained(t)

    assert binding(facts) == (LimitKind.DEPENDENCIES, "")
    assert "while 1 ran at once" in said.sentence
    assert "more slots or workers would not help" in said.change


def test_a_build_of_one_level_waits_for_nothing() -> None:
    app = Penstock("shop")

    @app.dataset(calendar=Daily())
    async def prices(ctx: Context, at: datetime) -> bytes:
        await asyncio.sleep(3.0)
        return b"1"

    with harness(app) as t:
        assert t.build(prices, start="2024-01-01", end="2024-01-05").ok
        facts, _ = explained(t)

    assert binding(facts)[0] is LimitKind.OWN_CODE


def test_slow_replies_limit_a_run_with_little_to_do() -> None:
    app = Penstock("shop")
    chat = chatter(app)
    simulated = SimulatedProvider(ProviderRules(latency=30.0))

    with harness(app, providers={"api": simulated}) as t:
        t.enqueue_many(chat.job(n=n) for n in range(4))
        t.drain()
        facts, said = explained(t)

    assert binding(facts) == (LimitKind.LATENCY, "api/m")
    assert "these took 30 s each" in said.sentence
    assert "at most 4 of 256 were used" in said.change


def test_slow_task_code_limits_a_run_with_little_to_do() -> None:
    app = Penstock("shop")
    nap = sleepy(app, 20.0)

    with harness(app) as t:
        t.enqueue_many(nap.job(n=n) for n in range(4))
        t.drain()
        facts, said = explained(t)

    assert binding(facts) == (LimitKind.OWN_CODE, "")
    assert "4 at once" in said.sentence
    assert "Make the tasks' code faster" in said.change


def test_delays_limit_a_run_whose_retries_wait() -> None:
    app = Penstock("shop")

    @app.task(max_attempts=4)
    async def fails(ctx: Context, n: int) -> None:
        raise ValueError("no")

    with harness(app) as t:
        t.enqueue_many(fails.job(n=n) for n in range(3))
        t.drain()
        facts, said = explained(t)

    assert binding(facts) == (LimitKind.DELAYS, "")
    assert "attempts had ended in an error" in said.sentence


def test_a_store_that_is_away_limits_a_run() -> None:
    app = Penstock("shop")
    nap = sleepy(app)

    with harness(app) as t:
        register, tries = t.store.register, iter(range(18))

        def away(worker: WorkerInfo, ttl_seconds: float) -> Reply[None]:
            if next(tries, None) is not None:  # about 20 s: every 2 s, after a few
                raise StoreUnavailable("it restarts")
            return register(worker, ttl_seconds)

        t.store.register = away  # type: ignore[method-assign]
        t.enqueue_many(nap.job(n=n) for n in range(4))
        t.drain()
        facts, said = explained(t)

    assert binding(facts) == (LimitKind.STORE, "")
    assert said.sentence.startswith("Workers waited for the store for")


def test_code_after_a_reply_is_the_tasks_own() -> None:
    app = Penstock("shop")
    api = app.provider("api", base_url=URL)

    @app.task(uses=api)
    async def fetch_and_think(ctx: Context, n: int) -> None:
        await api.http.get(f"/things/{n}")
        await asyncio.sleep(20.0)

    simulated = SimulatedProvider(ProviderRules(latency=1.0))
    with harness(app, providers={"api": simulated}) as t:
        t.enqueue_many(fetch_and_think.job(n=n) for n in range(4))
        t.drain()
        facts, _ = explained(t)

    assert binding(facts) == (LimitKind.OWN_CODE, "")
    doing = {one.kind: one.seconds for one in facts.doing}
    assert doing[LimitKind.LATENCY] == pytest.approx(4 * 1.0, rel=0.05)
    assert doing[LimitKind.OWN_CODE] == pytest.approx(4 * 20.0, rel=0.05)


def test_slots_whose_holders_wait_for_permits_are_not_to_blame() -> None:
    """A task that does not say which provider it uses is started, and waits in its slot."""
    app = Penstock("shop")
    api = app.provider("api", base_url=URL, max_parallel=2)

    @app.task()
    async def fetch(ctx: Context, n: int) -> None:
        await api.http.get(f"/things/{n}")

    simulated = SimulatedProvider(ProviderRules(latency=1.0))
    settings = {"runtime": {"async_slots": 8}}
    with harness(app, settings=settings, providers={"api": simulated}) as t:
        t.enqueue_many(fetch.job(n=n) for n in range(100))
        t.drain()
        facts, said = explained(t)

    assert binding(facts)[0] is LimitKind.MAX_PARALLEL
    assert "Raise providers.api.max_parallel from 2" in said.change


def test_a_job_with_many_requests_at_once_waits_for_replies() -> None:
    app = Penstock("shop")
    api = app.provider("api", base_url=URL)

    @app.task(uses=api)
    async def fetch_all(ctx: Context) -> None:
        async with asyncio.TaskGroup() as group:
            for n in range(5):
                group.create_task(api.http.get(f"/things/{n}"))

    simulated = SimulatedProvider(ProviderRules(latency=30.0))
    with harness(app, providers={"api": simulated}) as t:
        t.enqueue(fetch_all.job())
        t.drain()
        facts, _ = explained(t)

    assert binding(facts) == (LimitKind.LATENCY, "api/simulated.invalid")


def test_a_chain_whose_provider_cools_down_is_limited_by_it() -> None:
    app = Penstock("shop")
    chat = chatter(app)
    ill = ProviderRules(concurrency=0, retry_after_seconds=45.0)
    well = Change(rules=ProviderRules(latency=0.1), after_seconds=400.0)
    simulated = SimulatedProvider(ill, seed=2, changes=[well])

    with harness(app, providers={"api": simulated}) as t:
        t.enqueue(chat.job(n=0), key="0")
        for n in range(1, 5):
            t.enqueue(chat.job(n=n), key=f"{n}", after=[f"{n - 1}"])
        t.drain()
        facts, _ = explained(t)

    assert binding(facts) == (LimitKind.COOLDOWN, "api/m")


def test_two_providers_share_the_blame_by_what_waits_for_them() -> None:
    """Most jobs use a free provider; those of a full one must not be called the limit of all."""
    app = Penstock("shop")
    slow = app.provider("slow", base_url=URL, max_parallel=1)

    @app.task(uses=slow)
    async def stuck(ctx: Context, n: int) -> None:
        await slow.http.get(f"/things/{n}")

    nap = sleepy(app)
    simulated = SimulatedProvider(ProviderRules(latency=1.0))
    settings = {"runtime": {"async_slots": 8}}
    with harness(app, settings=settings, providers={"slow": simulated}) as t:
        t.enqueue_many(stuck.job(n=n) for n in range(20))
        t.enqueue_many(nap.job(n=n) for n in range(400))
        t.drain()
        facts, _ = explained(t)

    assert facts.shares[0].kind is LimitKind.SLOTS, facts.shares


def test_jobs_that_a_killed_worker_holds_are_not_blamed_on_long_jobs() -> None:
    app = Penstock("shop")
    nap = sleepy(app, 0.5)

    with harness(app) as t:
        t.enqueue_many(nap.job(n=n) for n in range(2))
        hold(t, "dead", nap.name, process=MARK_OF_NOBODY, supervisor=own_identity())
        t.drain()
        facts, said = explained(t)

    assert binding(facts) == (LimitKind.LOST, "")
    assert "Dead workers held" in said.sentence
    assert "Split" not in said.change


def test_quarantine_is_told_as_such() -> None:
    app = Penstock("shop")
    nap = sleepy(app, 10.0)

    with harness(app) as t:
        t.enqueue_many(nap.job(n=n) for n in range(3))
        started = hold(t, "dead", nap.name)
        t.store.reap(WorkerId("dead"), started, "killed by signal 9", 3).result()
        t.drain()
        facts, said = explained(t)

    assert binding(facts) == (LimitKind.SUSPECTS, "")
    assert "in quarantine, apart from all others" in said.sentence
    assert "what killed the worker" in said.change


def hold(t: Harness, worker: str, task: str, **status: Any) -> list[JobRef]:
    """Somebody else takes all jobs, and does not renew its lease."""
    name = WorkerId(worker)
    t.store.register(WorkerInfo(id=name, run_id="before", tasks=(task,)), 30.0).result()
    request = LeaseRequest(worker=name, tasks=(task,), limit=10, caps=ConfiguredCaps({}))
    jobs = t.store.lease(request).result().jobs
    said = WorkerStatus(captured_at=0, lease_ttl_seconds=30.0, running=len(jobs), **status)
    t.store.publish(name, said.encoded()).result()
    return [JobRef(job.id, job.token) for job in jobs]
