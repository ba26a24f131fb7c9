# SPDX-License-Identifier: Apache-2.0
"""Time zones and daylight saving: local times to moments of UTC, and changes of clocks.

A local time that does not exist, because clocks go forward, is passed when they do; one that occurs
twice is passed the first time. Local times are seconds since 1970 as a clock shows them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from penstock.errors import UsageError
from penstock.model.dataset import utc_datetime

DAY_SECONDS = 86_400
SHOWN_MAX = 80  # characters of a name in a sentence
YEARS_KEPT = 4_096  # years of zones whose changes are kept
#: Where local time ends; beyond, no place could be told.
END = datetime(9999, 12, 30)

_EPOCH = datetime(1970, 1, 1)
_SECOND = timedelta(seconds=1)
_DAY = timedelta(days=1)
_FIRST = datetime(1, 1, 4)  # no place changes its clocks before, nor twice within five days
_FIRST_SECOND = (_FIRST - _EPOCH) // _SECOND
_END_SECOND = (END - _EPOCH) // _SECOND
_REACH_SECONDS = 2 * DAY_SECONDS  # no clock is further from UTC, no change is bigger
#: From here on changes of clocks are known for sure; beyond the last of these years they repeat.
_CHANGING_YEARS = (1970, 2100)


class Span(NamedTuple):
    """A time within which clocks are not changed."""

    start: int  # second since 1970 UTC
    offset: int  # seconds by which clocks are ahead of UTC


def find_zone(name: str) -> ZoneInfo:
    """The zone of a name; UsageError with the nearest one if there is none."""
    given: object = name  # whatever a user without a type checker wrote
    if not isinstance(given, str) or not name:
        raise UsageError(f'A time zone is a name such as "Europe/Berlin", got {name!r}.')
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        pass  # OSError: the name of a folder
    from difflib import get_close_matches
    from zoneinfo import available_timezones

    known = available_timezones()
    if not known:
        raise UsageError(
            f"The time zone {name!r} is not found, since this machine has no zone data; "
            "install the package tzdata."
        )
    near = get_close_matches(name, known, 1)
    hint = f"; the nearest known one is {near[0]!r}" if near else ""
    raise UsageError(
        f"There is no time zone {name[:SHOWN_MAX]!r}{hint}; write one such as 'Europe/Berlin'."
    )


def first_occurrences(
    times: Sequence[int], zone: ZoneInfo, exact_since: int | None = None
) -> list[int]:
    """When clocks first show each of some ordered local times, or pass it; each moment once.

    Before `exact_since`, a second since 1970, one that is passed on another date is left out.
    """
    spans = _spans_around(times, zone)
    if len(spans) <= 1:
        return [time - span.offset for span in spans for time in times]
    found: list[int] = []
    number, last = 0, len(spans) - 1
    for time in times:
        while number < last and spans[number + 1].start + spans[number].offset <= time:
            number += 1
        start, offset = spans[number]
        moment = max(start, time - offset)
        is_old = exact_since is not None and moment < exact_since
        if is_old and (moment + offset) // DAY_SECONDS != time // DAY_SECONDS:
            continue
        if not found or moment > found[-1]:
            found.append(moment)
    return found


def all_occurrences(times: Sequence[int], zone: ZoneInfo) -> list[int]:
    """Whenever clocks show one of some ordered local times: twice, once or not at all."""
    spans = _spans_around(times, zone)
    if len(spans) <= 1:
        return [time - span.offset for span in spans for time in times]
    found: list[int] = []
    for number, (start, offset) in enumerate(spans):
        low = bisect_left(times, start + offset) if number else 0
        high = len(times)
        if number + 1 < len(spans):
            high = bisect_left(times, spans[number + 1].start + offset)
        found += [time - offset for time in times[low:high]]
    return found


def _spans_around(times: Sequence[int], zone: ZoneInfo) -> list[Span]:
    if not times:
        return []
    return offset_spans(zone, times[0] - _REACH_SECONDS, times[-1] + _REACH_SECONDS)


def day_bounds(day: date, zone: ZoneInfo) -> tuple[int, int]:
    """The seconds since 1970 UTC from which and before which clocks may show a date."""
    midnight = (day.toordinal() - _EPOCH.toordinal()) * DAY_SECONDS
    following = (midnight + DAY_SECONDS,)
    until = all_occurrences(following, zone) or first_occurrences(following, zone)
    return first_occurrences((midnight,), zone)[0], until[-1]


def offset_spans(zone: ZoneInfo, start: int, end: int) -> list[Span]:
    """What clocks do from one second to another."""
    first = _EPOCH + timedelta(seconds=max(start, _FIRST_SECOND))
    spans = [Span(start, _seconds(offset_at(first, zone)))]
    if zone.utcoffset(None) is not None:
        return spans  # it has never changed
    until = _EPOCH + timedelta(seconds=min(end, _END_SECOND))
    for year in range(first.year, until.year + 1):
        for change in clock_changes(zone, year):
            if first < change < until:
                spans.append(Span(_seconds(change - _EPOCH), _seconds(offset_at(change, zone))))
    return spans


def is_daily(moments: Iterable[int], zone: ZoneInfo) -> bool:
    """Whether no two neighbours of some moments lie on one local date."""
    days = (utc_datetime(at).astimezone(zone).toordinal() for at in moments)
    return all(one != two for one, two in pairwise(days))


@lru_cache(maxsize=256)
def may_share_date(zone: ZoneInfo, time: int) -> bool:
    """Whether a time of day that one date lacks is passed on a later date that has it, too.

    Years before 1970 are not looked at.
    """
    if time == 0 or zone.utcoffset(None) is not None:
        return False  # whoever misses midnight passes it on the same date, or with the next one
    for year in range(*_CHANGING_YEARS):
        for change in clock_changes(zone, year):
            moment = _seconds(change - _EPOCH)
            start = moment + _seconds(offset_at(change - _SECOND, zone))
            end = moment + _seconds(offset_at(change, zone))
            missing = (start - time + DAY_SECONDS - 1) // DAY_SECONDS * DAY_SECONDS + time
            is_moved = missing < end and missing // DAY_SECONDS < end // DAY_SECONDS
            if is_moved and end % DAY_SECONDS < time:
                return True
    return False


def offset_at(moment: datetime, zone: ZoneInfo) -> timedelta:
    """How far clocks are ahead of UTC at a moment, a naive UTC."""
    return moment.replace(tzinfo=UTC).astimezone(zone).utcoffset() or timedelta()


def local_at(moment: datetime, zone: ZoneInfo) -> datetime:
    """What clocks show at a moment, both naive."""
    return moment.replace(tzinfo=UTC).astimezone(zone).replace(tzinfo=None)


def find_change(before: datetime, behind: datetime, zone: ZoneInfo) -> datetime:
    """The moment, in whole seconds, between two at which clocks are changed."""
    old = offset_at(before, zone)
    while behind - before > _SECOND:
        middle = before + (behind - before) // 2
        middle -= timedelta(microseconds=middle.microsecond)
        if offset_at(middle, zone) == old:
            before = middle
        else:
            behind = middle
    return behind


def next_change(moment: datetime, zone: ZoneInfo) -> datetime:
    """The next moment at which clocks are changed, or the end of the next year if none is."""
    for year in (moment.year, moment.year + 1):
        for change in clock_changes(zone, year):
            if change > moment:
                return change
    return min(datetime(moment.year + 2, 1, 1), END) if moment.year < 9998 else END


@lru_cache(maxsize=YEARS_KEPT)
def clock_changes(zone: ZoneInfo, year: int) -> tuple[datetime, ...]:
    """The moments of one year of UTC, from its first on, at which clocks are changed."""
    if year > END.year or zone.utcoffset(None) is not None:
        return ()
    start = max(datetime(year, 1, 1), _FIRST)
    end = datetime(year + 1, 1, 1) if year < END.year else END
    days = (end - start) // _DAY + (2 if year < END.year else 0)
    # Asked of local days, a zone answers ten times as fast as of moments.
    looks = [start + number * _DAY for number in range(-1, days)]
    offsets = [zone.utcoffset(look) or timedelta() for look in looks]
    found = (
        find_change(before - old - _DAY, behind - new + _DAY, zone)
        for (before, behind), (old, new) in zip(pairwise(looks), pairwise(offsets), strict=True)
        if old != new
    )
    return tuple(change for change in found if start <= change < end)


def _seconds(duration: timedelta) -> int:
    return duration // _SECOND
