# SPDX-License-Identifier: Apache-2.0
"""Would a hidden rate let this call pass, and how much of it is left?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from penstock.testing.simulated_provider.rules import Bucket, Rate, Window

_DUST = 1e-9  # what rounding may take from a level


@dataclass(frozen=True, slots=True)
class QuotaState:
    """A rate as headers tell it."""

    limit: float  # in one window
    remaining: float
    window_seconds: float
    reset_seconds: float  # until all of it is there again


class RateState(Protocol):
    """How far a rate is used. Knows no other limit."""

    def wait(self, now: float, cost: float) -> float:
        """Seconds until so much may pass; 0 is now."""
        ...

    def take(self, now: float, cost: float) -> None: ...

    def state(self, now: float) -> QuotaState: ...


class BucketState:
    """A level that refills with time."""

    def __init__(self, rate: Bucket, now: float) -> None:
        self.rate = rate
        self._level = rate.burst
        self._at = now

    def wait(self, now: float, cost: float) -> float:
        self._refill(now)
        # A call that is larger than the bucket passes when the bucket is full.
        missing = min(cost, self.rate.burst) - self._level
        return missing / self.rate.per_second if missing > _DUST else 0.0

    def take(self, now: float, cost: float) -> None:
        self._refill(now)
        self._level -= cost

    def state(self, now: float) -> QuotaState:
        self._refill(now)
        rate = self.rate
        return QuotaState(
            rate.burst,
            max(0.0, self._level),
            rate.burst / rate.per_second,
            (rate.burst - self._level) / rate.per_second,
        )

    def _refill(self, now: float) -> None:
        grown = self._level + (now - self._at) * self.rate.per_second
        self._level = min(self.rate.burst, grown)
        self._at = now


class WindowState:
    """A count that begins anew with every window."""

    def __init__(self, rate: Window, now: float) -> None:
        self.rate = rate
        self._began = now
        self._used = 0.0

    def wait(self, now: float, cost: float) -> float:
        self._roll(now)
        if self._used + min(cost, self.rate.limit) <= self.rate.limit + _DUST:
            return 0.0
        return self._began + self.rate.seconds - now

    def take(self, now: float, cost: float) -> None:
        self._roll(now)
        self._used += cost

    def state(self, now: float) -> QuotaState:
        self._roll(now)
        left = max(0.0, self.rate.limit - self._used)
        rest = self._began + self.rate.seconds - now
        return QuotaState(self.rate.limit, left, self.rate.seconds, rest)

    def _roll(self, now: float) -> None:
        passed = int((now - self._began) // self.rate.seconds)
        if passed > 0:
            self._began += passed * self.rate.seconds
            self._used = 0.0


def begin(rate: Rate, now: float) -> RateState:
    """A rate of which nothing is used."""
    if isinstance(rate, Bucket):
        return BucketState(rate, now)
    return WindowState(rate, now)
