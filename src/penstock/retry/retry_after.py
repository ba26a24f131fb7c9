# SPDX-License-Identifier: Apache-2.0
"""How long does a `Retry-After` header ask us to wait?

The grammar is that of RFC 9110 and nothing else: ASCII digits, or an HTTP-date in one of its three
forms. `float()` and lenient date parsers accept far more (`NaN`, `inf`, `1_000`, full-width
digits), and a wait made of those is an endless or a negative one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime

WAIT_SECONDS_MAX = 900.0  # a longer wait is cut to this
DATE_LENGTH_MAX = 40  # characters; the longest HTTP-date has 33
SECONDS_DIGITS_MAX = 9  # more digits than this need no arithmetic: they exceed the maximum

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTH = f"(?P<month>{'|'.join(_MONTHS)})"
_TIME = "(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})"
_SHORT_DAY = "(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_LONG_DAY = "(?:Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday)"

_DIGITS = re.compile("[0-9]+")
_DATES = (
    # Sun, 06 Nov 1994 08:49:37 GMT
    re.compile(f"{_SHORT_DAY}, (?P<day>[0-9]{{2}}) {_MONTH} (?P<year>[0-9]{{4}}) {_TIME} GMT"),
    # Sunday, 06-Nov-94 08:49:37 GMT
    re.compile(f"{_LONG_DAY}, (?P<day>[0-9]{{2}})-{_MONTH}-(?P<year>[0-9]{{2}}) {_TIME} GMT"),
    # Sun Nov  6 08:49:37 1994
    re.compile(f"{_SHORT_DAY} {_MONTH} (?P<day>[0-9]{{2}}| [0-9]) {_TIME} (?P<year>[0-9]{{4}})"),
)


def parse_retry_after(values: Sequence[str], now: float) -> float | None:
    """Return the seconds to wait, within 0 and WAIT_SECONDS_MAX.

    Args:
        values: the header's value, once per time it was sent; two contradict each other.
        now: seconds since 1970 UTC.

    Returns:
        None if there is not exactly one value or it is not what RFC 9110 allows; 0 for a past date.
    """
    if len(values) != 1:
        return None
    value = values[0].strip(" \t")
    if _DIGITS.fullmatch(value):
        digits = value.lstrip("0") or "0"
        return WAIT_SECONDS_MAX if len(digits) > SECONDS_DIGITS_MAX else clamp(float(digits))
    at = _parse_date(value, now)
    return None if at is None else clamp(at - now)


def clamp(seconds: float) -> float:
    """Cut a wait to 0…WAIT_SECONDS_MAX."""
    return min(max(0.0, seconds), WAIT_SECONDS_MAX)


def _parse_date(value: str, now: float) -> float | None:
    if len(value) > DATE_LENGTH_MAX:
        return None
    for form in _DATES:
        if found := form.fullmatch(value):
            break
    else:
        return None
    year = int(found["year"])
    if len(found["year"]) == 2:
        year = _full_year(year, now)
    second = 59 if found["second"] == "60" else int(found["second"])  # a leap second
    try:
        return datetime(
            year,
            _MONTHS.index(found["month"]) + 1,
            int(found["day"]),
            int(found["hour"]),
            int(found["minute"]),
            second,
            tzinfo=UTC,
        ).timestamp()
    except ValueError:  # a day, hour or year that does not exist
        return None


def _full_year(two_digits: int, now: float) -> int:
    # RFC 9110: a year that seems to be more than 50 years ahead is the latest past one that fits.
    this_year = datetime.fromtimestamp(now, UTC).year
    year = this_year - this_year % 100 + two_digits
    return year - 100 if year > this_year + 50 else year
