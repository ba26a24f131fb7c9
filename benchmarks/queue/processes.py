# SPDX-License-Identifier: Apache-2.0
"""Do two worker processes do more than one, where the interpreter's lock is what binds?"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.measuring import (
    ERROR_CHARACTERS,
    MEMORY,
    Answer,
    ProbeFailed,
    fresh,
    interleaved,
    paired_ratio,
    pick,
    ready_and_wait,
    running,
    stopwatch,
)
from benchmarks.peers.marks import Marks
from benchmarks.queue import spinning
from benchmarks.report import SPREAD_COLUMNS, spread
from benchmarks.runner import Check, Outcome, Sense, Setup, Table
from penstock.model.job import JobState

TASK_SECONDS = 0.001  # of CPU time
RUN_SECONDS = 240.0  # a run that takes longer has failed
ONE, TWO = "1 process", "2 processes"
BARE_ONE, BARE_TWO = "1 bare loop", "2 bare loops"  # what the machine had to give meanwhile
COMMAND = ("-m", "penstock.cli.main", "queue", "run", spinning.TARGET, "--drain")


def supervise(processes: int, total: int, loops: int, marks: str) -> Answer:
    """Probe: enqueue jobs that spin, then let a real supervisor drain them."""
    board = Marks.create(marks, total)
    spinning.app.enqueue_many(spinning.spin.job(number, loops, marks) for number in range(total))
    finished = subprocess.run(
        [sys.executable, *COMMAND, "--processes", str(processes)],
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    states = spinning.app.store.stats().result().states
    spinning.app.close()
    if finished.returncode or states[JobState.DONE] != total:
        tail = finished.stderr.strip()[-ERROR_CHARACTERS:]
        raise ProbeFailed(f"The supervisor ended with {finished.returncode}, {states}:\n{tail}")
    begun = board.times()
    return {"rate": (total - 1) / (max(begun) - min(begun))}


def spin_alone(total: int, loops: int) -> Answer:
    """Probe: the same work in a bare loop, begun at the same moment as the others'."""
    ready_and_wait()
    with stopwatch() as spent:
        for _ in range(total):
            spinning.keep_busy(loops)
    return {"seconds": spent.wall}


def spin_bare(folder: Path, processes: int, total: int, loops: int) -> Answer:
    """What the machine has to give: bare loops in so many processes at once."""
    with contextlib.ExitStack() as stack:
        bare = [
            stack.enter_context(running(spin_alone, folder, total=total, loops=loops))
            for _ in range(processes)
        ]
        for process in bare:
            process.wait_until_ready()
        for process in bare:
            process.go()
        slowest = max(process.finish()["seconds"] for process in bare)
    return {"rate": processes * total / slowest}


def measure(setup: Setup) -> Outcome:
    """Drain the same jobs with one process and with two, in turn."""
    total = setup.size(4_000, smoke=300)
    loops = spinning.loops_for(TASK_SECONDS)

    def run(processes: int) -> Answer:
        folder = Path(tempfile.mkdtemp(dir=setup.folder))
        with tempfile.TemporaryDirectory(dir=MEMORY) as memory:
            marks = str(Path(memory, "marks"))
            return fresh(
                supervise, folder, processes=processes, total=total, loops=loops, marks=marks
            )

    def run_bare(processes: int) -> Answer:
        return spin_bare(setup.folder, processes, setup.size(1_000, smoke=200), loops)

    answers = interleaved(
        setup.rounds,
        {
            ONE: lambda: run(1),
            TWO: lambda: run(2),
            BARE_ONE: lambda: run_bare(1),
            BARE_TWO: lambda: run_bare(2),
        },
    )
    rates = {name: pick(rounds, "rate") for name, rounds in answers.items()}
    table = Table(
        f"{total:,} tasks in threads, each {TASK_SECONDS * 1e3:g} ms of CPU in pure Python, by "
        f"`penstock queue run` on {len(os.sched_getaffinity(0))} cores",
        SPREAD_COLUMNS,
        tuple(spread(f"{name}: rate", "jobs/s", values) for name, values in rates.items()),
    )
    ratio = paired_ratio(rates[TWO], rates[ONE])
    return Outcome((Check("processes: rate of two, × one", ratio, Sense.AT_LEAST, 1.3),), (table,))
