# SPDX-License-Identifier: Apache-2.0
"""What was configured, what is now, what was the most, and who says so?

The plans of a run's workers become one: what is configured holds for each of them, what is there
and what there was at most is added up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from penstock.model.capacity import AsyncCapacityPlan, CapacityFact, CapacityValue
from penstock.model.run_part import RunPart
from penstock.observe.run_places import PlaceOfRun, places_of, read_parts

__all__ = ["AsyncCapacityPlan", "CapacityValue", "capacity_of", "sections"]

SECTIONS = ("configured", "runtime_snapshot", "observed_maxima")


def capacity_of(parts: Sequence[RunPart]) -> AsyncCapacityPlan | None:
    """The plan of a run; None if no worker has left one."""
    plans = [plan for place in places_of(read_parts(parts)) if (plan := _plan_of(place))]
    if not plans:
        return None
    return AsyncCapacityPlan(
        plans[0].configured,
        _added(plan.runtime_snapshot for plan in plans),
        _added(plan.observed_maxima for plan in plans),
    )


def _plan_of(place: PlaceOfRun) -> AsyncCapacityPlan | None:
    """Of those who had a place one after the other: the last, and the most of all."""
    plans = [document.capacity for document in place.documents]
    plans = [plan for plan in plans if plan.configured or plan.observed_maxima]
    if not plans:
        return None
    most: dict[str, CapacityValue] = {}
    for name, one in (entry for plan in plans for entry in plan.observed_maxima.items()):
        known = most.get(name)
        if known is None or known.value is None:
            most[name] = one
        elif one.value is not None:
            most[name] = msgspec.structs.replace(known, value=_most(known.value, one.value))
    return msgspec.structs.replace(plans[-1], observed_maxima=most)


def sections(plan: AsyncCapacityPlan) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """For people, by section: name, value, and where it is from or why there is none."""
    for section in SECTIONS:
        values: dict[str, CapacityValue] = getattr(plan, section)
        yield section, [(name, _shown(one.value), _from(one)) for name, one in values.items()]


def _added(sections: Iterable[dict[str, CapacityValue]]) -> dict[str, CapacityValue]:
    """The same values of several workers, added up; whoever has none takes nothing away."""
    found: dict[str, CapacityValue] = {}
    counts: dict[str, int] = {}
    for values in sections:
        for name, one in values.items():
            known = found.get(name)
            if known is None or known.value is None:
                found[name] = one
                counts[name] = 0 if one.value is None else 1
            elif one.value is not None:
                counts[name] += 1
                source = f"{counts[name]} workers, added up"
                value = _sum(known.value, one.value)
                found[name] = msgspec.structs.replace(known, value=value, source=source)
    return found


def _sum(one: CapacityFact, other: CapacityFact) -> CapacityFact:
    if isinstance(one, dict) and isinstance(other, dict):
        return {key: one.get(key, 0.0) + other.get(key, 0.0) for key in [*one, *other]}
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one + other
    return one


def _most(one: CapacityFact, other: CapacityFact) -> CapacityFact:
    if isinstance(one, dict) and isinstance(other, dict):
        return {key: max(one.get(key, 0.0), other.get(key, 0.0)) for key in [*one, *other]}
    if isinstance(one, int | float) and isinstance(other, int | float):
        return max(one, other)
    return one


def _shown(value: CapacityFact) -> str:
    if value is None:
        return "-"
    if isinstance(value, dict):
        return ", ".join(f"{name} {number:,g}" for name, number in value.items()) or "none"
    return f"{value:,}" if isinstance(value, int | float) else value


def _from(one: CapacityValue) -> str:
    if one.missing_reason is not None:
        return one.missing_reason
    return one.source if one.fallback_from is None else f"{one.source} of {one.fallback_from}"
