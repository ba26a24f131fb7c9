# SPDX-License-Identifier: Apache-2.0
"""Is a refusal that an SDK raises told as what it is, and does it cost no attempt?"""

from __future__ import annotations

import logging

import pytest

from penstock import Context, Penstock
from penstock.cli.commands.queue.show import document_of, lines_of
from penstock.observe.explain import RunFacts, run_facts
from penstock.testing import Harness, SimulatedProvider, harness
from penstock.testing.simulated_provider import Reply, SimulatedRequest

URL = "http://simulated.invalid"
ANSWER = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": []}


def app_with(statuses: list[int]) -> tuple[Penstock, SimulatedProvider]:
    """An app whose provider answers the first calls so, and the others well."""
    from openai import AsyncOpenAI

    app = Penstock("sdk")
    api = app.provider("api", base_url=URL)

    @app.task(uses=api, max_attempts=2)
    async def ask(ctx: Context) -> str:
        client = AsyncOpenAI(
            api_key="sk-none", base_url=URL, http_client=api.http_client(), max_retries=0
        )
        asked = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "secret prompt"}]
        )
        return asked.id

    def script(request: SimulatedRequest) -> Reply | None:
        left = statuses[request.number - 1 : request.number]
        return Reply.of({}, status=left[0], headers=(("retry-after", "7"),)) if left else None

    return app, SimulatedProvider(script=script, answer=lambda request: ANSWER)


def run(t: Harness, app: Penstock) -> None:
    t.enqueue(app.tasks["ask"].job(), key="k")
    t.drain()


def test_a_refusal_is_told_with_its_provider_and_spends_no_attempt(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "penstock.worker")
    app, provider = app_with([429, 429, 429])
    with harness(app, providers={"api": provider}) as t:
        run(t, app)
        job, history = t.job("k"), t.attempts("k")
        facts, result = run_facts(t.store.run_parts(None).result()), t.results["k"]

    assert (result, job.attempts, provider.counts.calls) == ("x", 0, 4)
    said = [record.getMessage() for record in caplog.records if "'k'" in record.getMessage()]
    sentence = (
        "Job 'k' of task 'ask' was refused by api/m (429) and comes back in 7.0 s; no attempt is "
        "spent."
    )
    assert said == [sentence] * 3
    refused = [one.error.message for one in history if one.error is not None]
    assert len(refused) == 3
    assert {text[: len(START)] for text in refused} == {START}
    assert isinstance(facts, RunFacts)
    assert (facts.retries, facts.put_back) == (0, 3)


START = "refused by api/m (429), no attempt is spent: "


def test_the_history_of_a_job_shows_the_refusal() -> None:
    app, provider = app_with([429])
    with harness(app, providers={"api": provider}) as t:
        run(t, app)
        job, history = t.job("k"), t.attempts("k")
        figures = t.store.call_figures(job.id).result()

    lines = lines_of(document_of(job, history, figures), history)

    assert any(f"RateLimitError: {START}" in line for line in lines)


@pytest.mark.parametrize(("status", "charged"), [(500, 0), (400, 1)])
def test_what_is_no_refusal_is_not_called_one(
    status: int, charged: int, caplog: pytest.LogCaptureFixture
) -> None:
    app, provider = app_with([status])
    with harness(app, providers={"api": provider}) as t:
        run(t, app)
        assert t.job("k").attempts == charged

    assert "refused by" not in caplog.text
    assert "Job 'k' of task 'ask' ended in an error and is tried again" in caplog.text
