# SPDX-License-Identifier: Apache-2.0
"""Which moments should each kind of calendar have around a change of clocks?

Each kind says in its own words which times of a clock on the wall it means; `calendar_world` walks
through the minutes. Nothing of the planner is used to find out what is expected.
"""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from penstock.calendars import Calendar, Cron, Daily, Every, Hourly, Monthly, Weekly
from penstock.model.dataset import moment_name
from penstock.planning.calendars.timestamps import find_slice
from tests.faults.calendar_world import EXPRESSIONS, MINUTE, Pattern, Window, micros, moment

EPOCH = datetime(1970, 1, 1)


@dataclass(frozen=True)
class Kind:
    """A calendar of any zone, and what it means on the wall."""

    make: Callable[[str], Calendar]
    matches: Callable[[datetime], bool]
    is_rhythm: bool = False


@dataclass(frozen=True)
class Steady:
    """A calendar that does not look at clocks."""

    every: timedelta
    since: datetime = EPOCH


def daily(at: time) -> Kind:
    return Kind(lambda zone: Daily(f"{at:%H:%M}", tz=zone), lambda wall: wall.time() == at)


def hourly(minute: int) -> Kind:
    return Kind(lambda zone: Hourly(minute, tz=zone), lambda wall: wall.minute == minute, True)


def weekly(weekday: int, at: time) -> Kind:
    return Kind(
        lambda zone: Weekly(weekday, at=f"{at:%H:%M}", tz=zone),
        lambda wall: wall.isoweekday() == weekday + 1 and wall.time() == at,
    )


def monthly(day: int, at: time) -> Kind:
    def matches(wall: datetime) -> bool:
        if wall.time() != at:
            return False
        days_left = monthrange(wall.year, wall.month)[1] - wall.day
        return wall.day == day or -1 - days_left == day

    return Kind(lambda zone: Monthly(day, at=f"{at:%H:%M}", tz=zone), matches)


def cron(expression: str) -> Kind:
    pattern = Pattern.of(expression)
    return Kind(lambda zone: Cron(expression, zone), pattern.matches, pattern.is_rhythm)


def kinds_around(day: date) -> list[Kind | Steady]:
    """Calendars of all kinds, most of them with something due near a day."""
    times = [time(0, 0), time(0, 30), time(2, 30), time(23, 45)]
    kinds: list[Kind | Steady] = [daily(at) for at in (*times, time(1, 59), time(16, 0))]
    for near in (day - timedelta(days=1), day, day + timedelta(days=1)):
        last = monthrange(near.year, near.month)[1]
        for at in times:
            kinds.append(weekly(near.weekday(), at))
            kinds.append(monthly(near.day, at))
            kinds.append(monthly(near.day - last - 1, at))
    kinds += [hourly(minute) for minute in (0, 15, 30)]
    kinds += [cron(expression) for expression in EXPRESSIONS]
    kinds += [Steady(timedelta(minutes=15)), Steady(timedelta(hours=7), datetime(2001, 2, 3, 4, 5))]
    return kinds


def calendar_differences(zone: str, seen: Window, kinds: list[Kind | Steady]) -> list[str]:
    """What calendars say otherwise than the oracle, or than they themselves said; empty if none."""
    return [line for kind in kinds for line in _differences(zone, seen, kind)]


def _differences(zone: str, seen: Window, kind: Kind | Steady) -> Iterator[str]:
    if isinstance(kind, Steady):
        calendar: Calendar = Every(kind.every, since=kind.since)
        expected = list(_steady(kind, seen))
    else:
        calendar = kind.make(zone)
        expected = [micros(one) for one in seen.expected(kind)]
    start, end = micros(seen.start + MINUTE), micros(seen.start + len(seen.walls) * MINUTE)
    found = list(calendar.between(start, end))
    if found != expected:
        odd = sorted({*found} ^ {*expected}) or found
        yield f"{calendar.text} in {zone} differs at {[str(moment(at)) for at in odd[:3]]}"
    if list(calendar.before(end - 1, len(found))) != found:
        yield f"{calendar.text} in {zone} looks back otherwise than ahead from {seen.start}"
    for at in found[:: max(1, len(found) // 3)]:
        halves = [*calendar.between(start, at), *calendar.between(at, end)]
        if halves != found or list(calendar.before(at, 1)) != [at]:
            yield f"{calendar.text} in {zone} is another one in halves at {moment(at)}"
        if find_slice(calendar, moment_name(at, calendar)) != (at,):
            yield f"{calendar.text} in {zone} does not find {moment_name(at, calendar)}"
    if calendar.daily:
        place = ZoneInfo(calendar.tz)
        days = [moment(at).replace(tzinfo=UTC).astimezone(place).date() for at in found]
        if len({*days}) < len(days):
            yield f"{calendar.text} in {zone} has a day with two moments near {seen.start}"


def _steady(kind: Steady, seen: Window) -> Iterator[int]:
    for number in range(1, len(seen.walls)):
        now = seen.start + number * MINUTE
        if (now - kind.since) % kind.every == timedelta():
            yield micros(now)
