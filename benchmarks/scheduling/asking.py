# SPDX-License-Identifier: Apache-2.0
"""How do the scenarios ask a scheduler for its figures?"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.measuring import Answer, fresh, pick
from benchmarks.peers import cycles
from benchmarks.peers.cases import Case
from benchmarks.runner import Setup

OURS = "penstock_tasks"

#: The figures of each case, one for each round.
Figures = Mapping[Case, Sequence[Answer]]


def ask(
    families: Sequence[Sequence[Case]],
    setup: Setup,
    driver: str = OURS,
    python: Path | str = sys.executable,
) -> Answer:
    """Measure cases in a new process; those of one family take turns."""
    return fresh(
        cycles.measure,
        setup.folder,
        python=python,
        driver=driver,
        families=[[case.to_json() for case in family] for family in families],
        batches=setup.size(300, smoke=50),
    )


def one_by_one(cases: Sequence[Case]) -> list[list[Case]]:
    """Each case is a family of its own."""
    return [[case] for case in cases]


def by_case(cases: Sequence[Case], answers: Sequence[Answer]) -> Figures:
    """The answers of several rounds, sorted by case."""
    return {
        case: [answer["cases"][number] for answer in answers] for number, case in enumerate(cases)
    }


def middle(figures: Sequence[Answer], figure: str = "p50") -> float:
    """The median of the rounds."""
    return statistics.median(pick(figures, figure))


def deviation_percent(figures: Sequence[Answer]) -> float:
    """How far the p50 of the rounds lie apart, as a part of their median."""
    values = pick(figures, "p50")
    return 100 * (statistics.stdev(values) if len(values) > 1 else 0.0) / statistics.median(values)
