# SPDX-License-Identifier: Apache-2.0
"""Once a week, on one day, at one time of a place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from difflib import get_close_matches
from zoneinfo import ZoneInfo

from penstock.errors import UsageError
from penstock.planning.calendars.clock_time import SHOWN_MAX, clock_text, second_of_day
from penstock.planning.calendars.local import LocalCalendar, every_day
from penstock.planning.zones import zone_named

WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


@dataclass(frozen=True, eq=False, repr=False)
class Weekly(LocalCalendar):
    """`Weekly("friday", at="17:00")`; a number of the day counts from Monday, 0."""

    day: str | int = "monday"
    at: str = "00:00"
    tz: str = "UTC"
    text: str = field(init=False)
    zone: ZoneInfo = field(init=False)
    times: tuple[int, ...] = field(init=False)
    weekday: int = field(init=False)
    may_be_adjacent = False

    def __post_init__(self) -> None:
        weekday = _weekday(self.day)
        time = second_of_day(self.at)
        object.__setattr__(self, "weekday", weekday)
        object.__setattr__(self, "zone", zone_named(self.tz))
        object.__setattr__(self, "times", (time,))
        text = f"weekly {WEEKDAYS[weekday]} {clock_text(time)} {self.tz}"
        object.__setattr__(self, "text", text)

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
