# SPDX-License-Identifier: Apache-2.0
"""Do two worker processes drain no-op jobs faster than one?"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from benchmarks.measuring import (
    MEMORY,
    Answer,
    fresh,
    interleaved,
    paired_ratio,
    pick,
    ready_and_wait,
    running,
)
from benchmarks.peers.marks import Marks
from benchmarks.postgres.server import on_new_database, rounds_of
from benchmarks.postgres.workload import enqueue, marking_app
from benchmarks.report import SPREAD_COLUMNS, spread
from benchmarks.runner import Check, Outcome, Sense, Setup, Table

ONE, TWO = "1 process", "2 processes"


def work(url: str, marks: str) -> Answer:
    """Probe: a worker that begins when it is told to, and ends when no job is left."""
    app, _ = marking_app(url, marks)
    _ = app.store
    ready_and_wait()
    done = app.run(drain=True).done
    app.close()
    return {"done": done}


def drain(folder: Path, url: str, processes: int, total: int) -> Answer:
    """Let so many processes drain the same jobs at the same time."""
    with contextlib.ExitStack() as stack:
        memory = stack.enter_context(tempfile.TemporaryDirectory(dir=MEMORY))
        marks = str(Path(memory, "marks"))
        board = Marks.create(marks, total)
        fresh(enqueue, folder, url=url, marks=marks, total=total)
        workers = [
            stack.enter_context(running(work, folder, url=url, marks=marks))
            for _ in range(processes)
        ]
        for worker in workers:
            worker.wait_until_ready()
        for worker in workers:
            worker.go()
        shares = [worker.finish()["done"] for worker in workers]
        begun = board.times()
    if sum(shares) != total or not all(begun):
        raise RuntimeError(f"{processes} workers did {shares} of {total} jobs")
    return {"rate": (total - 1) / (max(begun) - min(begun)), "least": min(shares) / total}


def measure(setup: Setup) -> Outcome:
    """Drain with one process and with two, in turn."""
    total = setup.size(50_000, smoke=2_000)
    answers = interleaved(
        rounds_of(setup),
        {
            ONE: on_new_database(setup.url, lambda url: drain(setup.folder, url, 1, total)),
            TWO: on_new_database(setup.url, lambda url: drain(setup.folder, url, 2, total)),
        },
    )
    rates = {name: pick(rounds, "rate") for name, rounds in answers.items()}
    table = Table(
        f"Drain of {total:,} no-op jobs, from the first job's begin to the last one's",
        SPREAD_COLUMNS,
        (
            *(spread(f"{name}: rate", "jobs/s", values) for name, values in rates.items()),
            spread(f"{TWO}: part of the lesser one", "of 1", pick(answers[TWO], "least")),
        ),
    )
    ratio = paired_ratio(rates[TWO], rates[ONE])
    return Outcome((Check("processes: rate of two, × one", ratio, Sense.AT_LEAST, 1.15),), (table,))
