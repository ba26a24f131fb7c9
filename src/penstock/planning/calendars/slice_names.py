# SPDX-License-Identifier: Apache-2.0
"""Which moment does a text of the command line mean, and which slice has that name?"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta

from penstock.errors import UsageError
from penstock.model.calendar import Calendar
from penstock.planning.calendars.timestamps import micros_of
from penstock.planning.zones import day_of, zone_named

MICROSECONDS = 1_000_000  # per second
SHOWN_MAX = 80  # characters of a text in a sentence

_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIME = re.compile(
    r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?([Zz]|[+-]\d\d(:?\d\d)?)?", re.ASCII
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment_of(given: datetime | date | str, calendar: Calendar, now: int) -> int:
    """Of a date or a time, local to the calendar unless it has an offset, "now" or "today"."""
    if not isinstance(given, str):
        return micros_of(given, calendar)
    word = given.strip()
    if word == "now":
        return now
    if word == "today":
        return micros_of(_local_date(now, calendar), calendar)
    return micros_of(_read(word), calendar)


def find_slice(calendar: Calendar, text: str) -> tuple[int, ...]:
    """The timestamps that a name such as 2024-01-05 or 2024-01-05T21:00:00Z means; none if none."""
    moment = _read(text.strip())
    if isinstance(moment, datetime):
        at = micros_of(moment, calendar)
        return tuple(calendar.between(at, at + 1))
    start, end = day_of(moment, zone_named(calendar.tz))
    near = calendar.between(start * MICROSECONDS, end * MICROSECONDS)
    return tuple(at for at in near if _local_date(at, calendar) == moment)


def _read(text: str) -> datetime | date:
    try:
        if _DATE.fullmatch(text):
            return date.fromisoformat(text)
        if _TIME.fullmatch(text):
            return datetime.fromisoformat(text.upper())
    except ValueError:
        pass  # the 31st of February
    raise UsageError(
        f"{text[:SHOWN_MAX]!r} is not a time; write a date such as 2024-01-05, a time such as "
        '2024-01-05T21:00:00Z, "now" or "today".'
    )


def _local_date(at: int, calendar: Calendar) -> date:
    return (_EPOCH + timedelta(microseconds=at)).astimezone(zone_named(calendar.tz)).date()
