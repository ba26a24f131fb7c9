# SPDX-License-Identifier: Apache-2.0
"""What does a whole build cost beside a loop that writes the same files with the same syncs?

A build plans, enqueues, leases, runs, writes, stages and commits every slice, on a store that
survives power loss; the loop only writes.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from benchmarks.measuring import Answer, fresh, interleaved, paired_ratio, pick, stopwatch
from benchmarks.planning.writing import BATCH, DAY, bare, rows_of
from benchmarks.runner import Check, Outcome, Sense, Setup, Table
from penstock import Context, Penstock
from penstock.calendars import Every

SPEED_MIN = 0.5  # × the loop
ROUNDS_MAX = 3  # each takes minutes
FIRST = datetime(1970, 1, 2, tzinfo=UTC)


def built(slices: int, batch: int, eager: bool) -> Answer:
    """Probe: `app.build`, level by level or eager."""
    app = Penstock("bench", store="sqlite:///bench.db")
    every = Every(timedelta(days=1))

    @app.dataset(calendar=every, batch=batch)
    def prices(ctx: Context, at: Any) -> Any:
        if batch == 1:
            return rows_of(int(at.timestamp() * 1e6) // DAY)
        return {one: rows_of(int(one.timestamp() * 1e6) // DAY) for one in at}

    end = FIRST + timedelta(days=slices)
    with stopwatch() as spent:
        report = app.build(prices, start=FIRST, end=end, eager=eager)
    if not report.ok or report.slices != slices:
        raise AssertionError(f"Of {slices} slices were built: {report}.")
    with stopwatch() as again:
        report = app.build(prices, start=FIRST, end=end)
    if report.plan_id is not None:
        raise AssertionError("The second build found something to do.")
    app.close()
    return {
        "per_second": slices / spent.wall,
        "cpu_us": spent.cpu / slices * 1e6,
        "again_seconds": again.wall,
    }


def measure(setup: Setup) -> Outcome:
    """Ten thousand slices level by level; fewer with every job for itself, and many a job."""
    return Outcome.joined(
        [
            _beside_the_loop(
                setup,
                setup.size(10_000, smoke=200),
                {"level by level": {"batch": 1, "eager": False}},
            ),
            _beside_the_loop(
                setup,
                setup.size(2_000, smoke=200),
                {
                    "eager": {"batch": 1, "eager": True},
                    f"{BATCH} a job": {"batch": BATCH, "eager": False},
                },
            ),
        ]
    )


def _beside_the_loop(setup: Setup, slices: int, ways: dict[str, dict[str, Any]]) -> Outcome:
    runs: dict[str, Callable[[], Answer]] = {
        name: partial(_fresh, setup, built, slices=slices, **way) for name, way in ways.items()
    }
    runs["the loop"] = partial(_fresh, setup, bare, slices=slices, threads=1, batch=1)
    found = interleaved(min(setup.rounds, ROUNDS_MAX), runs)
    speed = {name: pick(answers, "per_second") for name, answers in found.items()}
    checks = tuple(
        Check(
            f"build: {name}, speed ÷ the loop's",
            paired_ratio(speed[name], speed["the loop"]),
            Sense.AT_LEAST,
            SPEED_MIN,
        )
        for name in ways
    )
    rows = tuple(
        (
            name,
            slices,
            statistics.median(speed[name]),
            statistics.median(pick(answers, "cpu_us")),
        )
        for name, answers in found.items()
    )
    columns = ("what", "slices", "a second", "CPU µs a slice")
    return Outcome(checks, (Table(f"{slices:,} slices beside a bare loop", columns, rows),))


def _fresh(setup: Setup, probe: Callable[..., Answer], **arguments: Any) -> Answer:
    """Measure in a folder of its own, which is removed."""
    folder = setup.folder / "build"
    folder.mkdir()
    try:
        return fresh(probe, folder, **arguments)
    finally:
        shutil.rmtree(folder)
