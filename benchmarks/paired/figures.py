# SPDX-License-Identifier: Apache-2.0
"""Figures of two sides, and the ratios of their pairs.

Every ratio is turned so that 1 or more means that the new side is as good or better: new ÷ old of
a rate, old ÷ new of a cost.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from benchmarks.measuring import Answer, Spent
from benchmarks.runner import Check, Outcome, Sense, Table

RATIO_MIN = 0.95  # of the median of a figure's pairs
COLUMNS = (
    "figure",
    "unit",
    "ratio is",
    "old",
    "new",
    "median ratio",
    "lower quartile",
    "upper quartile",
    "min",
    "max",
)


class Better(StrEnum):
    """Which value of a figure is the better one, and so which way its ratio is taken."""

    HIGHER = "new ÷ old"  # of a rate
    LOWER = "old ÷ new"  # of a cost

    def ratio(self, old: float, new: float) -> float:
        """At least 1 if the new value is as good or better."""
        return new / old if self is Better.HIGHER else old / new


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value, which says itself what it is."""

    what: str
    unit: str
    better: Better
    value: float

    def __post_init__(self) -> None:
        if not self.value > 0:
            raise ValueError(f"{self.what}, {self.unit}: {self.value} was measured, so nothing was")

    @property
    def name(self) -> tuple[str, str]:
        """What and unit: the same on both sides."""
        return self.what, self.unit

    @classmethod
    def of(cls, answer: Answer) -> Figure:
        """The figure that a probe has answered with."""
        return cls(**answer | {"better": Better(answer["better"])})


def rate_and_cpu(what: str, one: str, count: int, spent: Spent) -> list[Figure]:
    """How many a second, and what each costs: the two figures of a stretch of work.

    Args:
        what: was done.
        one: of what was counted, such as "job".
        count: how many.
        spent: on all of them.
    """
    return [
        Figure(what, f"{one}s/s", Better.HIGHER, count / spent.wall),
        Figure(what, f"CPU µs/{one}", Better.LOWER, spent.cpu / count * 1e6),
    ]


def to_answer(*figures: Sequence[Figure]) -> Answer:
    """What a probe answers with."""
    return {"figures": [asdict(figure) for part in figures for figure in part]}


def from_answer(answer: Answer) -> list[Figure]:
    """The figures of a probe's answer."""
    return [Figure.of(found) for found in answer["figures"]]


@dataclass(frozen=True, slots=True)
class Pairs:
    """One figure of both sides, pair by pair."""

    what: str
    unit: str
    better: Better
    old: tuple[float, ...]
    new: tuple[float, ...]

    @property
    def ratios(self) -> list[float]:
        """Of each pair, in the order in which they were measured."""
        return [self.better.ratio(*pair) for pair in zip(self.old, self.new, strict=True)]

    def check(self, section: str) -> Check:
        """The median of the ratios beside its bound."""
        name = f"{section}: {self.what}, {self.unit}, {self.better}"
        return Check(name, statistics.median(self.ratios), Sense.AT_LEAST, RATIO_MIN)

    def row(self) -> tuple[str | float, ...]:
        """One row of a table of COLUMNS."""
        ratios = self.ratios
        return (
            self.what,
            self.unit,
            str(self.better),
            statistics.median(self.old),
            statistics.median(self.new),
            statistics.median(ratios),
            *quartiles(ratios),
            min(ratios),
            max(ratios),
        )


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """The lower and the upper one."""
    if len(values) == 1:
        return values[0], values[0]
    lower, _, upper = statistics.quantiles(values, n=4, method="inclusive")
    return lower, upper


def paired(rounds: Sequence[tuple[Sequence[Figure], Sequence[Figure]]]) -> list[Pairs]:
    """The same figures of all rounds, each of which is (old, new); ValueError if they differ."""
    first = [figure.name for figure in rounds[0][0]]
    if any([figure.name for figure in side] != first for one in rounds for side in one):
        raise ValueError("The two sides, or two rounds, did not answer with the same figures.")
    return [
        Pairs(
            figure.what,
            figure.unit,
            figure.better,
            tuple(old[number].value for old, _ in rounds),
            tuple(new[number].value for _, new in rounds),
        )
        for number, figure in enumerate(rounds[0][0])
    ]


def to_outcome(section: str, found: Sequence[Pairs]) -> Outcome:
    """A check and a row for every figure."""
    pairs = len(found[0].old)
    title = f"{section}: {pairs} pair(s); a ratio of 1 or more: the new one is as good or better"
    return Outcome(
        tuple(pair.check(section) for pair in found),
        (Table(title, COLUMNS, tuple(pair.row() for pair in found)),),
    )
