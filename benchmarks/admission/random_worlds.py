# SPDX-License-Identifier: Apache-2.0
"""How does control fare against providers that nobody chose?"""

from __future__ import annotations

from benchmarks.admission.cases import worlds
from benchmarks.admission.scoring import OURS, Task, run_all
from benchmarks.measuring import quantile
from benchmarks.runner import Cell, Check, Kind, Outcome, Sense, Setup, Table

SEED = 1_001  # nothing was tuned on it
COUNT = 60
SMOKE_COUNT = 6
CONTROLLERS = (OURS, "Data Designer", "Data Designer, ramp 60 s", "botocore adaptive")
COLUMNS = (
    "controller",
    "goodput p10, %",
    "p25, %",
    "median, %",
    "least, %",
    "429s median, %",
    "p90, %",
    "most, %",
)


def measure(setup: Setup) -> Outcome:
    """Score controllers on providers with parameters drawn at random."""
    count = setup.size(COUNT, smoke=SMOKE_COUNT)
    names = CONTROLLERS[:1] if setup.smoke else CONTROLLERS
    tasks = [
        Task(name, world.name, SEED + number, (count, SEED, number))
        for name in names
        for number, world in enumerate(worlds(count, SEED))
    ]
    scores = run_all(tasks)
    rows: list[tuple[Cell, ...]] = []
    ours: list[float] = []
    for name in names:
        mine = [score for task, score in zip(tasks, scores, strict=True) if task.controller == name]
        goodput = [100 * score.goodput for score in mine]
        refused = [100 * score.refused for score in mine]
        ours = goodput if name == OURS else ours
        parts = (quantile(goodput, part) for part in (0.1, 0.25, 0.5))
        most = (quantile(refused, 0.5), quantile(refused, 0.9), max(refused))
        rows.append((name, *parts, min(goodput), *most))
    checks: tuple[Check, ...] = ()
    if not setup.smoke:
        p10, median = quantile(ours, 0.1), quantile(ours, 0.5)
        checks = (
            _check("p10", p10, 86),
            _check("p10", p10, 90, Kind.GOAL),
            _check("median", median, 95),
        )
    title = f"{count} random providers, in % of the oracle (a burst counts for 200 at most)"
    return Outcome(checks, (Table(title, COLUMNS, tuple(rows)),))


def _check(name: str, value: float, bound: float, kind: Kind = Kind.BOUND) -> Check:
    return Check(
        f"worlds: {name}, % of the oracle", value, Sense.AT_LEAST, bound, kind, timing=False
    )
