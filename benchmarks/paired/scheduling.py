# SPDX-License-Identifier: Apache-2.0
"""Jobs of many groups and lanes through one worker, and one cycle of its fair queue.

The fair queue is not public. Its cycle is measured by the section `scheduling` of either checkout,
through its command line.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path

from benchmarks.measuring import ERROR_CHARACTERS, PROBE_SECONDS, Answer, ProbeFailed, stopwatch
from benchmarks.paired.figures import Better, Figure, rate_and_cpu, to_answer
from penstock import Context, JobRequest, Penstock, SchedulingMetadata

GROUPS = 256
HOSTS = 64
WEIGHTS = (1, 2, 3)  # of a task each
LANE_JOBS = 4  # of each of very many lanes
SETTINGS = "[limits.host]\n'*' = 2\n"
CYCLE = ("-m", "benchmarks", "scheduling", "--only", "cycle", "--smoke", "--json")


def drain(store: str, jobs: int) -> Answer:
    """Probe: weighted groups with keyed limits, then very many lanes with few jobs each."""
    Path("penstock.toml").write_text(SETTINGS)
    app = Penstock("bench", store=store)

    def visiting(weight: int) -> Callable[..., JobRequest[None]]:
        metadata = SchedulingMetadata.local(f"weight-{weight}", weight=weight)

        @app.task(name=f"visit-{weight}", limits={"host": lambda host: host}, metadata=metadata)
        async def visit(ctx: Context, host: str, n: int) -> None: ...

        return visit.job

    @app.task()
    async def noop(ctx: Context, n: int) -> None: ...

    app.enqueue(noop.job(jobs))
    app.run(drain=True)  # imports what a run needs before the clock runs
    visits = [visiting(weight) for weight in WEIGHTS]
    app.enqueue_many(
        visits[n % len(visits)](f"h{n % HOSTS}", n).with_options(group=f"g{n % GROUPS}")
        for n in range(jobs)
    )
    with stopwatch() as groups:
        report = app.run(drain=True)
    lanes = jobs // LANE_JOBS
    app.enqueue_many(noop.job(n).with_options(group=f"lane-{n % lanes}") for n in range(jobs))
    with stopwatch() as many_lanes:
        again = app.run(drain=True)
    app.close()
    if (report.done, again.done) != (jobs, jobs):
        raise RuntimeError(f"{jobs} jobs should be done twice: {report}, {again}")
    return to_answer(
        rate_and_cpu(f"drain, {GROUPS} weighted groups with limits", "job", jobs, groups),
        rate_and_cpu(f"drain, lanes of {LANE_JOBS} jobs", "job", jobs, many_lanes),
    )


def cycle(root: Path, python: Path, folder: Path) -> list[Figure]:
    """Select, acquire, commit, release: the mean of all cases that a checkout measures itself."""
    result = folder / "cycle.json"
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python, *CYCLE, result],
        cwd=root,
        env=kept,
        capture_output=True,
        text=True,
        timeout=PROBE_SECONDS,
        check=False,
    )
    if not result.exists():  # a missed bound of its own is no failure here
        raise ProbeFailed(f"{' '.join(CYCLE)} failed:\n{done.stderr[-ERROR_CHARACTERS:]}")
    return cycle_figures(json.loads(result.read_text()))


def cycle_figures(document: Answer) -> list[Figure]:
    """The figures of the document that `--json` has written."""
    names = {"p50, µs": "µs", "CPU, µs": "CPU µs"}
    for table in document["tables"]:
        columns = table["columns"]
        if names.keys() <= set(columns):
            return [
                Figure(
                    "one cycle of the fair queue",
                    unit,
                    Better.LOWER,
                    statistics.fmean(row[columns.index(name)] for row in table["rows"]),
                )
                for name, unit in names.items()
            ]
    raise ProbeFailed(f"{' '.join(CYCLE)} has no table of cycles: {document['errors']}")
