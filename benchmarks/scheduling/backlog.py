# SPDX-License-Identifier: Apache-2.0
"""How does a file come to hold a million jobs, and which tasks do they run?

The application of the scenarios with a store. Jobs are put into it without the API, since a
million of them would else take longer than what is measured.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import signal

import msgspec

from benchmarks.measuring import Answer
from benchmarks.peers.marks import Marks
from penstock import Context, JobRequest, Penstock
from penstock.definitions.request import to_new_job
from penstock.model.job import BATCH_JOBS_MAX

FILE = "backlog.db"  # in the folder of the probe
TARGET = "benchmarks.scheduling.backlog:app"
UNMARKED = -1  # the number of a job whose begin is not noted

app = Penstock("bench", store=f"sqlite:///{FILE}")


@app.task(limits={"host": lambda host: host})
async def visit(ctx: Context, host: str, number: int, marks: str, seconds: float) -> None:
    """Wait for a host, so to speak."""
    if number != UNMARKED:
        _marks(marks).mark(number)
    await asyncio.sleep(seconds)


@app.task()
async def turn(ctx: Context, last: int) -> None:
    """Count who begins; the last one of the small group ends the run."""
    begun = next(_begun)
    if last:
        _small.append(begun)
        if len(_small) == last:
            os.kill(os.getpid(), signal.SIGTERM)


_begun = itertools.count(1)
_small: list[int] = []  # when the jobs of the small group began, counted in jobs


@functools.cache
def _marks(path: str) -> Marks:
    return Marks(path)


def fill(request: JobRequest[None], count: int, name: str) -> None:
    """Put many equal jobs into the store."""
    template = to_new_job(request.with_options(key=name))
    for first in range(0, count, BATCH_JOBS_MAX):
        numbers = range(first, min(count, first + BATCH_JOBS_MAX))
        jobs = [msgspec.structs.replace(template, key=f"{name}-{number}") for number in numbers]
        created = app.store.enqueue(jobs).result().created
        if len(created) != len(jobs):
            raise RuntimeError(f"{len(created)} of {len(jobs)} jobs were created")


def fill_groups(big: int, small: int) -> Answer:
    """Probe: a big group, and a small one that came after it."""
    fill(turn.job(0).with_options(group="big"), big, "big")
    fill(turn.job(small).with_options(group="small"), small, "small")
    app.close()
    return {}


def run_until_small_began() -> Answer:
    """Probe: work until the last job of the small group has begun."""
    app.run(drain=True)
    app.close()
    return {"begun": _small[-1]}


def fill_hosts(ahead: int, seconds: float) -> Answer:
    """Probe: jobs of host A, if any."""
    fill(visit.job("a", UNMARKED, "", seconds), ahead, "a")
    app.close()
    return {}
