# SPDX-License-Identifier: Apache-2.0
"""`make soak-size`: the shapes at full size, with counts, rates and the growth of cost."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.size import shapes
from tests.size.yard import Phase, Yard

GROWTH_MAX = 2.0  # CPU of a job at full size over that at a tenth
HOLD_MS_MAX = 25.0  # CPU of 99 of 100 transactions, where bulk work is cut into slices
SLICED = ("skip", "put", "forget", "run a chain")  # phases whose transactions are short

Shape = Callable[[Yard, int], None]


def say(text: str) -> None:
    print(text, flush=True)


def run(name: str, shape: Shape, jobs: int) -> dict[str, Phase]:
    """Run one shape in a folder of its own."""
    say(f"{name}, {jobs:,}")
    with tempfile.TemporaryDirectory(prefix="penstock-size-") as folder:
        yard = Yard(Path(folder), say)
        try:
            shape(yard, jobs)
        finally:
            yard.close()
    return yard.phases


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--only", help="the name of one shape")
    arguments = parser.parse_args()
    plan: dict[str, tuple[Shape, int]] = {
        "chain": (shapes.chain, arguments.jobs),
        "broken-chain": (partial(shapes.broken_chain, run=False), arguments.jobs),
        "fan-out": (shapes.fan_out, arguments.jobs),
        "broken-fan": (shapes.broken_fan, arguments.jobs),
        "diamond": (shapes.diamond, max(arguments.jobs // 10, 10)),
        "stillborn": (shapes.stillborn, max(arguments.jobs // 10, 10)),
        "ordered": (shapes.ordered, max(arguments.jobs // 10, 10)),
        "delayed": (shapes.delayed, max(arguments.jobs // 10, 10)),
    }
    wrong: list[str] = []
    began = time.monotonic()
    for name, (shape, jobs) in plan.items():
        if arguments.only in (None, name):
            small = run(name, shape, jobs // 10)
            large = run(name, shape, jobs)
            wrong += judge(small, large)
    say(f"{time.monotonic() - began:.0f} s; " + ("; ".join(wrong) or "nothing is wrong"))
    return 1 if wrong else 0


def judge(small: dict[str, Phase], large: dict[str, Phase]) -> list[str]:
    """What grew with the size, or held the store for too long?"""
    wrong = []
    for name, phase in large.items():
        growth = phase.cpu_micros / max(small[name].cpu_micros, 1e-9)
        say(f"  {name}: CPU of a job grew {growth:.2f} times with ten times the jobs")
        if growth > GROWTH_MAX:
            wrong.append(f"{name} grows: {growth:.2f} times")
        if name.startswith(SLICED) and phase.holds_ms[1] > HOLD_MS_MAX:
            wrong.append(f"{name} holds the store for {phase.holds_ms[1]:.0f} ms")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
