# SPDX-License-Identifier: Apache-2.0
"""A token bucket: a rate limit that refills with time."""

from __future__ import annotations

from penstock.errors import UsageError

BURST_SECONDS = 1.0  # a full bucket holds so much of the rate, and at least one


class TokenBucket:
    """Owns one level that refills with time. Pure: time comes in, on a clock that never jumps.

    The level is never negative: what was used beyond it is owed, and paid before anything is
    granted again. A request larger than the bucket waits for a full one, and owes the rest.
    """

    __slots__ = ("_at", "_level", "_owed", "rate", "size")

    def __init__(self, rate_per_second: float, now: float, size: float | None = None) -> None:
        if not rate_per_second > 0:
            raise UsageError(f"A rate is more than 0 per second, got {rate_per_second}.")
        self.rate = rate_per_second
        self.size = max(1.0, rate_per_second * BURST_SECONDS) if size is None else size
        if not self.size > 0:
            raise UsageError(f"The size of a bucket is more than 0, got {size}.")
        self._level = self.size
        self._owed = 0.0
        self._at = now

    def __repr__(self) -> str:
        return (
            f"<TokenBucket {self._level:g} of {self.size:g}, {self.rate:g}/s, owes {self._owed:g}>"
        )

    def available(self, now: float) -> float:
        """What could be taken now."""
        self._refill(now)
        return self._level

    def ready_at(self, now: float, amount: float) -> float:
        """When so much could be taken; now if it could be at once."""
        self._refill(now)
        missing = min(amount, self.size) - self._level + self._owed
        return now if missing <= 0 else now + missing / self.rate

    def take(self, now: float, amount: float) -> None:
        """Take so much, whether it is there or not: what is not is owed."""
        self._refill(now)
        taken = min(self._level, amount)
        self._level -= taken
        self._owed += amount - taken

    def give(self, now: float, amount: float) -> None:
        """Put back what was taken and not used."""
        self._refill(now)
        paid = min(self._owed, amount)
        self._owed -= paid
        self._level = min(self.size, self._level + amount - paid)

    def settle(self, now: float, reserved: float, used: float) -> None:
        """So much was taken ahead, and so much was used in the end."""
        if used > reserved:
            self.take(now, used - reserved)
        elif used < reserved:
            self.give(now, reserved - used)

    def _refill(self, now: float) -> None:
        gained = max(0.0, now - self._at) * self.rate
        self._at = max(self._at, now)
        paid = min(self._owed, gained)
        self._owed -= paid
        self._level = min(self.size, self._level + gained - paid)
