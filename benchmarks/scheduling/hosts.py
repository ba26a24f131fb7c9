# SPDX-License-Identifier: Apache-2.0
"""Does a host with a full limit and a million jobs slow down another host?"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measuring import (
    ERROR_CHARACTERS,
    MEMORY,
    STOP_SECONDS,
    Answer,
    ProbeFailed,
    fresh,
    interleaved,
    paired_ratio,
    pick,
)
from benchmarks.peers.marks import Marks
from benchmarks.report import SPREAD_COLUMNS, spread
from benchmarks.runner import Check, Outcome, Sense, Setup, Table
from benchmarks.scheduling.backlog import FILE, TARGET, app, fill_hosts, visit

PROCESSES = (1, 4)
A_LIMIT = 2
B_LIMIT = 8  # for each process
VISIT_SECONDS = 0.1
B_VISITS = 40  # of each of the limit's places: so B takes 4 s at best
SMOKE_VISITS = 10
LOOK_SECONDS = 0.02
RUN_SECONDS = 120.0  # a run that takes longer has failed
RATIO = 0.9
ROUNDS = 3
COMMAND = (sys.executable, "-m", "penstock.cli.main", "queue", "run", TARGET)


def visit_b(processes: int, visits: int, marks: str) -> Answer:
    """Probe: enqueue the jobs of host B behind what is there, and run until all have begun."""
    total = processes * B_LIMIT * visits
    board = Marks.create(marks, total)
    app.store.set_cap("host:a", A_LIMIT).result()
    app.store.set_cap("host:b", processes * B_LIMIT).result()
    app.enqueue_many(visit.job("b", number, marks, VISIT_SECONDS) for number in range(total))
    app.close()
    with subprocess.Popen(
        [*COMMAND, "--processes", str(processes)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        until = time.monotonic() + RUN_SECONDS
        while not board.all_begun() and run.poll() is None and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)
        run.terminate()
        errors = run.communicate(timeout=STOP_SECONDS)[1]
    begun = board.times()
    if not all(begun):
        tail = errors.strip()[-ERROR_CHARACTERS:]
        raise ProbeFailed(f"{begun.count(0.0)} of {total} jobs of host B did not begin:\n{tail}")
    # The first of them begin together, as many as the limit lets.
    return {"rate": (total - processes * B_LIMIT) / (max(begun) - min(begun))}


def measure(setup: Setup) -> Outcome:
    """B behind A's backlog, and B alone, in turn."""
    ahead = setup.size(1_000_000, smoke=20_000)
    visits = setup.size(B_VISITS, smoke=SMOKE_VISITS)
    files = {}
    for name, count in (("beside A", ahead), ("alone", 0)):
        files[name] = setup.folder / name.replace(" ", "-")
        files[name].mkdir()
        fresh(fill_hosts, files[name], ahead=count, seconds=VISIT_SECONDS)

    def run(name: str, processes: int) -> Answer:
        with (
            tempfile.TemporaryDirectory(dir=setup.folder) as folder,
            tempfile.TemporaryDirectory(dir=MEMORY) as memory,
        ):
            for found in files[name].glob(f"{FILE}*"):
                shutil.copyfile(found, Path(folder, found.name))
            return fresh(
                visit_b,
                Path(folder),
                processes=processes,
                visits=visits,
                marks=str(Path(memory, "marks")),
            )

    checks, rows = [], []
    for processes in PROCESSES:
        answers = interleaved(
            1 if setup.smoke else ROUNDS,
            {name: lambda name=name, n=processes: run(name, n) for name in files},  # type: ignore[misc]
        )
        rates = {name: pick(found, "rate") for name, found in answers.items()}
        checks.append(
            Check(
                f"hosts: rate of B beside A, × that of B alone, {processes} process(es)",
                paired_ratio(rates["beside A"], rates["alone"]),
                Sense.AT_LEAST,
                RATIO,
            )
        )
        best = processes * B_LIMIT / VISIT_SECONDS
        rows += [
            spread(f"B {name}, {processes} process(es), at best {best:g}", "jobs/s", found)
            for name, found in rates.items()
        ]
    title = f"Host B behind {ahead:,} jobs of host A, whose limit is {A_LIMIT}, SQLite"
    return Outcome(tuple(checks), (Table(title, SPREAD_COLUMNS, tuple(rows)),))
