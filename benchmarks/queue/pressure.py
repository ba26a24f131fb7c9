# SPDX-License-Identifier: Apache-2.0
"""Does a worker stay small while jobs come twice as fast as it can finish them?

Back-pressure: what it cannot start stays in the store. Seen from outside: the store says how many
jobs it holds, the kernel how much memory.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measuring import Answer, ProbeFailed, Running, memory_of, ready_and_wait, running
from benchmarks.report import SPREAD_COLUMNS, spread
from benchmarks.runner import Check, Outcome, Sense, Setup, Table
from penstock import Context, Penstock
from penstock.definitions.task import Task
from penstock.model.job import JobState
from penstock.stores.protocol import Store

FILE = "pressure.db"
SLOTS = 256
SLEEP_SECONDS = 0.025  # of a job
CAPACITY = SLOTS / SLEEP_SECONDS  # jobs per second that the slots allow
OVERLOAD = 2.0  # × CAPACITY is produced
TICK_SECONDS = 0.05  # between two batches of the producer
SAMPLE_SECONDS = 0.02
START_SECONDS = 60.0  # a worker that has done nothing by then has failed
WINDOW_MAX = 1_024  # jobs that wait for a slot, and as many ends that wait to be durable
GROWTH_MIB = 8.0  # the backlog of a full run would be several times this
BACKLOG_FULL, BACKLOG_SMOKE = 20_000, 1_000
BUSY_PART = 0.25  # of the run: begin and end of it, which are compared


@dataclass(frozen=True, slots=True)
class Sample:
    """The worker at one moment."""

    queued: int
    in_progress: int
    memory_mib: float


def sleeping_app(path: Path | str = FILE) -> tuple[Penstock, Task[[int], None]]:
    """An application whose task only occupies a slot."""
    app = Penstock("bench", store=f"sqlite:///{path}")

    @app.task()
    async def occupy(ctx: Context, number: int) -> None:
        await asyncio.sleep(SLEEP_SECONDS)

    return app, occupy


def work() -> Answer:
    """Probe: a worker that runs until it is asked to end."""
    app, _ = sleeping_app()
    ended = app.run(slots=SLOTS).done
    app.close()
    return {"ended": ended}


def produce(seconds: float) -> Answer:
    """Probe: enqueue at a steady pace, whatever the worker does."""
    app, occupy = sleeping_app()
    app.enqueue(occupy.job(-1))
    ready_and_wait()
    start = time.monotonic()
    sent = 0
    while (elapsed := time.monotonic() - start) < seconds:
        due = round(elapsed * CAPACITY * OVERLOAD)
        app.enqueue_many(occupy.job(number) for number in range(sent, due))
        sent = due
        time.sleep(TICK_SECONDS)
    spent = time.monotonic() - start
    app.close()
    return {"sent": sent, "rate": sent / spent}


def measure(setup: Setup) -> Outcome:
    """Watch a worker while a producer outruns it."""
    seconds = setup.size(10, smoke=3)
    with running(produce, setup.folder, seconds=seconds) as producer:
        producer.wait_until_ready()
        with running(work, setup.folder) as worker:
            app, _ = sleeping_app(setup.folder / FILE)
            _wait_until_it_works(worker, app.store)
            producer.go()
            samples = _watch(worker, app.store, seconds)
            app.close()
            sent = producer.finish()
            ended = worker.stop()["ended"]
    return to_outcome(samples, sent, ended / seconds, setup.size(BACKLOG_FULL, BACKLOG_SMOKE))


def _wait_until_it_works(worker: Running, store: Store) -> None:
    until = time.monotonic() + START_SECONDS
    while not store.stats().result().states[JobState.DONE]:
        worker.check_alive()
        if time.monotonic() > until:
            raise ProbeFailed(f"The worker did no job within {START_SECONDS:g} s.")
        time.sleep(SAMPLE_SECONDS)


def _watch(worker: Running, store: Store, seconds: float) -> list[Sample]:
    samples = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        worker.check_alive()
        states = store.stats().result().states
        samples.append(
            Sample(
                queued=states[JobState.QUEUED],
                in_progress=states[JobState.IN_PROGRESS],
                memory_mib=memory_of(worker.pid)["now"],
            )
        )
        time.sleep(SAMPLE_SECONDS)
    return samples


def growth(samples: list[Sample]) -> float:
    """How much memory did the worker gain from its second quarter to its last one, in MiB?

    The first quarter is its start: caches fill.
    """
    part = max(round(len(samples) * BUSY_PART), 1)
    early, late = samples[part : 2 * part], samples[-part:]
    return statistics.median(sample.memory_mib for sample in late) - statistics.median(
        sample.memory_mib for sample in early
    )


def to_outcome(samples: list[Sample], sent: Answer, ended: float, backlog: int) -> Outcome:
    """What the samples show; `ended` is per second."""
    grown = samples[-1].queued - samples[0].queued
    held = [float(sample.in_progress) for sample in samples]
    memory = [sample.memory_mib for sample in samples]
    table = Table(
        f"{SLOTS} slots, jobs of {SLEEP_SECONDS * 1e3:g} ms, and a producer that outruns them",
        SPREAD_COLUMNS,
        (
            spread("produced", "jobs/s", [sent["rate"]]),
            spread("finished", "jobs/s", [ended]),
            spread("backlog gained", "jobs", [grown]),
            spread("held by the worker (in_progress), samples", "jobs", held),
            spread("of these not running, at least", "jobs", [max(n - SLOTS, 0.0) for n in held]),
            spread("resident memory of the worker, samples", "MiB", memory),
        ),
    )
    return Outcome(
        (
            Check(
                "pressure: jobs that the worker held, at most",
                max(held),
                Sense.AT_MOST,
                SLOTS + 2 * WINDOW_MAX,
                timing=False,
            ),
            Check(
                "pressure: memory gained while the backlog grew, MiB",
                growth(samples),
                Sense.AT_MOST,
                GROWTH_MIB,
                timing=False,
            ),
            Check("pressure: backlog gained, jobs", grown, Sense.AT_LEAST, backlog, timing=False),
        ),
        (table,),
    )
