# SPDX-License-Identifier: Apache-2.0
"""Units: preflights and schedules multiplied by the values of their partitions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import combinations, permutations, product
from typing import Any

import msgspec

from penstock.errors import UsageError
from penstock.model.job import KEY_LENGTH_MAX, NAME_LENGTH_MAX
from penstock.model.schedule import UnitPlan

UNITS_MAX = 1_000_000  # of one spec
PROBLEMS_SHOWN = 20  # lines of one refusal
PROBLEM_LENGTH_MAX = 400  # characters of one line


class PreflightPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One unit of a preflight, as planned."""

    unit: str  # preflight:repository_exists:thumbrise/autosolve; the key of its job
    task: str  # preflight:repository_exists
    name: str  # repository_exists
    partition: str  # "": it is global
    payload: str  # strict JSON text: the values of its partition, by argument
    required: bool = True  # False: if it fails, its partition is left out


class DaemonPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The preflights and schedules of `penstock run`, by units."""

    preflights: tuple[PreflightPlan, ...] = ()
    schedules: tuple[UnitPlan, ...] = ()  # with the first tick of each, if it is new
    shares: dict[str, tuple[str, ...]]  # partition → those that it lies in, "" first, itself last


def plan_mark(plan: DaemonPlan) -> str:
    """The same for all daemons that plan the same units."""
    keys = "\n".join(sorted(unit.key for unit in plan.schedules))
    return hashlib.blake2b(keys.encode(), digest_size=16).hexdigest()


def unit_spread(unit: str) -> float:
    """A number in [0, 1) from a unit's name, the same at every start."""
    digest = hashlib.blake2b(unit.encode(), digest_size=6).digest()
    return int.from_bytes(digest, "big") / 2**48


class UnitSpec(msgspec.Struct, frozen=True):
    """A preflight or a schedule, as the planner sees it."""

    name: str  # without the kind
    over: tuple[str, ...] = ()  # dimensions


class Unit(msgspec.Struct, frozen=True):
    """One spec for one partition: what is run, armed and named."""

    name: str  # schedule:poll_issues:thumbrise/autosolve
    spec: str  # poll_issues
    partition: str | None  # thumbrise/autosolve; None: it is global
    values: tuple[Any, ...]  # one of each dimension
    shares: tuple[str, ...]  # partitions that it lies in, "" first, the finest last


class Problems:
    """Collects what is wrong with a plan, so that it is told all at once."""

    def __init__(self, what: str = "The plan") -> None:
        self._what = what
        self._lines: dict[str, None] = {}  # each once, in order
        self._count = 0

    def add(self, sentence: str) -> None:
        """Note one; those beyond what is shown are only counted."""
        if sentence in self._lines:
            return
        self._count += 1
        if len(self._lines) < PROBLEMS_SHOWN:
            self._lines[sentence] = None

    def raise_if_any(self) -> None:
        """Raise UsageError if there are any: one sentence, or a line for each."""
        lines = [line[:PROBLEM_LENGTH_MAX] for line in self._lines]
        if len(lines) == 1:
            raise UsageError(lines[0])
        if lines:
            more = self._count - len(lines)
            rest = [f"and {more:,} more."] if more else []
            told = "\n".join(f"- {line}" for line in [*lines, *rest])
            raise UsageError(f"{self._what} has {self._count:,} problems:\n{told}")


def plan_units(
    kind: str,
    specs: Iterable[UnitSpec],
    values_of: Callable[[str], Mapping[str, Any]],
    problems: Problems,
) -> list[Unit]:
    """Multiply: one unit for each spec and each combination of its dimensions' values.

    Args:
        kind: what unit names begin with, such as `schedule:`.
        specs: what is multiplied.
        values_of: the values of a dimension, by name.
        problems: takes what is wrong; units that are wrong are left out.
    """
    units: dict[str, Unit] = {}
    for spec in specs:
        dimensions = [values_of(name) for name in spec.over]
        size = 1
        for values in dimensions:
            size *= len(values)
        if size > UNITS_MAX:
            problems.add(
                f"{kind}{spec.name} has {size:,} units, over {' × '.join(spec.over)}; at most "
                f"{UNITS_MAX:,} can be planned."
            )
            continue
        for chosen in product(*(values.items() for values in dimensions)):
            unit = _unit(kind, spec, chosen)
            problem = _problem(unit, units)
            if problem is None:
                units[unit.name] = unit
            else:
                problems.add(problem)
    return list(units.values())


def _unit(kind: str, spec: UnitSpec, chosen: tuple[tuple[str, Any], ...]) -> Unit:
    names = tuple(name for name, _ in chosen)
    partition = "/".join(names) if names else None
    name = f"{kind}{spec.name}" if partition is None else f"{kind}{spec.name}:{partition}"
    return Unit(
        name,
        spec.name,
        partition,
        tuple(value for _, value in chosen),
        tuple(enclosing_partitions(names)),
    )


def enclosing_partitions(names: tuple[str, ...]) -> Iterator[str]:
    """The partitions that one of these names lies in: none of its dimensions first, all last."""
    yield ""
    if len(names) == 1:
        yield names[0]
        return
    seen = set()
    for size in range(1, len(names) + 1):
        for some in combinations(names, size):
            for order in reversed(list(permutations(some))):
                share = "/".join(order)
                if share not in seen:
                    seen.add(share)
                    yield share


def _problem(unit: Unit, others: Mapping[str, Unit]) -> str | None:
    shown = f"{unit.name[:100]}…" if len(unit.name) > 100 else unit.name
    if len(unit.name) > KEY_LENGTH_MAX:
        return f"{shown} has a name of {len(unit.name)} characters; at most {KEY_LENGTH_MAX} fit."
    if unit.partition is not None and len(unit.partition) > NAME_LENGTH_MAX:
        return (
            f"{shown} has a partition of {len(unit.partition)} characters; at most "
            f"{NAME_LENGTH_MAX} fit."
        )
    if unit.name in others:
        return f"Two units are named {shown}; give one of their partitions a key=."
    return None
