# SPDX-License-Identifier: Apache-2.0
"""Does a million queued jobs cost memory, or make `stats` slow?"""

from __future__ import annotations

import statistics
import time

from benchmarks.measuring import Answer, fresh, memory_of, pick, quantile, ready_and_wait, running
from benchmarks.queue.workload import enqueue, file_url, noop_app
from benchmarks.report import SPREAD_COLUMNS, spread
from benchmarks.runner import Check, Outcome, Sense, Setup, Table
from penstock.model.job import JobState

FILE = "backlog.db"
STATS_CALLS = 50
SAMPLE_SECONDS = 0.1


def ask_stats(path: str, count: int) -> Answer:
    """Probe: time `stats()`, and see that it counts right."""
    app, _ = noop_app(file_url(path))
    times = []
    for _no in range(STATS_CALLS):
        start = time.perf_counter()
        stats = app.store.stats().result()
        times.append((time.perf_counter() - start) * 1e3)
    app.close()
    queued = stats.states[JobState.QUEUED]
    if queued != count:
        raise RuntimeError(f"stats() counts {queued} queued jobs; there are {count}")
    return {"p50": statistics.median(times), "p99": quantile(times, 0.99)}


def work(path: str) -> Answer:
    """Probe: a worker that runs until it is asked to end."""
    app, _ = noop_app(file_url(path))
    ready_and_wait()  # what is told to end before it runs ends of the signal, without an answer
    ended = app.run().done
    app.close()
    return {"ended": ended}


def measure(setup: Setup) -> Outcome:
    """Ask for stats over the backlog, then watch workers that begin to drain it."""
    count, seconds = setup.size(1_000_000, smoke=30_000), setup.size(4, smoke=1)
    fresh(enqueue, setup.folder, path=FILE, count=count)
    stats = [fresh(ask_stats, setup.folder, path=FILE, count=count) for _ in range(setup.rounds)]
    memory = _watch_worker(setup, seconds)
    table = Table(
        f"{count:,} queued jobs",
        SPREAD_COLUMNS,
        (
            spread("stats(), p50", "ms", pick(stats, "p50")),
            spread("stats(), p99", "ms", pick(stats, "p99")),
            spread("resident memory of a draining worker, samples", "MiB", memory["samples"]),
            spread("its peak", "MiB", [memory["peak"]]),
            spread("jobs that it drained meanwhile", "jobs", [memory["ended"]]),
        ),
    )
    return Outcome(
        (
            Check(
                "backlog: memory of a draining worker, MiB",
                memory["peak"],
                Sense.BELOW,
                200.0,
                timing=False,
            ),
            Check(
                "backlog: stats(), p50 in ms",
                statistics.median(pick(stats, "p50")),
                Sense.BELOW,
                20.0,
            ),
        ),
        (table,),
    )


def _watch_worker(setup: Setup, seconds: float) -> Answer:
    samples = []
    with running(work, setup.folder, path=FILE) as worker:
        worker.wait_until_ready()
        worker.go()
        until = time.monotonic() + 1.0 + seconds  # the first second is for its start
        while time.monotonic() < until:
            time.sleep(SAMPLE_SECONDS)
            worker.check_alive()
            memory = memory_of(worker.pid)
            samples.append(memory["now"])
        ended = worker.stop()["ended"]
    if not ended:
        raise RuntimeError("The worker that was watched did no job")
    return {"samples": samples, "peak": memory["peak"], "ended": ended}
