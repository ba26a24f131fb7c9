# SPDX-License-Identifier: Apache-2.0
"""How soon does an idle worker begin a job of another process, and what does its waiting cost?"""

from __future__ import annotations

import os
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measuring import (
    MEMORY,
    Answer,
    ProbeFailed,
    Running,
    cpu_of,
    fresh,
    pick,
    quantile,
    running,
)
from benchmarks.queue.workload import file_url
from benchmarks.report import SPREAD_COLUMNS, spread
from benchmarks.runner import Check, Outcome, Sense, Setup, Table
from penstock import Context, Penstock
from penstock.definitions.task import Task

STARTED = -1  # the number of the job by which a worker shows that it works
WARM_UP = 3  # jobs before the clock counts
SEED = 20_240_601
GAP_SECONDS = (0.02, 0.12)  # between two jobs: no multiple of any polling interval
QUIET_SECONDS = 0.3  # between the start and the measurement of idleness
ANSWER_SECONDS = 30.0


def marking_app(url: str, marks: str) -> tuple[Penstock, Task[[int], None]]:
    """An application whose task writes down when it began."""
    app = Penstock("bench", store=url)
    descriptor = os.open(marks, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    @app.task()
    async def mark(ctx: Context, n: int) -> None:
        os.write(descriptor, f"{n} {time.monotonic()!r}\n".encode())

    return app, mark


def work(url: str, marks: str) -> Answer:
    """Probe: a worker that runs until it is asked to end."""
    app, mark = marking_app(url, marks)
    app.enqueue(mark.job(STARTED))
    ended = app.run().done
    app.close()
    return {"ended": ended}


def produce(url: str, marks: str, count: int, seed: int) -> Answer:
    """Probe: one job at a time at random moments; when was each asked for, and when was it safe?"""
    app, mark = marking_app(url, marks)
    gaps = random.Random(seed)
    began: dict[int, float] = {}
    safe: dict[int, float] = {}
    for n in range(WARM_UP + count):
        time.sleep(gaps.uniform(*GAP_SECONDS))
        began[n] = time.monotonic()
        app.enqueue(mark.job(n))
        safe[n] = time.monotonic()
    app.close()
    seen = _wait_for_marks(Path(marks), WARM_UP + count - 1)
    counted = range(WARM_UP, WARM_UP + count)
    return {
        "from_call_ms": [(seen[n] - began[n]) * 1e3 for n in counted],
        "from_safe_ms": [(seen[n] - safe[n]) * 1e3 for n in counted],
    }


def _wait_for_marks(path: Path, last: int, worker: Running | None = None) -> dict[int, float]:
    """When did each job begin? Waits for the last one, as long as the worker lives."""
    until = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < until:
        lines = path.read_text().splitlines() if path.exists() else []
        seen = {int(n): float(at) for n, at in (line.split() for line in lines)}
        if last in seen:
            return seen
        if worker is not None:
            worker.check_alive()
        time.sleep(0.02)
    raise ProbeFailed(f"Job {last} did not begin within {ANSWER_SECONDS:g} s.")


def measure(setup: Setup) -> Outcome:
    """Several times: start a worker, let it be idle, then give it single jobs."""
    count, idle_seconds = setup.size(60, smoke=10), setup.size(5, smoke=1)
    answers = [
        idle_round(setup.folder, file_url(f"{no}.db"), SEED + no, count, idle_seconds)
        for no in range(setup.rounds)
    ]
    return to_outcome(answers, count, idle_seconds)


def to_outcome(answers: Sequence[Answer], count: int, idle_seconds: float) -> Outcome:
    """The checks and the table of all rounds."""
    table = Table(
        f"Idle worker: {count} single jobs of another process, {idle_seconds} s idle per run",
        SPREAD_COLUMNS,
        (
            spread(
                "p50 from the call of enqueue to the job's first line", "ms", pick(answers, "p50")
            ),
            spread("p99 of the same", "ms", pick(answers, "p99")),
            spread(
                "p50 from enqueue's return (negative: begun before)",
                "ms",
                pick(answers, "safe_p50"),
            ),
            spread("CPU of the idle worker", "% of a core", pick(answers, "idle_percent")),
        ),
    )
    return Outcome(
        (
            Check(
                "latency: idle, between processes, p50 in ms",
                statistics.median(pick(answers, "p50")),
                Sense.BELOW,
                5.0,
            ),
            Check(
                "latency: CPU of an idle worker, % of a core",
                statistics.median(pick(answers, "idle_percent")),
                Sense.BELOW,
                2.0,
            ),
        ),
        (table,),
    )


def idle_round(folder: Path, url: str, seed: int, count: int, idle_seconds: float) -> Answer:
    """One worker on this store: its idleness, then its answers to single jobs."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as memory:
        files = {"url": url, "marks": str(Path(memory, "marks"))}
        with running(work, folder, **files) as worker:
            _wait_for_marks(Path(files["marks"]), STARTED, worker)
            time.sleep(QUIET_SECONDS)
            idle_percent = _idle_percent(worker.pid, idle_seconds)
            times = fresh(produce, folder, **files, count=count, seed=seed)
            worker.stop()
    return {
        "p50": quantile(times["from_call_ms"], 0.5),
        "p99": quantile(times["from_call_ms"], 0.99),
        "safe_p50": quantile(times["from_safe_ms"], 0.5),
        "idle_percent": idle_percent,
    }


def _idle_percent(pid: int, seconds: float) -> float:
    before, start = cpu_of(pid), time.monotonic()
    time.sleep(seconds)
    return (cpu_of(pid) - before) / (time.monotonic() - start) * 100
