# SPDX-License-Identifier: Apache-2.0
"""How is a duration written in a file?"""

from __future__ import annotations

import math
import re
from datetime import timedelta

DURATION_SECONDS_MAX = 100 * 365 * 86_400.0  # a century; more is a slip of the pen

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_TEXT = re.compile(r"(?P<number>-?[0-9]{1,15}(?:\.[0-9]{1,15})?) ?(?P<unit>[smhdw]?)", re.ASCII)


def parse_duration(value: object) -> float:
    """Turn seconds, a text such as "90s", "10m", "1h", "30d", "2w", or a timedelta into seconds.

    Raises:
        ValueError: a sentence without its subject ("must be …"), for the field's name in front.
    """
    seconds = _seconds(value)
    if seconds is None or not math.isfinite(seconds):
        raise ValueError('must be a number of seconds or a text such as "90s", "10m", "1h", "30d"')
    if abs(seconds) > DURATION_SECONDS_MAX:
        raise ValueError("must be at most 36500d")
    return seconds


def _seconds(value: object) -> float | None:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:  # an int beyond every float
            return None
    if isinstance(value, str) and (found := _TEXT.fullmatch(value.strip())):
        return float(found["number"]) * _UNITS[found["unit"]]
    return None
