# SPDX-License-Identifier: Apache-2.0
"""What was measured, is it good enough, and how does a section of scenarios run?"""

from __future__ import annotations

import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

ROUNDS = 5  # of a comparison
SMOKE_ROUNDS = 3
SMOKE_FACTOR = 2.0  # timing bounds are this much wider in smoke mode: CI machines are noisy

Cell = str | int | float


class Kind(StrEnum):
    """What does a missed figure mean?"""

    BOUND = "bound"  # the run fails
    GOAL = "goal"  # it is printed


class Sense(StrEnum):
    """On which side of its bound must a value lie?"""

    AT_MOST = "≤"
    AT_LEAST = "≥"
    BELOW = "<"


@dataclass(frozen=True, slots=True)
class Check:
    """One figure that an issue names, and whether it is met."""

    name: str
    value: float
    sense: Sense
    bound: float
    kind: Kind = Kind.BOUND
    timing: bool = True  # depends on the speed of the machine, and so is relaxed in smoke mode

    @property
    def ok(self) -> bool:
        if self.sense is Sense.AT_MOST:
            return self.value <= self.bound
        if self.sense is Sense.AT_LEAST:
            return self.value >= self.bound
        return self.value < self.bound

    def relaxed(self, factor: float) -> Check:
        """The same with a wider bound, if it is one of timing."""
        if not self.timing:
            return self
        wider = self.bound / factor if self.sense is Sense.AT_LEAST else self.bound * factor
        return replace(self, bound=wider)


@dataclass(frozen=True, slots=True)
class Table:
    """Figures behind the checks, for people."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a scenario, or a whole section, found."""

    checks: tuple[Check, ...] = ()
    tables: tuple[Table, ...] = ()

    @classmethod
    def joined(cls, outcomes: Iterable[Outcome]) -> Outcome:
        parts = list(outcomes)
        return cls(
            tuple(check for part in parts for check in part.checks),
            tuple(table for part in parts for table in part.tables),
        )


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the scenarios of a section share while they run, such as a server."""

    url: str = ""
    tables: tuple[Table, ...] = ()  # what a reader must know of it


@dataclass(frozen=True, slots=True)
class Setup:
    """How large shall a scenario be, and where may it leave files?"""

    smoke: bool
    folder: Path  # its own, removed afterwards
    url: str = ""  # of the section's server, if it has one

    @property
    def rounds(self) -> int:
        return SMOKE_ROUNDS if self.smoke else ROUNDS

    def size(self, full: int, smoke: int) -> int:
        """The full size, or the small one in smoke mode."""
        return smoke if self.smoke else full


@dataclass(frozen=True, slots=True)
class Scenario:
    """One question, answered by measuring."""

    name: str
    measure: Callable[[Setup], Outcome]
    in_smoke: bool = True  # False: too long for a smoke run, unless it is asked for by name


@dataclass(frozen=True, slots=True)
class Section:
    """Scenarios that belong to one part of the engine."""

    name: str
    scenarios: tuple[Scenario, ...]
    surroundings: Callable[[], AbstractContextManager[Surroundings]] = field(
        default=lambda: nullcontext(Surroundings())
    )

    def only(self, names: Sequence[str]) -> Section:
        """The same with these scenarios alone; ValueError names one that is unknown."""
        known = {scenario.name: scenario for scenario in self.scenarios}
        for name in names:
            if name not in known:
                raise ValueError(f"{self.name} has no scenario {name!r}; it has {', '.join(known)}")
        return replace(self, scenarios=tuple(known[name] for name in names))

    def for_smoke(self) -> Section:
        """The same without what is too long for a smoke run."""
        return replace(self, scenarios=tuple(found for found in self.scenarios if found.in_smoke))


@dataclass(frozen=True, slots=True)
class SectionResult:
    """One section, measured."""

    section: str
    smoke: bool
    outcome: Outcome
    took_seconds: float
    errors: tuple[str, ...] = field(default=())


def run_section(
    section: Section, *, smoke: bool, tell: Callable[[str], None] = lambda _: None
) -> SectionResult:
    """Run every scenario; one that breaks counts as a failed bound and stops no other."""
    began = time.perf_counter()
    outcomes: list[Outcome] = []
    errors: list[str] = []

    def broke(name: str) -> Outcome:
        errors.append(f"{name}\n{traceback.format_exc()}")
        return Outcome((_broken(name),))

    try:
        with (
            tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch,
            section.surroundings() as around,
        ):
            outcomes.append(Outcome((), around.tables))
            for scenario in section.scenarios:
                tell(f"{section.name}: {scenario.name} …")
                started = time.perf_counter()
                try:
                    outcome = _run_scenario(scenario, smoke, Path(scratch), around.url)
                except Exception:
                    outcome = broke(scenario.name)
                outcomes.append(outcome)
                tell(f"{section.name}: {scenario.name} took {time.perf_counter() - started:.1f} s")
    except Exception:
        outcomes.append(broke("surroundings"))
    took = time.perf_counter() - began
    return SectionResult(section.name, smoke, Outcome.joined(outcomes), took, tuple(errors))


def _run_scenario(scenario: Scenario, smoke: bool, scratch: Path, url: str) -> Outcome:
    with tempfile.TemporaryDirectory(prefix=f"{scenario.name}-", dir=scratch) as folder:
        outcome = scenario.measure(Setup(smoke, Path(folder), url))
    if smoke:
        checks = tuple(check.relaxed(SMOKE_FACTOR) for check in outcome.checks)
        outcome = replace(outcome, checks=checks)
    return outcome


def _broken(name: str) -> Check:
    return Check(f"{name}: scenarios that broke", 1, Sense.AT_MOST, 0, timing=False)


def exit_code(results: Iterable[SectionResult]) -> int:
    """1 if a bound was missed anywhere; a missed goal is no failure."""
    checks = (check for result in results for check in result.outcome.checks)
    return int(any(check.kind is Kind.BOUND and not check.ok for check in checks))
