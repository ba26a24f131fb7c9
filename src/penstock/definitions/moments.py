# SPDX-License-Identifier: Apache-2.0
"""Which moment does a user mean: a date, a time, or a text of either?"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from penstock.errors import UsageError

Moment = datetime | date | str

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICRO = timedelta(microseconds=1)


def micros_of(what: str, moment: Moment, tz: str) -> int:
    """Microseconds since 1970 UTC; a date is its midnight, and what names no zone is local in `tz`.

    Args:
        what: how it is called in an error, such as "start".
        moment: what was given.
        tz: whose clocks it is about, if it does not say so itself.
    """
    given: object = moment  # whatever a user without a type checker wrote
    if isinstance(given, str):
        given = _read(what, given)
    if isinstance(given, date) and not isinstance(given, datetime):
        given = datetime.combine(given, time())
    if not isinstance(given, datetime):
        raise UsageError(
            f"{what} is a date, a datetime or a text such as '2024-01-05', got {moment!r:.100}."
        )
    if given.tzinfo is None:
        given = given.replace(tzinfo=ZoneInfo(tz))
    return to_micros(given)


def to_micros(moment: datetime) -> int:
    """An aware time as microseconds since 1970 UTC."""
    return (moment.astimezone(UTC) - _EPOCH) // _MICRO


def to_moment(micros: int, tz: str) -> datetime:
    """The same back, as the clocks of a place show it."""
    return (_EPOCH + micros * _MICRO).astimezone(ZoneInfo(tz))


def _read(what: str, text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{what} is a date such as 2024-01-05 or a time such as 2024-01-05T21:00:00Z, got "
            f"{text!r:.100}."
        ) from None
