# SPDX-License-Identifier: Apache-2.0
"""When is something due by local time? Asked of every single minute around a change of clocks.

The oracle knows neither offsets nor gaps. It looks at a clock on the wall, minute by minute: what
runs at certain hours runs when the highest time that the clock has shown passes a matching one;
what runs in every hour runs whenever the clock shows a matching time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Protocol
from zoneinfo import ZoneInfo

from penstock.planning.timing import cron

MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
WINDOW_DAYS = 3  # of minutes that are looked at for one change of clocks
MICROSECONDS = 1_000_000

EXPRESSIONS = (
    "30 2 * * *",
    "0 0 * * *",
    "15 1,3 * * *",
    "45 23 * * *",
    "*/20 2 * * *",
    "0 */2 * * *",
    "5 0-23/5 * * *",
    "30 0 * * 0",
    "0 3 29 2 *",
    "0 0 1 * *",
    "*/10 * * * *",
    "30 * * * *",
    "0 * * * 6,0",
)


@dataclass(frozen=True)
class Pattern:
    """Five fields as sets; days as Debian's cron takes them."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]  # 0: Sunday
    both: bool  # day and weekday must match

    @staticmethod
    def of(expression: str) -> Pattern:
        minute, hour, day, month, weekday = expression.split()
        return Pattern(
            _field(minute, 0, 59),
            _field(hour, 0, 23),
            _field(day, 1, 31),
            _field(month, 1, 12),
            frozenset(number % 7 for number in _field(weekday, 0, 7)),
            day.startswith("*") or weekday.startswith("*"),
        )

    def matches(self, local: datetime) -> bool:
        if local.minute not in self.minutes or local.hour not in self.hours:
            return False
        if local.month not in self.months:
            return False
        day = local.day in self.days
        weekday = local.isoweekday() % 7 in self.weekdays
        return (day and weekday) if self.both else (day or weekday)

    @property
    def is_rhythm(self) -> bool:
        return len(self.hours) == 24


def _field(text: str, low: int, high: int) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        if span == "*":
            first, last = str(low), str(high)
        end = int(last or (high if step else first))
        found.update(range(int(first), end + 1, int(step or 1)))
    return frozenset(found)


class Matching(Protocol):
    """Whatever is due at some local times."""

    @property
    def is_rhythm(self) -> bool: ...

    def matches(self, local: datetime) -> bool: ...


@dataclass(frozen=True)
class Window:
    """What a clock on the wall shows in each minute from `start` (naive UTC) on."""

    start: datetime
    walls: tuple[datetime, ...]

    def expected(self, pattern: Matching) -> list[datetime]:
        """Every moment after the first at which something runs."""
        shown = list(enumerate(self.walls[1:], 1)) if pattern.is_rhythm else self._passed
        runs = sorted({number for number, wall in shown if pattern.matches(wall)})
        return [self.start + number * MINUTE for number in runs]

    @cached_property
    def _passed(self) -> list[tuple[int, datetime]]:
        """Each time, once, with the minute in which the clock first showed it, or passed it."""
        passed = []
        highest = self.walls[0]
        for number, wall in enumerate(self.walls[1:], 1):
            while highest < wall:
                highest += MINUTE
                passed.append((number, highest))
        return passed


def window(zone: ZoneInfo, day: datetime) -> Window:
    """The minutes of the days around one, a naive UTC."""
    start = day - DAY
    walls = tuple(
        (start + number * MINUTE).replace(tzinfo=UTC).astimezone(zone).replace(tzinfo=None, fold=0)
        for number in range(WINDOW_DAYS * 1440)
    )
    return Window(start, walls)


def changing_days(zone: ZoneInfo, first_year: int, last_year: int) -> Iterator[datetime]:
    """The days, naive UTC, within which the clocks of a place are changed."""
    day, end = datetime(first_year, 1, 1), datetime(last_year + 1, 1, 1)
    before = _offset(day, zone)
    while day < end:
        after = _offset(day + DAY, zone)
        if after != before:
            yield day
        day, before = day + DAY, after


def _offset(moment: datetime, zone: ZoneInfo) -> timedelta | None:
    return moment.replace(tzinfo=UTC).astimezone(zone).utcoffset()


def differences(name: str, seen: Window, expressions: tuple[str, ...] = EXPRESSIONS) -> list[str]:
    """What the planner says otherwise than the oracle; empty if they agree."""
    wrong = []
    for expression in expressions:
        expected = seen.expected(Pattern.of(expression))
        timing = cron(expression, name)
        found = []
        at = timing.first(micros(seen.start))
        end = micros(seen.start) + len(seen.walls) * 60 * MICROSECONDS
        while at < end:
            found.append(moment(at))
            later, missed = timing.after(at, at)
            if later <= at or missed:
                wrong.append(f"{expression} {name}: after {moment(at)} comes {moment(later)}")
                break
            at = later
        if found != expected:
            odd = sorted({*found} ^ {*expected})
            wrong.append(f"{expression} {name}: differs at {[str(one) for one in odd[:3]]}")
    return wrong


def micros(time: datetime) -> int:
    return int(time.replace(tzinfo=UTC).timestamp()) * MICROSECONDS


def moment(at: int) -> datetime:
    return datetime.fromtimestamp(at // MICROSECONDS, UTC).replace(tzinfo=None)
