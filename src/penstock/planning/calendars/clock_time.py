# SPDX-License-Identifier: Apache-2.0
"""What does a user mean by a time of the day?"""

from __future__ import annotations

import re

from penstock.errors import UsageError

SHOWN_MAX = 80  # characters of a text in a sentence

_TIME = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9]))?")


def second_of_day(text: str) -> int:
    """Of "16:00" or "16:00:30"; UsageError if it is neither."""
    given: object = text  # whatever a user without a type checker wrote
    found = _TIME.fullmatch(text) if isinstance(given, str) else None
    if not found:
        shown = text[:SHOWN_MAX] if isinstance(given, str) else given
        raise UsageError(f'A time of the day is written as "16:00" or "16:00:30", got {shown!r}.')
    hour, minute, second = (int(part or 0) for part in found.groups())
    return hour * 3_600 + minute * 60 + second


def clock_text(second: int) -> str:
    """Canonical: "16:00", or with seconds if there are any."""
    minutes, seconds = divmod(second, 60)
    text = f"{minutes // 60:02d}:{minutes % 60:02d}"
    return f"{text}:{seconds:02d}" if seconds else text
