# SPDX-License-Identifier: Apache-2.0
"""Does a build of a real workflow keep its slots busy?

A thousand datasets, one for each task, whose bodies sleep as long as the tasks took, scaled. In
virtual time every graph is built in both modes beside a greedy list schedule of the same slots; on
a real clock one of them is, with a store that survives power loss.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.measuring import Answer, fresh, stopwatch
from benchmarks.runner import Check, Outcome, Sense, Setup, Table
from penstock.testing import harness
from tests.list_schedule import WORKFLOWS, greedy_makespan, level_makespan, workflow
from tests.workflow_app import AT, END, last_tasks, workflow_app

EAGER_MAX = 1.02  # × level by level: its bound
GREEDY_MAX = 1.10  # × the greedy schedule, as well
VIRTUAL_SECONDS = 500.0  # of all tasks together
REAL_SLOTS = 32
REAL = "montage"


def simulated(name: str, slots: int, eager: bool) -> Answer:
    """Probe: a build in memory and virtual time."""
    tasks = workflow(name, VIRTUAL_SECONDS)
    with harness(
        workflow_app(tasks, lambda _: None), settings={"runtime": {"async_slots": slots}}
    ) as test:
        report = test.build(*last_tasks(tasks), start=AT, end=END, eager=eager)
        seconds = test.clock.monotonic()
    if not report.ok or report.slices != len(tasks):
        raise AssertionError(f"Not everything was built: {report}.")
    return {"seconds": seconds}


def real(name: str, slots: int, eager: bool, total_seconds: float) -> Answer:
    """Probe: `app.build` on SQLite and a real clock."""
    tasks = workflow(name, total_seconds)
    Path("penstock.toml").write_text(f"[runtime]\nasync_slots = {slots}\n")
    app = workflow_app(tasks, lambda _: None, store="sqlite:///bench.db")
    with stopwatch() as spent:
        report = app.build(*last_tasks(tasks), start=AT, end=END, eager=eager)
    app.close()
    if not report.ok or report.slices != len(tasks):
        raise AssertionError(f"Not everything was built: {report}.")
    return {"seconds": spent.wall, "cpu_ms": spent.cpu / len(tasks) * 1e3}


def measure(setup: Setup) -> Outcome:
    """Every graph in virtual time, one on a real clock."""
    checks, rows = [], []
    for name in WORKFLOWS[: setup.size(len(WORKFLOWS), smoke=1)]:
        tasks = workflow(name, VIRTUAL_SECONDS)
        for slots in (8, 32):
            by_level, eager = (
                fresh(simulated, setup.folder, name=name, slots=slots, eager=mode)["seconds"]
                for mode in (False, True)
            )
            greedy = greedy_makespan(tasks, slots)
            what = f"workflows: {name}, {slots} slots, eager ÷"
            checks += [
                Check(f"{what} by level", eager / by_level, Sense.AT_MOST, EAGER_MAX, timing=False),
                Check(f"{what} greedy", eager / greedy, Sense.AT_MOST, GREEDY_MAX, timing=False),
            ]
            rows.append((name, slots, by_level, level_makespan(tasks, slots), eager, greedy))
    columns = ("workflow", "slots", "by level", "its schedule", "eager", "greedy schedule")
    real_checks, real_table = _measure_real(setup)
    return Outcome(
        (*checks, *real_checks),
        (Table("Workflows as datasets, virtual seconds", columns, tuple(rows)), real_table),
    )


def _measure_real(setup: Setup) -> tuple[tuple[Check, ...], Table]:
    total = float(setup.size(1_920, smoke=200))
    tasks = workflow(REAL, total)
    greedy = greedy_makespan(tasks, REAL_SLOTS)
    answers = {}
    for eager in (False, True):
        folder = setup.folder / f"eager-{eager}"
        folder.mkdir()
        options: dict[str, Any] = {
            "name": REAL,
            "slots": REAL_SLOTS,
            "eager": eager,
            "total_seconds": total,
        }
        answers[eager] = fresh(real, folder, **options)
    took = {eager: answer["seconds"] for eager, answer in answers.items()}
    checks = (
        Check(f"workflows: {REAL} on a clock, eager ÷ by level", took[True] / took[False],
              Sense.AT_MOST, EAGER_MAX),
        Check(f"workflows: {REAL} on a clock, eager ÷ greedy", took[True] / greedy,
              Sense.AT_MOST, GREEDY_MAX),
    )  # fmt: skip
    rows = tuple(
        ("eager" if eager else "by level", REAL_SLOTS, took[eager], greedy, answer["cpu_ms"])
        for eager, answer in answers.items()
    )
    columns = ("mode", "slots", "seconds", "greedy schedule", "CPU ms a job")
    return checks, Table(f"{REAL.capitalize()} on a real clock and SQLite", columns, rows)
