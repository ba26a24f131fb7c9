# SPDX-License-Identifier: Apache-2.0
"""Calls that cost money: bought through the journal, and found there again."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from benchmarks.measuring import Answer, stopwatch
from benchmarks.paired.figures import rate_and_cpu, to_answer
from penstock import Context, Penstock

MODEL = "gpt-5"
PATH = "/v1/chat/completions"
PRICE = {"input": 1.25, "output": 10}
CALLS_EACH = 4  # of a job that ends
JOBS_HELD = 8  # jobs that are stopped after their calls and started again
SETTINGS = "[runtime]\ngrace_seconds = 0\n"  # who is stopped is stopped at once


def measure(store: str, provider: str, calls: int) -> Answer:
    """Probe: make calls, with one worker; then make calls, stop, and make the same calls again."""
    Path("penstock.toml").write_text(SETTINGS)
    app = Penstock("bench", store=store)
    models = {MODEL: {"usd_per_million_tokens": PRICE}}
    llm = app.provider("llm", base_url=provider, paid=True, models=models)
    held = 0
    hold = True

    async def ask(number: int, count: int) -> None:
        for turn in range(count):
            messages = [{"role": "user", "content": f"Page {number}, question {turn}?"}]
            asked = {"model": MODEL, "max_tokens": 200, "messages": messages}
            (await llm.http.post(PATH, json=asked)).raise_for_status()

    @app.task(uses=llm)
    async def buy(ctx: Context, number: int) -> None:
        await ask(number, CALLS_EACH)

    @app.task(uses=llm)
    async def resume(ctx: Context, number: int) -> None:
        nonlocal held
        await ask(number, calls // JOBS_HELD)
        if hold:
            held += 1
            if held == JOBS_HELD:
                os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()

    jobs = calls // CALLS_EACH
    app.enqueue(buy.job(-1))
    app.run(drain=True)  # imports what a call needs before the clock runs
    app.enqueue_many(buy.job(number) for number in range(jobs))
    with stopwatch() as bought:
        first = app.run(drain=True)
    app.enqueue_many(resume.job(jobs + number) for number in range(JOBS_HELD))
    stopped = app.run(drain=True)
    hold = False
    with stopwatch() as replayed:
        last = app.run(drain=True)
    app.close()
    if (first.done, stopped.stopped, last.done) != (jobs, True, JOBS_HELD):
        raise RuntimeError(f"The runs did not do what they should: {first}, {stopped}, {last}")
    return to_answer(
        rate_and_cpu("paid calls", "call", jobs * CALLS_EACH, bought),
        rate_and_cpu("replayed calls", "call", calls // JOBS_HELD * JOBS_HELD, replayed),
    )
