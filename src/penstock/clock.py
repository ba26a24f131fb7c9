# SPDX-License-Identifier: Apache-2.0
"""Clocks: wall, monotonic, CPU and boot time, sleeping, and conversions of durations.

The wall clock may be set back or forward: due times, ages and days follow it. Waits and time limits
are measured with the monotonic clock, leases in a file with the boot clock (`SystemBootClock`), on
a server with the server's.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

from penstock.errors import UsageError

MICROSECONDS = 1_000_000  # per second; stored times are whole microseconds since 1970 UTC

#: Durations are float seconds or timedelta, everywhere a user may write one.
Duration = float | timedelta


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
    if isinstance(duration, timedelta):
        return duration.total_seconds()
    if isinstance(duration, bool) or not isinstance(duration, int | float):
        raise UsageError(
            f"A duration is a number of seconds or a timedelta, got {duration!r}; "
            "write timedelta(hours=1), for example."
        )
    try:
        return float(duration)
    except OverflowError:  # an int beyond every float
        raise UsageError("A duration is a number of seconds that fits into a float.") from None


def to_micros(seconds: float) -> int:
    """Turn seconds into whole microseconds."""
    return round(seconds * MICROSECONDS)


def to_datetime(micros: int) -> datetime:
    """Turn a stored time into an aware UTC datetime."""
    return datetime.fromtimestamp(micros / MICROSECONDS, UTC)
