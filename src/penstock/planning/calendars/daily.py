# SPDX-License-Identifier: Apache-2.0
"""Once a day, at one time of a place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from zoneinfo import ZoneInfo

from penstock.planning.calendars.clock_time import clock_text, second_of_day
from penstock.planning.calendars.local import LocalCalendar, every_day
from penstock.planning.zones import zone_named


@dataclass(frozen=True, eq=False, repr=False)
class Daily(LocalCalendar):
    """`Daily("16:00", tz="America/New_York")`."""

    at: str = "00:00"
    tz: str = "UTC"
    text: str = field(init=False)
    zone: ZoneInfo = field(init=False)
    times: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        time = second_of_day(self.at)
        object.__setattr__(self, "zone", zone_named(self.tz))
        object.__setattr__(self, "times", (time,))
        object.__setattr__(self, "text", f"daily {clock_text(time)} {self.tz}")

    def days(self, year: int, month: int) -> Sequence[int]:
        return every_day(year, month)
