# SPDX-License-Identifier: Apache-2.0
"""What does the engine cost per job, beside a drain that does the bare minimum?"""

from __future__ import annotations

from benchmarks import yardstick
from benchmarks.measuring import Answer, fresh, interleaved, paired_ratio, pick, stopwatch
from benchmarks.queue.workload import empty_log, file_url, noop_app, noop_jobs
from benchmarks.report import SPREAD_COLUMNS, spread
from benchmarks.runner import Check, Outcome, Sense, Setup, Table


def drain(url: str, total: int, first: int = 0, settled: str | None = None) -> Answer:
    """Probe: enqueue no-op jobs, then drain them with one worker and default settings.

    Args:
        url: of the store.
        total: how many jobs.
        first: the number of the first.
        settled: the store's file, if the log is to be empty before the drain: the keys of new jobs
            lie scattered in a large file, and their pages are the price of enqueueing.
    """
    app, noop = noop_app(url)
    app.run(drain=True)  # opens the store and imports what a run needs, before the clock runs
    with stopwatch() as enqueueing:
        app.enqueue_many(noop_jobs(noop, total, first=first))
    if settled is not None:
        empty_log(settled)
    with stopwatch() as spent:
        report = app.run(drain=True)
    app.close()
    if report.done != total or report.errors:
        raise RuntimeError(f"The drain did not do what it should: {report}")
    return {
        "rate": total / spent.wall,
        "cpu_us": spent.cpu / total * 1e6,
        "enqueue_rate": total / enqueueing.wall,
    }


def measure(setup: Setup) -> Outcome:
    """Drain the same number of jobs with both, in turn."""
    total = setup.size(50_000, smoke=8_000)
    urls = (file_url(f"{number}.db") for number in range(setup.rounds))
    answers = interleaved(
        setup.rounds,
        {
            "ours": lambda: fresh(drain, setup.folder, url=next(urls), total=total),
            "yardstick": lambda: fresh(yardstick.measure, setup.folder, total=total),
        },
    )
    cpu = {name: pick(rounds, "cpu_us") for name, rounds in answers.items()}
    rate = {name: pick(rounds, "rate") for name, rounds in answers.items()}
    table = Table(
        f"Drain of {total:,} no-op jobs in 8 groups by one worker, durability full",
        SPREAD_COLUMNS,
        (
            *(spread(f"{name}: rate", "jobs/s", values) for name, values in rate.items()),
            *(spread(f"{name}: CPU per job", "µs", values) for name, values in cpu.items()),
        ),
    )
    return Outcome(
        (
            Check(
                "drain: CPU per job, × yardstick",
                paired_ratio(cpu["ours"], cpu["yardstick"]),
                Sense.AT_MOST,
                4.5,  # with fair scheduling and task admission; 3.5 without
            ),
            Check(
                "drain: rate, × yardstick",
                paired_ratio(rate["ours"], rate["yardstick"]),
                Sense.AT_LEAST,
                0.3,
            ),
        ),
        (table,),
    )
