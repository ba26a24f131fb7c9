# SPDX-License-Identifier: Apache-2.0
"""Is a series of samples flat, as far as it can tell?"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import median

HOUR = 3600.0
MIB_PER_HOUR_MAX = 1.0
NOISE_MIB_MIN = 1.0  # arenas come and go in steps of this size, whatever the program does
SLOPE_SECONDS_MIN = 60.0  # a shorter window says nothing about a slope
GROWTH_MIB_MAX = 32.0  # in such a window: what caches and pools may take while they fill
POOL_MAX = 8  # threads and descriptors that may join meanwhile
POINTS_MAX = 200  # of one fit; more are thinned out


@dataclass(frozen=True)
class Sample:
    """One process at one moment."""

    at: float
    rss_mib: float
    descriptors: int
    threads: int


def sample(pid: int, at: float) -> Sample | None:
    """Look at a process; None if it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines())
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
        rss_mib = int(fields["VmRSS"].split()[0]) / 1024
        return Sample(at, rss_mib, descriptors, int(fields["Threads"]))
    except (OSError, KeyError):
        return None


@dataclass(frozen=True)
class Trend:
    """A robust line through samples: the median of the slopes between all pairs (Theil and Sen)."""

    per_hour: float
    noise: float  # median distance of the samples from the line
    hours: float

    @classmethod
    def of(cls, points: Sequence[tuple[float, float]]) -> Trend:
        step = max(len(points) // POINTS_MAX, 1)
        some = points[::step]
        slopes = [(b - a) / (t - s) for (s, a), (t, b) in combinations(some, 2) if t > s]
        slope = median(slopes) if slopes else 0.0
        middle = median(value - slope * at for at, value in some)
        noise = median(abs(value - slope * at - middle) for at, value in some)
        hours = (some[-1][0] - some[0][0]) / HOUR
        return cls(slope * HOUR, noise, hours)

    @property
    def limit_per_hour(self) -> float:
        """The steepest rise that is let pass: 1 MiB an hour, and what noise alone could feign.

        Over a window of h hours, noise of n MiB at both ends looks like a slope of up to 2n/h; in a
        day that is nothing, in a minute it is all.
        """
        noise = max(3 * self.noise, NOISE_MIB_MIN)
        return MIB_PER_HOUR_MAX + 2 * noise / max(self.hours, 1e-9)


def not_flat(name: str, samples: Sequence[Sample]) -> list[str]:
    """What grows in one process, as sentences."""
    trend = Trend.of([(s.at, s.rss_mib) for s in samples])
    broken = []
    grown = samples[-1].rss_mib - samples[0].rss_mib
    is_long = trend.hours * HOUR >= SLOPE_SECONDS_MIN
    if not is_long:
        if grown > GROWTH_MIB_MAX:
            broken.append(f"{name}: memory grew by {grown:.1f} MiB")
    elif trend.per_hour > trend.limit_per_hour:
        broken.append(
            f"{name}: memory grows by {trend.per_hour:.1f} MiB an hour, allowed are "
            f"{trend.limit_per_hour:.1f}"
        )
    half = len(samples) // 2
    for what in ("descriptors", "threads"):
        early = median(getattr(s, what) for s in samples[:half])
        late = median(getattr(s, what) for s in samples[half:])
        if late > early + (1 if is_long else POOL_MAX):
            broken.append(f"{name}: {what} grow from {early:.0f} to {late:.0f}")
    return broken
