# SPDX-License-Identifier: Apache-2.0
"""A calendar from an explicit list of timestamps."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, timedelta
from hashlib import blake2b
from itertools import pairwise

from penstock.errors import UsageError
from penstock.model.dataset import CALENDAR_END_AT, CALENDAR_FIRST_AT
from penstock.planning.calendars.local import ByText
from penstock.planning.zones import passed, zone_named

MICROSECONDS = 1_000_000  # per second
MOMENTS_MAX = 10_000_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, eq=False, repr=False)
class Custom(ByText):
    """`Custom([date(2024, 1, 5), date(2024, 4, 2)])`: a date is the midnight of `tz`."""

    timestamps: InitVar[Iterable[datetime | date]]
    tz: str = "UTC"
    text: str = field(init=False)
    daily: bool = field(init=False)
    moments: array[int] = field(init=False)

    def __post_init__(self, timestamps: Iterable[datetime | date]) -> None:
        zone = zone_named(self.tz)
        given: object = timestamps
        if isinstance(given, str | bytes) or not isinstance(given, Iterable):
            raise UsageError(f"Custom takes a list of datetimes or dates, got {given!r}.")
        found: set[int] = set()
        for number, one in enumerate(timestamps, 1):
            if number > MOMENTS_MAX:
                raise UsageError(f"Custom takes at most {MOMENTS_MAX:,} timestamps, got more.")
            found.add(_micros_of(one, number, self.tz))
        if not found:
            raise UsageError("Custom takes at least one datetime or date, got none.")
        moments = array("q", sorted(found))
        if moments[0] < CALENDAR_FIRST_AT or moments[-1] >= CALENDAR_END_AT:
            raise UsageError("The timestamps of Custom lie between 0001-01-03 and 9999-12-29.")
        digest = blake2b(moments.tobytes(), digest_size=8).hexdigest()
        days = (
            (_EPOCH + timedelta(microseconds=at)).astimezone(zone).toordinal() for at in moments
        )
        object.__setattr__(self, "moments", moments)
        object.__setattr__(self, "daily", all(one != two for one, two in pairwise(days)))
        object.__setattr__(self, "text", f"custom {len(moments)} {digest} {self.tz}")

    def between(self, start: int, end: int) -> Sequence[int]:
        """Those in [start, end), in order, each once."""
        moments = self.moments
        return moments[bisect_left(moments, start) : bisect_left(moments, end)]

    def before(self, at: int, count: int) -> Sequence[int]:
        """The newest `count` at or before a moment, in order; fewer if there are no more."""
        high = bisect_right(self.moments, at)
        return self.moments[max(0, high - max(0, count)) : high]


def _micros_of(one: object, number: int, tz: str) -> int:
    if isinstance(one, datetime):
        if one.tzinfo is None:
            raise UsageError(
                f"Timestamp {number} of Custom, {one.isoformat()}, has no time zone; "
                "give it one, or write a date."
            )
        return (one - _EPOCH) // _MICROSECOND
    if isinstance(one, date):
        local = (one - _EPOCH.date()).days * 86_400
        return passed((local,), zone_named(tz))[0] * MICROSECONDS
    raise UsageError(f"Timestamp {number} of Custom is neither a datetime nor a date: {one!r}.")
