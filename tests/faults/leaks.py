# SPDX-License-Identifier: Apache-2.0
"""Does a worker with its store keep anything of jobs that are done and forgotten?"""

from __future__ import annotations

import gc
import logging
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from statistics import median

from penstock import Context, Penstock
from penstock.model.views import FIRST_END

LEAK_BYTES_PER_JOB_MAX = 20
WARM_UP_ROUNDS = 3  # they fill caches; what every later round adds is a leak


def leaky_app(name: str = "flat") -> Penstock:
    """Tasks of several kinds; the app's store lies in the current folder."""
    app = Penstock(name)

    @app.task(limits={"host": lambda n: f"h{n % 3}"})
    async def limited(ctx: Context, n: int) -> int:
        return n

    @app.task()
    def threaded(ctx: Context, n: int) -> int:
        return n

    @app.task(max_attempts=1)
    async def fails(ctx: Context, n: int) -> int:
        raise ValueError(f"always {n}")

    return app


def work(app: Penstock, first: int, count: int) -> None:
    """A round of jobs, done and forgotten."""
    tasks = [*app.tasks.values()]
    with _quiet():
        app.enqueue_many(tasks[n % len(tasks)].job(n=n) for n in range(first, first + count))
        report = app.run(drain=True)
    if report.done + report.errors != count:
        raise AssertionError(f"{count} jobs were enqueued, the run says {report}")
    mark, more = FIRST_END, True
    while more:
        progress, mark = app.store.purge(2**62, mark).result()
        more = progress.more


@contextmanager
def _quiet() -> Iterator[None]:
    """A test runner keeps every log record; those are not what is measured here."""
    log = logging.getLogger("penstock.worker")
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = False


def leaked(app: Penstock, rounds: int, count: int) -> list[str]:
    """What rounds of so many jobs left in memory, as sentences; none if nothing did."""
    held = []
    tracemalloc.start(1)
    try:
        for number in range(rounds):
            work(app, number * count, count)
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    steady = held[WARM_UP_ROUNDS:]
    per_job = median(b - a for a, b in pairwise(steady)) / count
    if per_job <= LEAK_BYTES_PER_JOB_MAX:
        return []
    return [f"{per_job:.0f} bytes of each job stay in memory: {steady} bytes were held"]
