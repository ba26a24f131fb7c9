# SPDX-License-Identifier: Apache-2.0
"""Once in every hour of a place: a rhythm, whatever is done to its clocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from zoneinfo import ZoneInfo

from penstock.errors import UsageError
from penstock.planning.calendars.local import LocalCalendar, every_day
from penstock.planning.zones import zone_named


@dataclass(frozen=True, eq=False, repr=False)
class Hourly(LocalCalendar):
    """`Hourly(minute=30)`."""

    minute: int = 0
    tz: str = "UTC"
    text: str = field(init=False)
    zone: ZoneInfo = field(init=False)
    times: tuple[int, ...] = field(init=False)
    is_rhythm = True

    def __post_init__(self) -> None:
        given: object = self.minute
        if not isinstance(given, int) or isinstance(given, bool) or not 0 <= given <= 59:
            raise UsageError(f"The minute of an hour is a number from 0 to 59, got {given!r}.")
        times = tuple(hour * 3_600 + given * 60 for hour in range(24))
        object.__setattr__(self, "zone", zone_named(self.tz))
        object.__setattr__(self, "times", times)
        object.__setattr__(self, "text", f"hourly :{given:02d} {self.tz}")

    def days(self, year: int, month: int) -> Sequence[int]:
        return every_day(year, month)
