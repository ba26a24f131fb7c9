# SPDX-License-Identifier: Apache-2.0
"""How long does a daemon with many units take to be ready, and what does it cost to wait?"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from benchmarks.daemon.running import daemon
from benchmarks.runner import Check, Outcome, Sense, Setup, Table

START_SECONDS = 5.0  # the bound
IDLE_SHARE = 0.03  # of a core
YEARLY = "0 0 1 1 *"  # nothing is due while it is measured
SETTLE_SECONDS = 1.0


def measure_start(setup: Setup) -> Outcome:
    """From the command to ready: new units, and units that are there already."""
    units = setup.size(10_000, 1_000)
    first: list[float] = []
    again: list[float] = []
    for number in range(setup.size(setup.rounds, 1)):
        for found in (first, again):
            with daemon(setup.folder / f"start-{number}", units, YEARLY) as running:
                found.append(running.start_seconds)
    rows = (
        ("new units", statistics.median(first), min(first), max(first)),
        ("known units", statistics.median(again), min(again), max(again)),
    )
    return Outcome(
        (
            Check("start: seconds to ready", statistics.median(first), Sense.BELOW, START_SECONDS),
            Check(
                "start: seconds to ready, again",
                statistics.median(again),
                Sense.BELOW,
                START_SECONDS,
            ),
        ),
        (Table(f"Start with {units:,} units", ("of", "median s", "min s", "max s"), rows),),
    )


def measure_idle(setup: Setup) -> Outcome:
    """CPU of supervisor and worker together, while nothing is due."""
    units = setup.size(10_000, 1_000)
    seconds = setup.size(20, 4)
    share = _idle(setup.folder / "idle", units, seconds)
    alone = _idle(setup.folder / "alone", 1, seconds)
    rows = ((units, share * 100), (1, alone * 100))
    return Outcome(
        (Check("idle: share of a core", share, Sense.BELOW, IDLE_SHARE),),
        (Table(f"Idle for {seconds} s", ("units", "% of a core"), rows),),
    )


def _idle(folder: Path, units: int, seconds: int) -> float:
    with daemon(folder, units, YEARLY) as running:
        time.sleep(SETTLE_SECONDS)
        before, began = running.cpu_seconds(), time.monotonic()
        time.sleep(seconds)
        return (running.cpu_seconds() - before) / (time.monotonic() - began)
