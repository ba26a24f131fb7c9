# SPDX-License-Identifier: Apache-2.0
"""How fast are calls made with the journal, beside the same calls without it?

The provider answers at once, so this is the worst case: a real one takes a hundred times as long,
and its answers cost money. The journal writes each call down twice, with others in one commit.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.journal.provider import MODEL, PATH, serving
from benchmarks.measuring import Answer, fresh, interleaved, paired_ratio, pick, stopwatch
from benchmarks.postgres.server import on_new_database, rounds_of
from benchmarks.queue.workload import file_url
from benchmarks.report import SPREAD_COLUMNS, spread
from benchmarks.runner import Check, Kind, Outcome, Sense, Setup, Table
from penstock import Context, Penstock

CALLS_EACH = 4  # of a job, after each other
CPU_GOAL = 2.0  # × the same call without the journal
RATE_GOAL = 0.4
PRICE = {"input": 1.25, "output": 10}

Measure = Callable[[bool], Answer]


def make_calls(store: str, provider: str, jobs: int, paid: bool) -> Answer:
    """Probe: jobs that ask a model, drained by one worker with default settings."""
    app = Penstock("bench", store=store)
    models = {MODEL: {"usd_per_million_tokens": PRICE}}
    llm = app.provider("llm", base_url=provider, paid=paid, models=models)

    @app.task(uses=llm)
    async def ask(ctx: Context, number: int) -> None:
        for turn in range(CALLS_EACH):
            messages = [{"role": "user", "content": f"Page {number}, question {turn}?"}]
            asked = {"model": MODEL, "max_tokens": 200, "messages": messages}
            reply = await llm.http.post(PATH, json=asked)
            reply.raise_for_status()

    app.enqueue_many(ask.job(number=number) for number in range(jobs))
    with stopwatch() as spent:
        report = app.run(drain=True)
    figures = app.store.call_figures(None).result()
    app.close()
    if report.done != jobs or report.errors:
        raise RuntimeError(f"The run did not do what it should: {report}")
    total = jobs * CALLS_EACH
    return {
        "rate": total / spent.wall,
        "cpu_us": spent.cpu / total * 1e6,
        "wrong": abs(figures.bought - total) if paid else figures.bought,
    }


def on_sqlite(setup: Setup) -> Outcome:
    """Each time with a new file."""
    urls = (file_url(f"{number}.db") for number in range(2 * rounds_of(setup)))

    def measured(provider: str, jobs: int, paid: bool) -> Answer:
        return fresh(
            make_calls, setup.folder, store=next(urls), provider=provider, jobs=jobs, paid=paid
        )

    return _compared("SQLite, durability full", setup, rounds_of(setup), measured)


def on_postgres(setup: Setup) -> Outcome:
    """Each time on a new database."""

    def measured(provider: str, jobs: int, paid: bool) -> Answer:
        def probe(url: str) -> Answer:
            return fresh(
                make_calls, setup.folder, store=url, provider=provider, jobs=jobs, paid=paid
            )

        return on_new_database(setup.url, probe)()

    return _compared("PostgreSQL", setup, rounds_of(setup), measured)


def _compared(
    name: str, setup: Setup, rounds: int, measured: Callable[[str, int, bool], Answer]
) -> Outcome:
    jobs = setup.size(2_000, smoke=25)
    with serving() as provider:
        answers = interleaved(
            rounds,
            {
                "with": lambda: measured(provider, jobs, True),
                "without": lambda: measured(provider, jobs, False),
            },
        )
    cpu = {one: pick(found, "cpu_us") for one, found in answers.items()}
    rate = {one: pick(found, "rate") for one, found in answers.items()}
    wrong = sum(sum(pick(found, "wrong")) for found in answers.values())
    table = Table(
        f"{jobs * CALLS_EACH:,} calls of {jobs:,} jobs on {name}; the provider answers at once",
        SPREAD_COLUMNS,
        (
            *(spread(f"{one} the journal: rate", "calls/s", found) for one, found in rate.items()),
            *(spread(f"{one} the journal: CPU", "µs/call", found) for one, found in cpu.items()),
        ),
    )
    at = f"journal on {name.partition(',')[0]}"
    return Outcome(
        (
            Check(f"{at}: calls that were not counted", wrong, Sense.AT_MOST, 0, timing=False),
            Check(
                f"{at}: CPU of a call, × without",
                paired_ratio(cpu["with"], cpu["without"]),
                Sense.AT_MOST,
                CPU_GOAL,
                Kind.GOAL,
            ),
            Check(
                f"{at}: rate, × without",
                paired_ratio(rate["with"], rate["without"]),
                Sense.AT_LEAST,
                RATE_GOAL,
                Kind.GOAL,
            ),
        ),
        (table,),
    )
