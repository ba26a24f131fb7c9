# SPDX-License-Identifier: Apache-2.0
"""What does a cell of a table cost that does nothing, and what do a million rows of them hold?"""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Iterator

import uvloop

from benchmarks.measuring import Answer, running, stopwatch
from benchmarks.runner import Check, Outcome, Sense, Setup, Table
from penstock.admission.tasks.controller import TaskAdmissionConfig, TaskAdmissionController
from penstock.clock import SystemClock
from penstock.events.kinds import Correlation
from penstock.events.sink import SchedulerEvents, default_sinks
from penstock.model.task import SchedulableTask, SchedulerResourceRequest, TaskGroupSpec
from penstock.planning.completion import CompletionTracker
from penstock.worker.graph_run import EarlyStop, Failed, GraphRun
from penstock.worker.scheduler import AsyncTaskScheduler

COLUMNS = ("a", "b", "c", "d")  # each needs the one before
BUFFER = 64  # rows of a row group
IN_FLIGHT = 4  # row groups
SLOTS = 32
MICROSECONDS = 60.0  # of the processor, for a cell
MEMORY_MIB = 500.0
GROWTH_MIB = 16.0  # from a tenth of the rows to all of them
PATIENCE_SECONDS = 1_800.0  # of a busy machine
MIB = 1024.0  # of the unit of ru_maxrss

Cell = tuple[int, int, str]  # row group, row, column


def run(rows: int) -> Answer:
    """Probe: run row groups as graphs of one scheduler, some at a time."""
    with stopwatch() as spent:
        done, early = uvloop.run(_generate(rows))
    return {
        "cells": done,
        "wall": spent.wall / done * 1e6,
        "cpu": spent.cpu / done * 1e6,
        "peak": _peak_mib(),
        "growth": _peak_mib() - early,
    }


async def _generate(rows: int) -> tuple[int, float]:
    """Return how many cells have ended, and the peak of memory after a tenth of the rows."""
    table, request = TaskGroupSpec("table:t"), SchedulerResourceRequest({"async": 1})
    clock, wake, stop = SystemClock(), asyncio.Event(), EarlyStop()
    scheduler = AsyncTaskScheduler(
        TaskAdmissionController(
            TaskAdmissionConfig(resource_limits={"async": SLOTS}), monotonic=clock.monotonic
        ),
        SchedulerEvents(clock, default_sinks()),
        Correlation("bench"),
        clock.monotonic,
        wake.set,
    )
    todo = iter(range(rows // BUFFER))
    ended, early = 0, 0.0

    def make(cell: Cell) -> SchedulableTask:
        return SchedulableTask(cell, None, table, request, part=cell[2])

    async def row_groups() -> None:
        nonlocal ended, early
        for group in todo:
            tracker = CompletionTracker(dict(_cells(group)), make)
            run = GraphRun(
                tracker, _nothing, lambda *_: Failed(), scheduler, "bench", early_stop=stop
            )
            snapshot = await run.run()
            ended += snapshot.complete
            if 10 * group <= rows // BUFFER:
                early = _peak_mib()

    async def turns() -> None:
        while True:
            wake.clear()
            scheduler.turn()
            await wake.wait()

    turning = asyncio.create_task(turns())
    await asyncio.gather(*(row_groups() for _ in range(IN_FLIGHT)))
    turning.cancel()
    return ended, early


def _cells(group: int) -> Iterator[tuple[Cell, list[Cell]]]:
    for row in range(group * BUFFER, (group + 1) * BUFFER):
        before: list[Cell] = []
        for column in COLUMNS:
            cell = (group, row, column)
            yield cell, before
            before = [cell]


async def _nothing(task: SchedulableTask) -> None:
    """The work of a cell."""


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MIB


def measure(setup: Setup) -> Outcome:
    """A table of four columns that do nothing."""
    rows = setup.size(1_000_000, smoke=6_400)
    started = time.monotonic()
    with running(run, setup.folder, rows=rows) as probe:
        answer = probe.finish(PATIENCE_SECONDS)
    seconds = time.monotonic() - started
    return Outcome(
        (
            Check("graph: a cell, µs of the processor", answer["cpu"], Sense.AT_MOST, MICROSECONDS),
            Check(
                f"graph: {rows:,} rows of {len(COLUMNS)} columns, peak of memory in MiB",
                answer["peak"],
                Sense.BELOW,
                MEMORY_MIB,
                timing=False,
            ),
            Check(
                "graph: growth of that peak after a tenth of the rows, in MiB",
                answer["growth"],
                Sense.AT_MOST,
                GROWTH_MIB,
                timing=False,
            ),
        ),
        (
            Table(
                f"{rows:,} rows of {len(COLUMNS)} columns that do nothing, {BUFFER} rows a graph, "
                f"{IN_FLIGHT} graphs at once on {SLOTS} slots",
                ("cells", "CPU of a cell, µs", "wall of a cell, µs", "peak, MiB", "run, s"),
                ((answer["cells"], answer["cpu"], answer["wall"], answer["peak"], seconds),),
            ),
        ),
    )
