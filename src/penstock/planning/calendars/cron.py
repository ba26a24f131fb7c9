# SPDX-License-Identifier: Apache-2.0
"""Whenever the clocks of a place match five fields, as schedules understand them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from zoneinfo import ZoneInfo

from cronsim import CronSim

from penstock.planning.calendars.local import LocalCalendar, every_day
from penstock.planning.cron_fields import is_rhythm, read_cron
from penstock.planning.zones import zone_named


@dataclass(frozen=True, eq=False, repr=False)
class Cron(LocalCalendar):
    """`Cron("0 17 * * 1-5", tz="Europe/Berlin")`."""

    expression: str
    tz: str = "UTC"
    text: str = field(init=False)
    zone: ZoneInfo = field(init=False)
    times: tuple[int, ...] = field(init=False)
    is_rhythm: bool = field(init=False)
    fields: CronSim = field(init=False)

    def __post_init__(self) -> None:
        text, fields = read_cron(self.expression)
        times = (
            hour * 3_600 + minute * 60
            for hour in sorted(fields.hours)
            for minute in sorted(fields.minutes)
        )
        object.__setattr__(self, "zone", zone_named(self.tz))
        object.__setattr__(self, "fields", fields)
        object.__setattr__(self, "times", tuple(times))
        object.__setattr__(self, "is_rhythm", is_rhythm(fields))
        object.__setattr__(self, "text", f"cron {text} {self.tz}")

    def days(self, year: int, month: int) -> Sequence[int]:
        fields = self.fields
        if month not in fields.months:
            return ()
        days = every_day(year, month)
        if fields.parts[3] == fields.parts[5] == "*":
            return days
        return [day for day in days if fields.match_day(date(year, month, day))]
