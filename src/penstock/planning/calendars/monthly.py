# SPDX-License-Identifier: Apache-2.0
"""Once a month, on one day, at one time of a place; a month without that day has none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from zoneinfo import ZoneInfo

from penstock.errors import UsageError
from penstock.planning.calendars.clock_time import clock_text, second_of_day
from penstock.planning.calendars.local import LocalCalendar, every_day
from penstock.planning.zones import zone_named


@dataclass(frozen=True, eq=False, repr=False)
class Monthly(LocalCalendar):
    """`Monthly(day=-1)`: -1 is the last day of each month."""

    day: int = 1
    at: str = "00:00"
    tz: str = "UTC"
    text: str = field(init=False)
    zone: ZoneInfo = field(init=False)
    times: tuple[int, ...] = field(init=False)
    may_be_adjacent = False

    def __post_init__(self) -> None:
        given: object = self.day
        if not isinstance(given, int) or isinstance(given, bool) or not 1 <= abs(given) <= 31:
            raise UsageError(
                f"The day of a month is 1 to 31, or -1 (the last) to -31, got {given!r}."
            )
        time = second_of_day(self.at)
        object.__setattr__(self, "zone", zone_named(self.tz))
        object.__setattr__(self, "times", (time,))
        object.__setattr__(self, "text", f"monthly {given} {clock_text(time)} {self.tz}")

    def days(self, year: int, month: int) -> Sequence[int]:
        last = every_day(year, month)[-1]
        day = self.day if self.day > 0 else last + 1 + self.day
        return (day,) if 1 <= day <= last else ()
