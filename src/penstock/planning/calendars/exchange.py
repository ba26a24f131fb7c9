# SPDX-License-Identifier: Apache-2.0
"""A calendar of trading sessions: the close or the open of each session of an exchange.

The sessions come from the package exchange-calendars, which is large and imported at first use.
"""

from __future__ import annotations

import warnings
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import lru_cache
from typing import Literal, NamedTuple
from zoneinfo import ZoneInfo

from penstock.errors import UsageError
from penstock.model.dataset import MICROSECONDS
from penstock.planning.calendars.local import CalendarBase
from penstock.planning.zones import day_of, is_daily

FIRST_DAY = date(1970, 1, 1)  # of sessions that are asked for
LAST_DAY = date(2049, 12, 31)
EXCHANGES_KEPT = 256  # calendars of sessions
PROBE = {"start": "2024-01-01", "end": "2024-03-01"}  # a range that each of them knows
CODE_LENGTH_MAX = 20  # characters


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
            f"The installed exchange-calendars fails at the sessions of {code} "
            f"({type(error).__name__}); try another version of it, or of pandas."
        ) from error
    moments = array("q", sorted(set(micros.tolist())))
    zone = ZoneInfo(str(known.tz))
    start, end = day_of(first, zone)[0] * MICROSECONDS, day_of(last, zone)[1] * MICROSECONDS
    return _Sessions(moments, zone.key, is_daily(moments, zone), first, last, start, end)
