# SPDX-License-Identifier: Apache-2.0
"""Do the parts that know jobs get on with ticks: providers, paid calls, statistics, records?"""

from __future__ import annotations

import asyncio
import logging

import pytest

from penstock import Context, Penstock, TickContext
from penstock.testing import SimulatedProvider, harness
from tests.paid_shop import URL, numbered


def test_each_occurrence_buys_anew_and_a_second_try_does_not() -> None:
    app = Penstock("paying")
    api = app.provider("api", base_url=URL, paid=True)
    provider = SimulatedProvider(answer=numbered)
    bought: list[tuple[int, int]] = []  # tick, answer
    fails = [False, True, False, False]

    @app.every(10, uses=api)
    async def ask(ctx: TickContext) -> None:
        reply = await api.http.post("/ask", json={"prompt": "the same"})
        bought.append((round(ctx.due_at.timestamp()), reply.json()["n"]))
        if fails and fails.pop(0):
            raise ConnectionResetError("no fault of the answer")

    with harness(app, providers={"api": provider}) as test:
        test.advance(35)
        assert test.unit("schedule:ask").failed == 1
        assert test.store.calls(test.job("schedule:ask").id).result() == []  # ticks are over
    by_tick: dict[int, set[int]] = {}
    for due, answer in bought:
        by_tick.setdefault(due, set()).add(answer)
    assert all(len(answers) == 1 for answers in by_tick.values())  # a second try has the first's
    assert len({min(answers) for answers in by_tick.values()}) == len(by_tick)
    assert provider.counts.served == len(by_tick)


def test_the_line_of_statistics_tells_units_from_jobs(caplog: pytest.LogCaptureFixture) -> None:
    app = Penstock("telling")
    hosts = app.partitions("host", range(3))

    @app.task()
    async def event(ctx: Context) -> None:
        await asyncio.sleep(0.1)

    @app.every(30, over=hosts)
    async def poll(ctx: TickContext, host: int) -> None:
        ctx.enqueue(event.job(), key=f"{host} {ctx.due_at}", delay=0 if host else 1_000)

    caplog.set_level(logging.INFO, "penstock.statistics")
    with harness(app) as test:
        test.advance(70)
        lines = [r.getMessage() for r in caplog.records if r.name == "penstock.statistics"]
        assert lines
        assert "3 units of schedules (0 ticking)" in lines[0]
        assert lines[0].startswith("2 queued (2 delayed or to be retried), 0 running, ")
        test.restart()
        assert test.store.run_parts(None).result()  # the record of the run was kept


def test_a_schedule_with_a_provider_waits_for_it_as_a_job_does() -> None:
    app = Penstock("calling")
    api = app.provider("api", base_url=URL, max_parallel=2)
    provider = SimulatedProvider(answer=numbered)
    hosts = app.partitions("host", range(10))
    answers: list[int] = []

    @app.preflight(uses=api)
    async def answers_at_all(ctx: Context) -> int:
        return int((await api.http.post("/ask", json={})).json()["n"])

    @app.every(10, over=hosts, uses=api)
    async def poll(ctx: TickContext, host: int) -> None:
        answers.append((await api.http.post("/ask", json={})).json()["n"])

    with harness(app, providers={"api": provider}) as test:
        test.advance(25)
        assert sum(test.unit(f"schedule:poll:{host}").ticks for host in range(10)) == len(answers)
    assert len(answers) >= 20
    assert provider.counts.served == len(answers) + 1
