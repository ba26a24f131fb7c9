# SPDX-License-Identifier: Apache-2.0
"""Timestamps of a calendar in a date range, and the parsing of dates that users write."""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta

from penstock.errors import UsageError
from penstock.model.dataset import (
    CALENDAR_END_AT,
    CALENDAR_FIRST_AT,
    MICROSECOND,
    MICROSECONDS,
    Calendar,
    utc_datetime,
    utc_micros,
)
from penstock.planning.zones import day_bounds, find_zone, first_occurrences

_LOCAL_EPOCH = datetime(1970, 1, 1)
_SECOND = timedelta(seconds=1)

SHOWN_MAX = 80  # characters of a text in a sentence

_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIME = re.compile(
    r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?([Zz]|[+-]\d\d(:?\d\d)?)?", re.ASCII
)


def generate_timestamps(
    calendar: Calendar, start: datetime | date, end: datetime | date
) -> list[datetime]:
    """Those in [start, end), aware, in the calendar's zone, in order, each once.

    A date, or a datetime without a zone, is local time of the calendar's zone.
    """
    first, last = micros_of(start, calendar), micros_of(end, calendar)
    if first > last:
        raise UsageError(f"The range starts at {start}, after its end {end}; swap them.")
    zone = find_zone(calendar.tz)
    found = [utc_datetime(at) for at in calendar.between(first, last)]
    return found if zone.key == "UTC" else [moment.astimezone(zone) for moment in found]


def micros_of(moment: datetime | date, calendar: Calendar) -> int:
    """A moment, or a local time of the calendar's zone, in microseconds since 1970 UTC."""
    given: object = moment  # whatever a user without a type checker wrote
    if isinstance(given, datetime) and given.tzinfo is not None:
        return utc_micros(given)
    if isinstance(given, datetime):
        local = given
    elif isinstance(given, date):
        local = datetime(given.year, given.month, given.day)
    else:
        raise UsageError(f"A range goes from one datetime or date to another, got {given!r}.")
    seconds, rest = divmod(local - _LOCAL_EPOCH, _SECOND)
    shown_at = seconds * MICROSECONDS + rest // MICROSECOND
    if not CALENDAR_FIRST_AT <= shown_at < CALENDAR_END_AT:
        return shown_at  # beyond all calendars; a day more or less is the same
    passed_at = first_occurrences((seconds,), find_zone(calendar.tz))[0] * MICROSECONDS
    return passed_at + rest // MICROSECOND


def parse_moment(given: datetime | date | str, calendar: Calendar, now: int) -> int:
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
    start, end = day_bounds(moment, find_zone(calendar.tz))
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
    return utc_datetime(at).astimezone(find_zone(calendar.tz)).date()
