# SPDX-License-Identifier: Apache-2.0
"""Which task keeps a processor busy? The application that a supervisor runs in `processes`."""

from __future__ import annotations

import functools
import time

from benchmarks.peers.marks import Marks
from penstock import Context, Penstock

TARGET = "benchmarks.queue.spinning:app"
CALIBRATION_LOOPS = 200_000
CALIBRATIONS = 5

app = Penstock("bench", store="sqlite:///spin.db")


@app.task()
def spin(ctx: Context, number: int, loops: int, marks: str) -> None:
    """Hold the interpreter's lock for a while, in a thread."""
    _marks(marks).mark(number)
    keep_busy(loops)


@functools.cache
def _marks(path: str) -> Marks:
    return Marks(path)


def keep_busy(loops: int) -> None:
    for _ in range(loops):
        pass


def loops_for(cpu_seconds: float) -> int:
    """How many loops take this much CPU time? The best of several tries: others may run too."""
    best = min(_cpu_seconds(CALIBRATION_LOOPS) for _ in range(CALIBRATIONS))
    return max(round(CALIBRATION_LOOPS * cpu_seconds / best), 1)


def _cpu_seconds(loops: int) -> float:
    start = time.thread_time()
    keep_busy(loops)
    return time.thread_time() - start
