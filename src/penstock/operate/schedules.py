# SPDX-License-Identifier: Apache-2.0
"""Lists, pauses and resumes schedules; lets units tick now, shows and resets their cursors."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from penstock.errors import UsageError
from penstock.model.job import SCHEDULE, JobState
from penstock.model.plan import KeptEnd
from penstock.model.schedule import ARM_UNITS_MAX, UnitView
from penstock.operate.actions import answer, audit
from penstock.sentences import command, counted
from penstock.stores.protocol import Store
from penstock.stores.store_future import Reply
from penstock.terminal_text import escaped

PAGE = 1_000  # units that are read at once


@dataclass(frozen=True, slots=True)
class TickedUnits:
    """What became of units that were to tick now."""

    now: Sequence[str]
    left: Sequence[UnitView]  # they run, are due already, are paused, or tick no more


@dataclass(frozen=True, slots=True)
class ResumedUnits:
    """What became of a pause that was to end."""

    changed: bool
    left: Sequence[UnitView]  # they are paused by themselves, or with their schedule


def all_units(store: Store) -> Iterator[UnitView]:
    """Every unit that the store knows, by key."""
    last = ""
    while page := store.units(None, last, PAGE).result():
        last = page[-1].key
        yield from page


def units_named(store: Store, name: str) -> list[UnitView]:
    """A unit by its name, or all units of a schedule; UsageError with the nearest if none is."""
    key = _key(name)
    one = store.unit(key).result()
    if one is not None:
        return [one]
    units = list(all_units(store))
    found = [unit for unit in units if unit.task == key and store.app in (None, unit.app)]
    if found:
        return found
    known = sorted({*(unit.task for unit in units), *(unit.key for unit in units)})
    near = difflib.get_close_matches(key, known, 1)
    hint = f"; the nearest is {near[0]!r}" if near else ""
    raise UsageError(
        f"No schedule and no unit of one is called {escaped(name)!r}{escaped(hint)}. "
        f"'{command('schedule', 'list')}' lists them."
    )


def unit_named(store: Store, name: str) -> UnitView:
    """One unit; UsageError if the name is of several."""
    units = units_named(store, name)
    if len(units) > 1:
        raise UsageError(
            f"{escaped(name)!r} has {len(units):,} units; name one of them, such as "
            f"{escaped(units[0].key)!r}."
        )
    return units[0]


def pause(store: Store, name: str) -> bool:
    """Let a unit, or all of a schedule, tick no more until it is resumed; False if it was paused.

    UsageError if nothing is called so.
    """
    units = units_named(store, name)
    changed = _of_each_app(store, {unit.app for unit in units}, store.pause_units, name)
    if changed:
        audit(store.url, "Paused %s", escaped(_key(name)))
    return changed


def resume(store: Store, name: str) -> ResumedUnits:
    """End the pause of a unit, or of a schedule, that was paused by this name.

    UsageError if nothing is called so. Where the app is known its units may be purged meanwhile.
    """
    key = _key(name)
    if store.app is not None and key in store.stats().result().paused_schedules:
        apps = {store.app}
    else:
        apps = {unit.app for unit in units_named(store, name)}
    changed = _of_each_app(store, apps, store.resume_units, name)
    if changed:
        audit(store.url, "Resumed %s", escaped(key))
    named = [unit for unit in all_units(store) if key in (unit.key, unit.task)]
    left = [unit for unit in named if unit.app in apps and unit.paused_at is not None]
    return ResumedUnits(changed, left)


def _key(name: str) -> str:
    return name if name.startswith(SCHEDULE) else f"{SCHEDULE}{name}"


def _of_each_app(
    store: Store, apps: Collection[str], ask: Callable[[str], Reply[bool]], name: str
) -> bool:
    changed = 0
    for app in sorted(apps):
        store.look_as(app).result()
        changed += answer(ask(_key(name)), store)
    return changed > 0


def tick_now(store: Store, units: Sequence[UnitView]) -> TickedUnits:
    """Let units that wait tick at once, in slices."""
    ticked: set[str] = set()
    free = [unit for unit in units if not unit.rests]
    for app, owned in groupby(sorted(free, key=attrgetter("app", "key")), attrgetter("app")):
        store.look_as(app).result()
        keys = [unit.key for unit in owned]
        for start in range(0, len(keys), ARM_UNITS_MAX):
            part = keys[start : start + ARM_UNITS_MAX]
            early = answer(store.tick_units(part), store)
            ticked |= early
    if ticked:
        audit(store.url, "Let %s tick now", counted(len(ticked), "unit"))
    return TickedUnits(
        [unit.key for unit in units if unit.key in ticked],
        [unit for unit in units if unit.key not in ticked],
    )


def kept_end(store: Store, unit: UnitView) -> KeptEnd | None:
    """How the last plan of a schedule of datasets ended; None: it keeps none, or has not planned.

    Such a schedule has one unit, without a partition.
    """
    return KeptEnd.read(cursor_of(store, unit)) if unit.partition is None else None


def cursor_of(store: Store, unit: UnitView) -> str | None:
    """The cursor of a unit, as strict JSON text; None: it has none."""
    store.look_as(unit.app).result()
    return answer(store.cursors([unit.key]), store).get(unit.key)


def reset_cursor(store: Store, unit: UnitView) -> bool:
    """Let the cursor of a unit begin anew; False if it had none.

    UsageError while the unit ticks: its end would set the cursor again.
    """
    if unit.state is JobState.IN_PROGRESS:
        raise UsageError(
            f"{escaped(unit.key)!r} ticks just now, and its end would set the cursor again; reset "
            f"it when the tick has ended, or cancel that with "
            f"'{command('queue', 'cancel', unit.key)}'."
        )
    store.look_as(unit.app).result()
    reset = answer(store.forget_cursors([unit.key]), store) > 0
    if reset:
        audit(store.url, "Reset the cursor of %s", escaped(unit.key))
    return reset
