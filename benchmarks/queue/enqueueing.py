# SPDX-License-Identifier: Apache-2.0
"""What does accepting jobs cost, beside inserting the same rows with bare SQL?

Ours makes, checks and encodes its jobs while the clock runs; the bare one has its rows at hand.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks import yardstick
from benchmarks.measuring import Answer, Probe, fresh, interleaved, paired_ratio, pick, stopwatch
from benchmarks.queue.workload import file_url, noop_app, noop_jobs
from benchmarks.report import SPREAD_COLUMNS, spread
from benchmarks.runner import Check, Outcome, Sense, Setup, Table
from penstock.definitions.request import to_new_job

BATCH = 1_000  # rows of one transaction, as enqueue_many does it


def enqueue_many(path: str, total: int) -> Answer:
    """Probe: one call for all jobs."""
    app, noop = noop_app(file_url(path))
    _ = app.store  # opened before the clock runs, as the bare one
    with stopwatch() as spent:
        created = app.enqueue_many(noop_jobs(noop, total)).created
    app.close()
    if created != total:
        raise RuntimeError(f"{created} of {total} jobs were created")
    return {"rate": total / spent.wall}


def enqueue_one(path: str, total: int) -> Answer:
    """Probe: one call for each job."""
    app, noop = noop_app(file_url(path))
    _ = app.store
    with stopwatch() as spent:
        for request in noop_jobs(noop, total):
            app.enqueue(request)
    app.close()
    return {"rate": total / spent.wall}


def insert_many(path: str, total: int) -> Answer:
    """Probe: the same rows into the yardstick's schema, a thousand per transaction."""
    rows = _rows(total)
    connection = yardstick.create(path)
    with stopwatch() as spent:
        for begin in range(0, total, BATCH):
            yardstick.insert(connection, rows[begin : begin + BATCH])
    connection.close()
    return {"rate": total / spent.wall}


def insert_one(path: str, total: int) -> Answer:
    """Probe: the same rows into the yardstick's schema, one per transaction."""
    rows = _rows(total)
    connection = yardstick.create(path)
    with stopwatch() as spent:
        for row in rows:
            connection.execute("begin immediate")
            connection.execute(yardstick.INSERT, row)
            connection.execute("commit")
    connection.close()
    return {"rate": total / spent.wall}


def _rows(total: int) -> list[tuple[str, str, str, str]]:
    jobs = map(to_new_job, noop_jobs(noop_app(file_url())[1], total))
    return [(job.key, job.task, job.group, job.payload) for job in jobs]


def measure(setup: Setup) -> Outcome:
    """Accept many jobs at once and one by one, each beside the bare way."""
    many, few = setup.size(50_000, smoke=4_000), setup.size(1_000, smoke=100)
    answers = interleaved(
        setup.rounds,
        {
            "enqueue_many": _into_new_file(setup, enqueue_many, many),
            "bulk insert": _into_new_file(setup, insert_many, many),
            "enqueue": _into_new_file(setup, enqueue_one, few),
            "one-row commit": _into_new_file(setup, insert_one, few),
        },
    )
    rate = {name: pick(rounds, "rate") for name, rounds in answers.items()}
    return Outcome(
        (
            Check(
                "enqueueing: enqueue_many, × raw bulk insert",
                paired_ratio(rate["enqueue_many"], rate["bulk insert"]),
                Sense.AT_LEAST,
                0.25,
            ),
            Check(
                "enqueueing: one enqueue, × raw one-row commit",
                paired_ratio(rate["enqueue"], rate["one-row commit"]),
                Sense.AT_LEAST,
                0.5,
            ),
        ),
        (
            Table(
                f"Accepting {many:,} jobs at once, and {few:,} one by one",
                SPREAD_COLUMNS,
                tuple(spread(name, "jobs/s", values) for name, values in rate.items()),
            ),
        ),
    )


def _into_new_file(setup: Setup, probe: Probe, total: int) -> Callable[[], Answer]:
    files = iter(range(setup.rounds))

    def run() -> Answer:
        return fresh(probe, setup.folder, path=f"{probe.__name__}-{next(files)}.db", total=total)

    return run
