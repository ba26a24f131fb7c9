# SPDX-License-Identifier: Apache-2.0
"""Calendars in local time: hourly, daily, weekly, monthly and cron, through daylight saving.

A local time that does not exist is taken when clocks pass it, and one that occurs twice the first
time; only a time in every hour is taken whenever clocks show it. Before 1970, where zone data is
often a guess, a time that would be passed on another date is left out. Moments are computed by the
year, or by the month if a day has several, and these blocks are cached.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from calendar import monthrange
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from difflib import get_close_matches
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim

from penstock.errors import UsageError
from penstock.model.dataset import (
    CALENDAR_END_AT,
    CALENDAR_FIRST_AT,
    EPOCH,
    MICROSECONDS,
    utc_datetime,
)
from penstock.planning.timing import read_cron, runs_every_hour
from penstock.planning.zones import (
    DAY_SECONDS,
    all_occurrences,
    find_zone,
    first_occurrences,
    may_share_date,
)

SHOWN_MAX = 80  # characters of a text in a sentence

_TIME = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9]))?")

BLOCKS_KEPT = 4_096  # of all calendars
TIMES_KEPT_MAX = 24  # times a day of a calendar whose blocks are kept
AROUND_SECONDS = 2 * DAY_SECONDS  # no clock is further from UTC, no change is bigger
#: Second since 1970 UTC. Earlier, old changes of clocks never give a date a second moment.
EXACT_SINCE = 0
FIRST_MONTH = 12  # months since year 0
LAST_MONTH = 9999 * 12 + 11

_EPOCH_DAY = EPOCH.toordinal()

WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


class CalendarBase:
    """A frozen calendar; those with the same text are equal."""

    text: str

    def _set(self, **fields: object) -> None:
        """Set what `__post_init__` derives from what was given."""
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CalendarBase) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"<{self.text}>"


def second_of_day(text: str) -> int:
    """Of "16:00" or "16:00:30"; UsageError if it is neither."""
    given: object = text  # whatever a user without a type checker wrote
    found = _TIME.fullmatch(text) if isinstance(given, str) else None
    if not found:
        raise UsageError(
            f'A time of the day is written as "16:00" or "16:00:30", got {given!r:.{SHOWN_MAX}}.'
        )
    hour, minute, second = (int(part or 0) for part in found.groups())
    return hour * 3_600 + minute * 60 + second


def format_time(second: int) -> str:
    """Canonical: "16:00", or with seconds if there are any."""
    minutes, seconds = divmod(second, 60)
    text = f"{minutes // 60:02d}:{minutes % 60:02d}"
    return f"{text}:{seconds:02d}" if seconds else text


@dataclass(frozen=True, eq=False, repr=False)
class LocalCalendar(CalendarBase):
    """Some days of each month, at the same times."""

    text: str = field(init=False)
    zone: ZoneInfo = field(init=False)
    times: tuple[int, ...] = field(init=False)  # seconds of the day, in order
    runs_every_hour = False
    may_be_adjacent = True  # two days that follow each other

    def days(self, year: int, month: int) -> Sequence[int]:
        """Which days of a month, in order."""
        raise NotImplementedError

    @property
    def daily(self) -> bool:
        """Whether a local day has at most one."""
        if len(self.times) > 1:
            return False
        return not (self.may_be_adjacent and may_share_date(self.zone, self.times[0]))

    def between(self, start: int, end: int) -> Sequence[int]:
        """Those in [start, end), in order, each once."""
        start, end = max(start, CALENDAR_FIRST_AT), min(end, CALENDAR_END_AT)
        found: array[int] = array("q")
        if start >= end:
            return found
        first, last = self._block_at(start), self._block_at(end - 1)
        for number in range(first, last + 1):
            block = self._block(number)
            if first < number < last:
                found.extend(block)
            else:
                found.extend(block[bisect_left(block, start) : bisect_left(block, end)])
        return found

    def before(self, at: int, count: int) -> Sequence[int]:
        """The newest `count` at or before a moment, in order; fewer if there are no more."""
        end = min(at + 1, CALENDAR_END_AT)
        pieces: list[Sequence[int]] = []
        left = count if end > CALENDAR_FIRST_AT else 0
        number = self._block_at(end - 1) if left > 0 else 0
        while left > 0 and number >= FIRST_MONTH // self.block_months:
            block = self._block(number)
            high = bisect_left(block, end)
            pieces.append(block[max(0, high - left) : high])
            left -= len(pieces[-1])
            number -= 1
        found: array[int] = array("q")
        for piece in reversed(pieces):
            found.extend(piece)
        return found

    @property
    def block_months(self) -> int:
        """Months that are computed, and cached, as one block."""
        return 12 if len(self.times) == 1 else 1

    def _block_at(self, at: int) -> int:
        moment = utc_datetime(at)
        return (moment.year * 12 + moment.month - 1) // self.block_months

    def _block(self, number: int) -> array[int]:
        if len(self.times) <= TIMES_KEPT_MAX:
            return _kept_block(self, number)
        return _found_block(self, number)


@lru_cache(maxsize=BLOCKS_KEPT)
def _kept_block(calendar: LocalCalendar, number: int) -> array[int]:
    return _found_block(calendar, number)


def _found_block(calendar: LocalCalendar, number: int) -> array[int]:
    """The moments of some months of UTC: of their days in local time, and of those around."""
    first, behind = number * calendar.block_months, (number + 1) * calendar.block_months
    start, end = _midnight(first), _midnight(behind)
    days = [
        midnight
        for month in range(max(first - 1, FIRST_MONTH), min(behind, LAST_MONTH) + 1)
        for midnight in _midnights(calendar, month)
        if start - AROUND_SECONDS <= midnight < end + AROUND_SECONDS
    ]
    times = [midnight + time for midnight in days for time in calendar.times]
    if calendar.runs_every_hour:
        seconds = all_occurrences(times, calendar.zone)
    else:
        seconds = first_occurrences(times, calendar.zone, EXACT_SINCE)
    start = max(start, CALENDAR_FIRST_AT // MICROSECONDS)
    seconds = seconds[bisect_left(seconds, start) : bisect_left(seconds, end)]
    return array("q", [second * MICROSECONDS for second in seconds])


def _midnights(calendar: LocalCalendar, number: int) -> list[int]:
    """Local midnights of a month's days, in seconds since 1970 as a clock shows them."""
    year, month = divmod(number, 12)
    days = calendar.days(year, month + 1)
    first = _midnight(number) - DAY_SECONDS if days else 0
    return [first + day * DAY_SECONDS for day in days]


def _midnight(number: int) -> int:
    """The second at which a month begins."""
    if number > LAST_MONTH:
        return CALENDAR_END_AT // MICROSECONDS
    year, month = divmod(number, 12)
    return (date(year, month + 1, 1).toordinal() - _EPOCH_DAY) * DAY_SECONDS


@lru_cache(maxsize=512)
def every_day(year: int, month: int) -> range:
    """All days of a month."""
    return range(1, monthrange(year, month)[1] + 1)


@dataclass(frozen=True, eq=False, repr=False)
class Hourly(LocalCalendar):
    """`Hourly(minute=30)`."""

    minute: int = 0
    tz: str = "UTC"
    runs_every_hour = True

    def __post_init__(self) -> None:
        given: object = self.minute
        if not isinstance(given, int) or isinstance(given, bool) or not 0 <= given <= 59:
            raise UsageError(f"The minute of an hour is a number from 0 to 59, got {given!r}.")
        times = tuple(hour * 3_600 + given * 60 for hour in range(24))
        text = f"hourly :{given:02d} {self.tz}"
        self._set(zone=find_zone(self.tz), times=times, text=text)

    def days(self, year: int, month: int) -> Sequence[int]:
        return every_day(year, month)


@dataclass(frozen=True, eq=False, repr=False)
class Daily(LocalCalendar):
    """`Daily("16:00", tz="America/New_York")`."""

    at: str = "00:00"
    tz: str = "UTC"

    def __post_init__(self) -> None:
        time = second_of_day(self.at)
        text = f"daily {format_time(time)} {self.tz}"
        self._set(zone=find_zone(self.tz), times=(time,), text=text)

    def days(self, year: int, month: int) -> Sequence[int]:
        return every_day(year, month)


@dataclass(frozen=True, eq=False, repr=False)
class Weekly(LocalCalendar):
    """`Weekly("friday", at="17:00")`; a number of the day counts from Monday, 0."""

    day: str | int = "monday"
    at: str = "00:00"
    tz: str = "UTC"
    weekday: int = field(init=False)
    may_be_adjacent = False

    def __post_init__(self) -> None:
        weekday = _weekday(self.day)
        time = second_of_day(self.at)
        text = f"weekly {WEEKDAYS[weekday]} {format_time(time)} {self.tz}"
        self._set(zone=find_zone(self.tz), times=(time,), text=text, weekday=weekday)

    def days(self, year: int, month: int) -> Sequence[int]:
        first = 1 + (self.weekday - date(year, month, 1).weekday()) % 7
        return every_day(year, month)[first - 1 :: 7]


def _weekday(day: object) -> int:
    if isinstance(day, int) and not isinstance(day, bool) and 0 <= day <= 6:
        return day
    if isinstance(day, str):
        name = day.strip().lower()
        if name in WEEKDAYS:
            return WEEKDAYS.index(name)
        near = get_close_matches(name, WEEKDAYS, 1)
        hint = f"; the nearest name is {near[0]!r}" if near else ""
        raise UsageError(f"There is no day of the week {day[:SHOWN_MAX]!r}{hint}.")
    raise UsageError(f'A day of the week is "monday" to "sunday" or 0 to 6, got {day!r}.')


@dataclass(frozen=True, eq=False, repr=False)
class Monthly(LocalCalendar):
    """`Monthly(day=-1)`: -1 is the last day of each month."""

    day: int = 1
    at: str = "00:00"
    tz: str = "UTC"
    may_be_adjacent = False

    def __post_init__(self) -> None:
        given: object = self.day
        if not isinstance(given, int) or isinstance(given, bool) or not 1 <= abs(given) <= 31:
            raise UsageError(
                f"The day of a month is 1 to 31, or -1 (the last) to -31, got {given!r}."
            )
        time = second_of_day(self.at)
        text = f"monthly {given} {format_time(time)} {self.tz}"
        self._set(zone=find_zone(self.tz), times=(time,), text=text)

    def days(self, year: int, month: int) -> Sequence[int]:
        last = every_day(year, month)[-1]
        day = self.day if self.day > 0 else last + 1 + self.day
        return (day,) if 1 <= day <= last else ()


@dataclass(frozen=True, eq=False, repr=False)
class Cron(LocalCalendar):
    """`Cron("0 17 * * 1-5", tz="Europe/Berlin")`."""

    expression: str
    tz: str = "UTC"
    runs_every_hour: bool = field(init=False)
    fields: CronSim = field(init=False)

    def __post_init__(self) -> None:
        text, fields = read_cron(self.expression)
        hours, minutes = sorted(fields.hours), sorted(fields.minutes)
        times = tuple(hour * 3_600 + minute * 60 for hour in hours for minute in minutes)
        self._set(zone=find_zone(self.tz), times=times, text=f"cron {text} {self.tz}")
        self._set(fields=fields, runs_every_hour=runs_every_hour(fields))

    def days(self, year: int, month: int) -> Sequence[int]:
        fields = self.fields
        if month not in fields.months:
            return ()
        days = every_day(year, month)
        if fields.parts[3] == fields.parts[5] == "*":
            return days
        return [day for day in days if fields.match_day(date(year, month, day))]
