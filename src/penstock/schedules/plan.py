# SPDX-License-Identifier: Apache-2.0
"""The plan of a daemon: its preflights and units, of definitions and settings together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.config.load import LoadedSettings, dotted, nearest_known
from penstock.config.settings import Settings
from penstock.definitions.partitions import Partitions, Spec, UnitPayload
from penstock.definitions.preflight import Preflight
from penstock.definitions.schedule import Schedule
from penstock.errors import ConfigError, UsageError
from penstock.model.job import PREFLIGHT, SCHEDULE
from penstock.model.schedule import UnitPlan
from penstock.planning.units import (
    DaemonPlan,
    PreflightPlan,
    Problems,
    Unit,
    UnitSpec,
    plan_units,
    unit_spread,
)


def check_partitions(loaded: LoadedSettings, dimensions: Mapping[str, Partitions[Any]]) -> None:
    """Refuse settings about partitions that the app does not define, or defines in code."""
    for name in loaded.settings.partitions:
        path = dotted(("partitions", name))
        source = loaded.sources[path]
        dimension = dimensions.get(name)
        if dimension is None:
            definition = f"app.partitions({name!r}, of=TYPE)"
            raise ConfigError(
                f"{path} is a dimension that the app does not define (from {source}); "
                f"{nearest_known(name, dimensions, definition)}."
            )
        if not dimension.is_configured:
            raise ConfigError(
                f"{path} is set (from {source}), but the app has its values in code; write "
                f"app.partitions({name!r}, of=TYPE) to take them from the configuration."
            )


def plan_daemon(
    preflights: Mapping[str, Preflight[..., Any]],
    schedules: Mapping[str, Schedule[..., Any]],
    dimensions: Mapping[str, Partitions[Any]],
    settings: Settings,
    now: int,
    others: Iterable[str] = (),
) -> DaemonPlan:
    """Evaluate each dimension that is used once, multiply, and refuse all mistakes together.

    `others` are problems that were found elsewhere.
    """
    problems = Problems()
    for problem in others:
        problems.add(problem)
    values = _values(preflights, schedules, dimensions, settings, problems)
    checks = _units(PREFLIGHT, preflights, values, problems)
    ticks = _units(SCHEDULE, schedules, values, problems)
    problems.raise_if_any()
    counts: dict[str, int] = {}
    for unit, _ in ticks:
        counts[unit.spec] = counts.get(unit.spec, 0) + 1
    return DaemonPlan(
        preflights=tuple(
            _preflight(unit, payload, preflights[f"{PREFLIGHT}{unit.spec}"])
            for unit, payload in checks
        ),
        schedules=tuple(
            _tick(unit, payload, schedules[f"{SCHEDULE}{unit.spec}"], counts[unit.spec], now)
            for unit, payload in ticks
        ),
        shares={unit.partition or "": unit.shares for unit, _ in (*checks, *ticks)},
    )


def _values(
    preflights: Mapping[str, Preflight[..., Any]],
    schedules: Mapping[str, Schedule[..., Any]],
    dimensions: Mapping[str, Partitions[Any]],
    settings: Settings,
    problems: Problems,
) -> dict[str, Mapping[str, Any]]:
    """The values of every dimension that somebody is multiplied by, each by its name."""
    used = {one.name for spec in (*preflights.values(), *schedules.values()) for one in spec.over}
    values: dict[str, Mapping[str, Any]] = {}
    for name in sorted(used):
        named = dimensions[name].named_values(settings.partitions.get(name))
        values[name] = named.values
        for problem in named.problems:
            problems.add(problem)
    return values


def _units(
    kind: str,
    specs: Mapping[str, Spec[..., Any]],
    values: Mapping[str, Mapping[str, Any]],
    problems: Problems,
) -> list[tuple[Unit, UnitPayload]]:
    """The units of all specs, with their arguments as JSON; those that have none are problems."""
    wanted = [
        UnitSpec(spec.plain_name, tuple(one.name for one in spec.over)) for spec in specs.values()
    ]
    found = []
    for unit in plan_units(kind, wanted, values.__getitem__, problems):
        try:
            payload = specs[f"{kind}{unit.spec}"].unit_payload(unit.values)
        except UsageError as error:
            problems.add(f"{unit.name}: {error}")
        else:
            found.append((unit, payload))
    return found


def _preflight(unit: Unit, payload: UnitPayload, preflight: Preflight[..., Any]) -> PreflightPlan:
    return PreflightPlan(
        unit=unit.name,
        task=f"{PREFLIGHT}{unit.spec}",
        name=unit.spec,
        partition=unit.partition or "",
        payload=payload.payload,
        required=preflight.required,
    )


def _tick(
    unit: Unit, payload: UnitPayload, schedule: Schedule[..., Any], units_count: int, now: int
) -> UnitPlan:
    return UnitPlan(
        key=unit.name,
        task=schedule.name,
        payload=payload.payload,
        group=unit.partition or schedule.identity_group or schedule.name,
        partition=unit.partition,
        limit_keys=payload.limit_keys,
        timing=schedule.timing.text,
        period=schedule.timing.period,
        first_at=schedule.timing.first(now, unit_spread(unit.name), units_count),
    )
