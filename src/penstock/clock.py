# SPDX-License-Identifier: Apache-2.0
"""Clocks: wall, monotonic, CPU and boot time, sleeping, and conversions of durations.

The wall clock may be set back or forward: due times, ages and days follow it. Waits and time limits
are measured with the monotonic clock, leases in a file with the boot clock (`SystemBootClock`), on
a server with the server's.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

from penstock.errors import UsageError

MICROSECONDS = 1_000_000  # per second; stored times are whole microseconds since 1970 UTC

#: Durations are seconds, timedelta or a text ("5m", "1h30m"), everywhere a user may write one.
Duration = float | timedelta | str

DURATION_SECONDS_MAX = 100 * 365 * 86_400.0  # a century; more is a slip of the pen

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_NUMBER = r"[0-9]{1,15}(?:\.[0-9]{1,15})?"
_TEXT = re.compile(  # one part, or whole ones of falling units
    rf"(?P<sign>-?)(?:(?P<number>{_NUMBER}) ?(?P<unit>[smhdw]?)|(?P<parts>"
    r"(?:[0-9]{1,15}w)?(?:[0-9]{1,15}d)?(?:[0-9]{1,15}h)?(?:[0-9]{1,15}m)?(?:[0-9]{1,15}s)?))",
    re.ASCII,
)
_PART = re.compile(r"([0-9]+)([smhdw])", re.ASCII)


class Clock(Protocol):
    """Time as the engine sees it; handed in, so that tests can own it."""

    def monotonic(self) -> float:
        """Seconds that never jump; comparable between processes of one machine."""
        ...

    def now(self) -> float:
        """Seconds since 1970 UTC; may jump."""
        ...

    def cpu(self) -> float:
        """Seconds that processors have worked for this process."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait without blocking the loop."""
        ...


class SystemClock:
    """The machine's own clocks."""

    # The functions themselves: both are asked several times per job.
    monotonic = staticmethod(time.monotonic)
    now = staticmethod(time.time)
    cpu = staticmethod(time.process_time)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@dataclass(frozen=True, slots=True)
class BootTime:
    """A moment that survives restarts of a process but not of the machine."""

    boot_id: str
    at: int  # microseconds since boot, suspended time included


class BootClock(Protocol):
    """The clock that leases of an embedded store are measured with."""

    def boot_time(self) -> BootTime: ...


class SystemBootClock:
    """Boot-time clock and boot id of this machine: jumps of the wall clock change nothing."""

    def __init__(self) -> None:
        source = Path("/proc/sys/kernel/random/boot_id")
        self._boot_id = source.read_text().strip() if source.exists() else "unknown"
        self._source = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

    def boot_time(self) -> BootTime:
        return BootTime(self._boot_id, time.clock_gettime_ns(self._source) // 1000)


def blocking_sleep(seconds: float) -> None:
    """Wait in a thread that has no loop."""
    time.sleep(seconds)


def to_seconds(duration: Duration) -> float:
    """Turn a user's duration into float seconds; UsageError if it is none."""
    seconds = _seconds(duration)
    if seconds is None:
        raise UsageError(
            'A duration is a number of seconds, a timedelta, or a text such as "90s", "5m" or '
            f'"1h30m", got {duration!r:.100}.'
        )
    return seconds


def is_duration(text: str) -> bool:
    """Whether a text is one."""
    return _seconds(text) is not None


def parse_duration(value: object) -> float:
    """Turn a duration of a file or a command line into seconds; it is at most a century.

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
        return _seconds_of(found)
    return None


def _seconds_of(found: re.Match[str]) -> float | None:
    sign = -1.0 if found["sign"] else 1.0
    if found["number"] is not None:
        return sign * float(found["number"]) * _UNITS[found["unit"]]
    parts = _PART.findall(found["parts"])
    return sign * sum(int(number) * _UNITS[unit] for number, unit in parts) if parts else None


def to_micros(seconds: float) -> int:
    """Turn seconds into whole microseconds."""
    return round(seconds * MICROSECONDS)


def to_datetime(micros: int) -> datetime:
    """Turn a stored time into an aware UTC datetime."""
    return datetime.fromtimestamp(micros / MICROSECONDS, UTC)
