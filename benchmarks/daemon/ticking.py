# SPDX-License-Identifier: Apache-2.0
"""Are ticks on time, and does one cost the same among a hundred units and among ten thousand?

First ticks are spread over at most thirty seconds, and an interval keeps them where they are: ten
thousand units a minute are a third of a thousand ticks a second, and then half a minute of nothing.
A hundred units at the same rate are what their cost is compared with.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.daemon.running import daemon
from benchmarks.measuring import quantile
from benchmarks.runner import Cell, Check, Kind, Outcome, Sense, Setup, Table

LATE_MS = 250.0  # p99, the bound
FLAT = 1.5  # how much more a tick may cost among a hundred times as many units
SPREAD_SECONDS = 30.0  # first ticks are spread over at most so long


@dataclass(frozen=True, slots=True)
class Ticked:
    """What a stretch of ticks was like."""

    count: int
    seconds: float
    late_ms: list[float]
    cpu_ms: float  # of one tick, supervisor and worker

    def row(self, what: str) -> tuple[Cell, ...]:
        late = self.late_ms
        per_second = self.count / self.seconds
        median, high = quantile(late, 0.5), quantile(late, 0.99)
        return (what, self.count, per_second, median, high, max(late), self.cpu_ms)


def measure(setup: Setup) -> Outcome:
    """Many units in a calm rhythm, few at the same rate, and many in a hasty one."""
    units = setup.size(10_000, 400)
    interval, hurried = setup.size(60, 4), setup.size(10, 2)
    burst = min(interval, SPREAD_SECONDS, units / 100)
    many = _tick(setup.folder / "many", units, str(interval), burst)
    few = _tick(setup.folder / "few", 100, str(100 * burst / units), burst)
    hasty = _tick(setup.folder / "hasty", units, str(hurried), min(hurried, units / 100), rounds=2)
    ratio = many.cpu_ms / few.cpu_ms
    columns = ("what", "ticks", "a second", "p50 ms late", "p99", "max", "CPU ms a tick")
    rows = (
        many.row(f"{units:,} units, every {interval} s"),
        few.row(f"100 units, every {100 * burst / units:g} s"),
        hasty.row(f"{units:,} units, every {hurried} s"),
    )
    late, hurry = quantile(many.late_ms, 0.99), quantile(hasty.late_ms, 0.99)
    return Outcome(
        (
            Check("ticks: p99 ms late", late, Sense.BELOW, LATE_MS),
            Check("ticks: p99 ms late, in haste", hurry, Sense.BELOW, LATE_MS, Kind.GOAL),
            Check("ticks: cost, many ÷ few units", ratio, Sense.AT_MOST, FLAT),
        ),
        (Table("Ticks that keep a cursor, one worker", columns, rows),),
    )


def _tick(folder: Path, units: int, timing: str, seconds: float, rounds: int = 1) -> Ticked:
    """Let units tick from the first on, for as long as they are spread, or several rounds of it."""
    with daemon(folder, units, timing) as running:
        before, began = running.cpu_seconds(), time.monotonic()
        done = len(running.ticks())
        time.sleep(seconds * rounds)
        cpu, took = running.cpu_seconds() - before, time.monotonic() - began
        counted = running.ticks()[done:]
    return Ticked(
        len(counted), took, [late * 1e3 for _, late in counted], cpu * 1e3 / max(len(counted), 1)
    )
