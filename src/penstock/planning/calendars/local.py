# SPDX-License-Identifier: Apache-2.0
"""Which moments are meant by dates and times of a place?

A time that does not exist is taken when clocks pass it, and one that occurs twice the first time;
only what is a rhythm, a time in every hour, is taken exactly whenever clocks show it. Before 1970,
where zones are often guesses, a time that would be passed on another date is left out. Moments are
found by the year, or by the month if a day has several, and such blocks are kept.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from calendar import monthrange
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from penstock.model.calendar import CALENDAR_END_AT, CALENDAR_FIRST_AT
from penstock.planning.calendars.by_text import ByText
from penstock.planning.zones import DAY_SECONDS, may_share_a_day, passed, shown

MICROSECONDS = 1_000_000  # per second
BLOCKS_KEPT = 4_096  # of all calendars
TIMES_KEPT_MAX = 24  # times a day of a calendar whose blocks are kept
AROUND_SECONDS = 2 * DAY_SECONDS  # no clock is further from UTC, no change is bigger
#: Second since 1970 UTC. Earlier, old changes of clocks never give a date a second moment.
EXACT_SINCE = 0
FIRST_MONTH = 12  # months since year 0
LAST_MONTH = 9999 * 12 + 11

_EPOCH = datetime(1970, 1, 1)
_EPOCH_DAY = date(1970, 1, 1).toordinal()


class LocalCalendar(ByText):
    """Some days of each month, at the same times."""

    zone: ZoneInfo
    times: tuple[int, ...]  # seconds of the day, in order
    is_rhythm = False
    may_be_adjacent = True  # two days that follow each other

    def days(self, year: int, month: int) -> Sequence[int]:
        """Which days of a month, in order."""
        raise NotImplementedError

    @property
    def daily(self) -> bool:
        """Has a local day at most one?"""
        if len(self.times) > 1:
            return False
        return not (self.may_be_adjacent and may_share_a_day(self.zone, self.times[0]))

    def between(self, start: int, end: int) -> Sequence[int]:
        """Those in [start, end), in order, each once."""
        start, end = max(start, CALENDAR_FIRST_AT), min(end, CALENDAR_END_AT)
        found: array[int] = array("q")
        if start >= end:
            return found
        first, last = self._block_at(start), self._block_at(end - 1)
        for number in range(first, last + 1):
            block = self._block(number)
            if first < number < last:
                found.extend(block)
            else:
                found.extend(block[bisect_left(block, start) : bisect_left(block, end)])
        return found

    def before(self, at: int, count: int) -> Sequence[int]:
        """The newest `count` at or before a moment, in order; fewer if there are no more."""
        end = min(at + 1, CALENDAR_END_AT)
        pieces: list[Sequence[int]] = []
        left = count if end > CALENDAR_FIRST_AT else 0
        number = self._block_at(end - 1) if left > 0 else 0
        while left > 0 and number >= FIRST_MONTH // self.block_months:
            block = self._block(number)
            high = bisect_left(block, end)
            pieces.append(block[max(0, high - left) : high])
            left -= len(pieces[-1])
            number -= 1
        found: array[int] = array("q")
        for piece in reversed(pieces):
            found.extend(piece)
        return found

    @property
    def block_months(self) -> int:
        """How many months are found, and kept, as one block."""
        return 12 if len(self.times) == 1 else 1

    def _block_at(self, at: int) -> int:
        moment = _EPOCH + timedelta(microseconds=at)
        return (moment.year * 12 + moment.month - 1) // self.block_months

    def _block(self, number: int) -> array[int]:
        if len(self.times) <= TIMES_KEPT_MAX:
            return _kept_block(self, number)
        return _found_block(self, number)


@lru_cache(maxsize=BLOCKS_KEPT)
def _kept_block(calendar: LocalCalendar, number: int) -> array[int]:
    return _found_block(calendar, number)


def _found_block(calendar: LocalCalendar, number: int) -> array[int]:
    """The moments of some months of UTC: of their days in local time, and of those around."""
    first, behind = number * calendar.block_months, (number + 1) * calendar.block_months
    start, end = _midnight(first), _midnight(behind)
    days = [
        midnight
        for month in range(max(first - 1, FIRST_MONTH), min(behind, LAST_MONTH) + 1)
        for midnight in _midnights(calendar, month)
        if start - AROUND_SECONDS <= midnight < end + AROUND_SECONDS
    ]
    times = [midnight + time for midnight in days for time in calendar.times]
    if calendar.is_rhythm:
        seconds = shown(times, calendar.zone)
    else:
        seconds = passed(times, calendar.zone, EXACT_SINCE)
    start = max(start, CALENDAR_FIRST_AT // MICROSECONDS)
    seconds = seconds[bisect_left(seconds, start) : bisect_left(seconds, end)]
    return array("q", [second * MICROSECONDS for second in seconds])


def _midnights(calendar: LocalCalendar, number: int) -> list[int]:
    """Local midnights of a month's days, in seconds since 1970 as a clock shows them."""
    year, month = divmod(number, 12)
    days = calendar.days(year, month + 1)
    first = _midnight(number) - DAY_SECONDS if days else 0
    return [first + day * DAY_SECONDS for day in days]


def _midnight(number: int) -> int:
    """The second at which a month begins."""
    if number > LAST_MONTH:
        return CALENDAR_END_AT // MICROSECONDS
    year, month = divmod(number, 12)
    return (date(year, month + 1, 1).toordinal() - _EPOCH_DAY) * DAY_SECONDS


@lru_cache(maxsize=512)
def every_day(year: int, month: int) -> range:
    """All days of a month."""
    return range(1, monthrange(year, month)[1] + 1)
