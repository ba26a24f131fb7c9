# SPDX-License-Identifier: Apache-2.0
"""Calendars of absolute moments: an interval, a list of timestamps, the sessions of an exchange.

Sessions come from the package exchange-calendars, which is large and imported at first use.
"""

from __future__ import annotations

import warnings
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from typing import Literal, NamedTuple
from zoneinfo import ZoneInfo

from penstock.errors import UsageError
from penstock.model.dataset import (
    CALENDAR_END_AT,
    CALENDAR_FIRST_AT,
    EPOCH,
    MICROSECOND,
    MICROSECONDS,
    utc_datetime,
    utc_micros,
)
from penstock.planning.calendars.local import CalendarBase
from penstock.planning.zones import DAY_SECONDS, day_bounds, find_zone, first_occurrences, is_daily

EVERY_MIN = timedelta(milliseconds=1)
EVERY_MAX = timedelta(days=36_500)  # a century; more is a slip of the pen
MOMENTS_MAX = 10_000_000  # of a list
FIRST_DAY = date(1970, 1, 1)  # of sessions that are asked for
LAST_DAY = date(2049, 12, 31)
EXCHANGES_KEPT = 256  # calendars of sessions
PROBE = {"start": "2024-01-01", "end": "2024-03-01"}  # a range that each of them knows
CODE_LENGTH_MAX = 20  # characters

_UNITS = (("days", 86_400_000_000), ("h", 3_600_000_000), ("min", 60_000_000), ("s", 1_000_000))


@dataclass(frozen=True, eq=False, repr=False)
class Every(CalendarBase):
    """`Every(timedelta(minutes=15))`: counted both ways from `since`, or from 1970 UTC."""

    interval: timedelta
    since: datetime | date | None = None
    text: str = field(init=False)
    tz: str = field(init=False, default="UTC")
    micros: int = field(init=False)
    phase: int = field(init=False)  # microseconds of the first one from 1970 on

    def __post_init__(self) -> None:
        given: object = self.interval
        if not isinstance(given, timedelta):
            raise UsageError(f"Every takes a timedelta, got {given!r}.")
        if not EVERY_MIN <= given <= EVERY_MAX:
            raise UsageError(
                f"Every takes a timedelta from 1 millisecond to 36500 days, got {given!r}."
            )
        micros = given // MICROSECOND
        phase = _micros_since_epoch(self.since) % micros
        suffix = f" from {utc_datetime(phase):%Y-%m-%dT%H:%M:%S.%fZ}"
        text = f"every {_duration(micros)}{suffix.replace('.000000Z', 'Z') if phase else ''}"
        self._set(micros=micros, phase=phase, text=text)

    @property
    def daily(self) -> bool:
        """Whether a day of UTC has at most one."""
        return self.interval >= timedelta(days=1)

    def between(self, start: int, end: int) -> Sequence[int]:
        """Those in [start, end), in order, each once."""
        start, end = max(start, CALENDAR_FIRST_AT), min(end, CALENDAR_END_AT)
        first = start + (self.phase - start) % self.micros
        return range(first, max(first, end), self.micros)

    def before(self, at: int, count: int) -> Sequence[int]:
        """The newest `count` at or before a moment, in order; fewer if there are no more."""
        moments = self.between(CALENDAR_FIRST_AT, at + 1)
        return moments[max(0, len(moments) - max(0, count)) :]


def _micros_since_epoch(since: object) -> int:
    if since is None:
        return 0
    if isinstance(since, datetime):
        return utc_micros(since if since.tzinfo else since.replace(tzinfo=UTC))
    if isinstance(since, date):
        return utc_micros(datetime(since.year, since.month, since.day, tzinfo=UTC))
    raise UsageError(f"`since` of Every is a datetime or a date, got {since!r}.")


def _duration(micros: int) -> str:
    for unit, size in _UNITS:
        if micros % size == 0:
            return f"{micros // size} {unit}"
    return f"{micros / 1_000_000:.6f}".rstrip("0") + " s"


@dataclass(frozen=True, eq=False, repr=False)
class Custom(CalendarBase):
    """`Custom([date(2024, 1, 5), date(2024, 4, 2)])`: a date is the midnight of `tz`."""

    timestamps: InitVar[Iterable[datetime | date]]
    tz: str = "UTC"
    text: str = field(init=False)
    daily: bool = field(init=False)
    moments: array[int] = field(init=False)

    def __post_init__(self, timestamps: Iterable[datetime | date]) -> None:
        zone = find_zone(self.tz)
        given: object = timestamps
        if isinstance(given, str | bytes) or not isinstance(given, Iterable):
            raise UsageError(f"Custom takes a list of datetimes or dates, got {given!r}.")
        found: set[int] = set()
        for number, one in enumerate(timestamps, 1):
            if number > MOMENTS_MAX:
                raise UsageError(f"Custom takes at most {MOMENTS_MAX:,} timestamps, got more.")
            found.add(_custom_micros(one, number, self.tz))
        if not found:
            raise UsageError("Custom takes at least one datetime or date, got none.")
        moments = array("q", sorted(found))
        if moments[0] < CALENDAR_FIRST_AT or moments[-1] >= CALENDAR_END_AT:
            raise UsageError("The timestamps of Custom lie between 0001-01-03 and 9999-12-29.")
        digest = blake2b(moments.tobytes(), digest_size=8).hexdigest()
        text = f"custom {len(moments)} {digest} {self.tz}"
        self._set(moments=moments, daily=is_daily(moments, zone), text=text)

    def between(self, start: int, end: int) -> Sequence[int]:
        """Those in [start, end), in order, each once."""
        moments = self.moments
        return moments[bisect_left(moments, start) : bisect_left(moments, end)]

    def before(self, at: int, count: int) -> Sequence[int]:
        """The newest `count` at or before a moment, in order; fewer if there are no more."""
        high = bisect_right(self.moments, at)
        return self.moments[max(0, high - max(0, count)) : high]


def _custom_micros(one: object, number: int, tz: str) -> int:
    if isinstance(one, datetime):
        if one.tzinfo is None:
            raise UsageError(
                f"Timestamp {number} of Custom, {one.isoformat()}, has no time zone; "
                "give it one, or write a date."
            )
        return utc_micros(one)
    if isinstance(one, date):
        local = (one - EPOCH.date()).days * DAY_SECONDS
        return first_occurrences((local,), find_zone(tz))[0] * MICROSECONDS
    raise UsageError(f"Timestamp {number} of Custom is neither a datetime nor a date: {one!r}.")


class _Sessions(NamedTuple):
    moments: array[int]
    tz: str
    is_daily: bool
    first: date  # days that the package knows
    last: date
    start: int  # where they begin and end there, microseconds since 1970 UTC
    end: int


@dataclass(frozen=True, eq=False, repr=False)
class Exchange(CalendarBase):
    """`Exchange("XNYS")`: the closes of the New York Stock Exchange."""

    code: str
    at: Literal["close", "open"] = "close"
    text: str = field(init=False)

    def __post_init__(self) -> None:
        given: object = self.code
        if not isinstance(given, str) or not 1 <= len(given) <= CODE_LENGTH_MAX:
            raise UsageError(f'An exchange is named by its code, such as "XNYS", got {given!r}.')
        side: object = self.at
        if side not in ("close", "open"):
            raise UsageError(f'Exchange takes at="close" or at="open", got {side!r}.')
        self._set(text=f"exchange {given} {side}")

    @property
    def tz(self) -> str:
        """The zone of the exchange."""
        return _sessions(self.code, self.at).tz

    @property
    def daily(self) -> bool:
        """Whether a local day has at most one."""
        return _sessions(self.code, self.at).is_daily

    def between(self, start: int, end: int) -> Sequence[int]:
        """Those in [start, end), in order, each once."""
        sessions = _sessions(self.code, self.at)
        if start >= end:
            return array("q")
        self._check(sessions, start, end)
        moments = sessions.moments
        return moments[bisect_left(moments, start) : bisect_left(moments, end)]

    def before(self, at: int, count: int) -> Sequence[int]:
        """The newest `count` at or before a moment, in order; fewer if there are no more."""
        sessions = _sessions(self.code, self.at)
        self._check(sessions, sessions.start, at + 1)
        high = bisect_right(sessions.moments, at)
        return sessions.moments[max(0, high - max(0, count)) : high]

    def _check(self, sessions: _Sessions, start: int, end: int) -> None:
        """Refuse a range that the package has no sessions for."""
        if start < sessions.start or end > sessions.end:
            raise UsageError(
                f"The sessions of {self.code} are known from {sessions.first} to {sessions.last}; "
                "ask for a range within, or see whether a newer exchange-calendars knows more."
            )


@lru_cache(maxsize=EXCHANGES_KEPT)
def _sessions(code: str, side: str) -> _Sessions:
    try:
        import exchange_calendars
    except ImportError as error:
        raise UsageError(
            f"Exchange({code!r}) needs the package exchange-calendars; "
            "install penstock with the extra `calendars`."
        ) from error
    codes = exchange_calendars.get_calendar_names(include_aliases=True)
    if code not in codes:
        from difflib import get_close_matches

        near = get_close_matches(code.upper(), codes, 3, 0.5)
        hint = f"; the nearest known ones are {', '.join(near)}" if near else ""
        raise UsageError(f"There is no exchange {code!r}{hint}.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # between that package and pandas
            kind = type(exchange_calendars.get_calendar(code, **PROBE))
            earliest, latest = kind.bound_min(), kind.bound_max()
            first = max(FIRST_DAY, earliest.date()) if earliest is not None else FIRST_DAY
            last = min(LAST_DAY, latest.date()) if latest is not None else LAST_DAY
            known = kind(start=first.isoformat(), end=last.isoformat())
            times = known.closes if side == "close" else known.opens
            micros = times.dt.tz_convert(None).to_numpy().astype("datetime64[us]").astype("int64")
    except Exception as error:
        raise UsageError(
            f"The installed exchange-calendars cannot compute the sessions of {code} "
            f"({type(error).__name__}); try another version of it, or of pandas."
        ) from error
    moments = array("q", sorted(set(micros.tolist())))
    zone = ZoneInfo(str(known.tz))
    start, end = day_bounds(first, zone)[0] * MICROSECONDS, day_bounds(last, zone)[1] * MICROSECONDS
    return _Sessions(moments, zone.key, is_daily(moments, zone), first, last, start, end)
