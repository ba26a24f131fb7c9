# SPDX-License-Identifier: Apache-2.0
"""How does a user say which slices of another dataset one needs?"""

from __future__ import annotations

import re
from datetime import timedelta

from penstock.errors import UsageError
from penstock.model.dataset import Need, Rule

LOOKBACK_MAX = 1_000_000  # slices
SHOWN_MAX = 80  # characters of a name in a sentence

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,127}")
_MICROSECOND = timedelta(microseconds=1)


def latest(name: str) -> Need:
    """The newest slice at or before a timestamp."""
    return Need(dataset=_name(name), rule=Rule.LATEST)


def exact(name: str) -> Need:
    """The slice of that very timestamp."""
    return Need(dataset=_name(name), rule=Rule.EXACT)


def lookback(name: str, count: int) -> Need:
    """The newest `count` slices at or before a timestamp."""
    given: object = count
    if not isinstance(given, int) or isinstance(given, bool) or not 1 <= given <= LOOKBACK_MAX:
        raise UsageError(
            f"A lookback of {name!r} takes from 1 to {LOOKBACK_MAX:,} slices, got {given!r}."
        )
    return Need(dataset=_name(name), rule=Rule.LOOKBACK, count=given)


def window(name: str, duration: timedelta) -> Need:
    """All slices of so long a time, up to and with the timestamp."""
    given: object = duration
    if not isinstance(given, timedelta) or given <= timedelta():
        raise UsageError(f"A window of {name!r} takes a timedelta above 0, got {given!r}.")
    return Need(dataset=_name(name), rule=Rule.WINDOW, micros=given // _MICROSECOND)


def _name(name: object) -> str:
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    shown = name[:SHOWN_MAX] if isinstance(name, str) else name
    raise UsageError(
        "A dataset has a name of at most 128 letters, digits, `_`, `.` and `-` that begins with a "
        f"letter, got {shown!r}."
    )
