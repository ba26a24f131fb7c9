# SPDX-License-Identifier: Apache-2.0
"""What a rerun costs: nothing where nothing has changed, and each answer once where it is fresh."""

from __future__ import annotations

from typing import Any

from penstock import Context, Penstock
from penstock.model.job import JobState
from penstock.testing import Harness, harness
from penstock.testing.simulated_provider import SimulatedProvider, SimulatedRequest
from tests.depth import depth

DOCUMENTS = depth(200, 1_000)
URL = "http://simulated.invalid"


def _words(request: SimulatedRequest) -> dict[str, Any]:
    return {"n": request.number, "words": (request.json() or {}).get("prompt")}


class Documents:
    """An app that buys one answer for each document and reads it with a parser of its own."""

    def __init__(self) -> None:
        self.app = Penstock("documents")
        self.api = self.app.provider("api", base_url=URL, paid=True, max_parallel=64)
        self.provider = SimulatedProvider(answer=_words)
        self.is_fixed = False

        @self.app.task(uses=self.api, max_attempts=1)
        async def parse(ctx: Context, number: int) -> str:
            reply = await self.api.http.post("/ask", json={"prompt": f"document {number}"})
            words: str = reply.json()["words"]
            if not self.is_fixed and number % 10 == 0:
                raise KeyError("words")  # the bug of one in ten
            return words if self.is_fixed else "?"  # and that of the others

        self.parse = parse

    def first_run(self, t: Harness, count: int) -> None:
        for number in range(count):
            t.enqueue(self.parse.job(number=number), key=f"d{number}")
        t.drain()
        assert self.provider.counts.served == count


def test_a_parser_is_fixed_and_all_documents_run_again_without_a_call() -> None:
    shop = Documents()
    with harness(shop.app, providers={"api": shop.provider}) as t:
        shop.first_run(t, DOCUMENTS)
        shop.is_fixed = True

        again = shop.app.rerun(task=shop.parse)
        failed = shop.app.retry(task="parse")
        there = shop.app.job("d1")
        t.drain()

        assert (again.rerun, failed.failed) == (DOCUMENTS * 9 // 10, DOCUMENTS // 10)
        assert (there.state, there.result, there.attempts) == (JobState.QUEUED, "?", 0)
        results = dict(shop.parse.results())
        assert results == {f"d{n}": f"document {n}" for n in range(DOCUMENTS)}
        assert shop.provider.counts.served == DOCUMENTS
        figures = t.store.call_figures(None).result()
        assert (figures.bought, figures.reused) == (DOCUMENTS, DOCUMENTS)


def test_a_fresh_rerun_buys_each_answer_once_more() -> None:
    shop = Documents()
    shop.is_fixed = True
    with harness(shop.app, providers={"api": shop.provider}) as t:
        shop.first_run(t, 30)

        assert shop.app.rerun(task=shop.parse, fresh=True).rerun == 30
        t.drain()
        fresh = shop.provider.counts.served
        assert shop.app.rerun("d0", "d1").rerun == 2
        t.drain()

        assert (fresh, shop.provider.counts.served) == (60, 60)
        assert len(dict(shop.parse.results())) == 30


def test_a_fan_in_that_runs_meanwhile_reads_the_last_result() -> None:
    app = Penstock("fan")
    said = ["first"]

    @app.task()
    async def part(ctx: Context) -> str:
        return said[-1]

    @app.task()
    async def whole(ctx: Context) -> list[str]:
        return await ctx.upstream_async(part)

    with harness(app) as t:
        t.enqueue(part.job(), key="part")
        t.drain()
        t.enqueue(whole.job(), key="whole", after=["part"], delay=5.0)
        said.append("second")
        assert app.rerun("part").rerun == 1
        row = t.store.job("whole").result()
        assert row is not None
        upstream = t.store.upstream(row.id).result()
        t.drain()

        assert [one.result for one in upstream] == ['"first"']
        assert t.results["whole"] == ["second"]
