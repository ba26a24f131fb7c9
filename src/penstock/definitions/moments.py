# SPDX-License-Identifier: Apache-2.0
"""How does a user say a moment, and how is one shown to a function?"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

#: A time, a date (its midnight), or a text of either; what names no zone is local to a calendar.
Moment = datetime | date | str

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICRO = timedelta(microseconds=1)


def to_moment(micros: int, tz: str) -> datetime:
    """Microseconds since 1970 UTC, as the clocks of a place show them."""
    return (_EPOCH + micros * _MICRO).astimezone(ZoneInfo(tz))
