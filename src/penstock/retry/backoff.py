# SPDX-License-Identifier: Apache-2.0
"""How long before the next try?"""

from __future__ import annotations

import math
from dataclasses import dataclass

from penstock.errors import ConfigError, InternalError


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential delays with full jitter: anything up to a ceiling that doubles."""

    first_seconds: float  # the first ceiling
    max_seconds: float  # the last one

    def __post_init__(self) -> None:
        if not 0 < self.first_seconds <= self.max_seconds < math.inf:
            raise ConfigError(
                "A back-off needs 0 < first_seconds <= max_seconds, both finite, "
                f"got {self.first_seconds!r} and {self.max_seconds!r}."
            )

    def ceiling(self, n: float) -> float:
        """The longest delay of step n, which counts from 0 and need not be whole."""
        if not n >= 0:
            raise InternalError(f"A back-off's step must be >= 0, got {n!r}.")
        if n >= math.log2(self.max_seconds / self.first_seconds):  # also keeps exp2 finite
            return self.max_seconds
        return min(self.first_seconds * math.exp2(n), self.max_seconds)

    def delay(self, n: float, rand: float) -> float:
        """The delay of step n in seconds; `rand` is a number in [0, 1)."""
        return self.ceiling(n) * rand

    def step_after(self, seconds: float) -> float:
        """The step of something that has been put off for so long: log2(1 + seconds / first).

        Ceilings of first, 2 × first, 4 × first … reach back (2ⁿ − 1) × first after n of them, so
        the time tells the step and no count need be stored. A clock that went back gives step 0.
        """
        return math.log2(1.0 + seconds / self.first_seconds) if seconds > 0 else 0.0


NODE = Backoff(2.0, 120.0)
SERVICE = Backoff(5.0, 300.0)
DEGRADED = Backoff(30.0, 300.0)  # a schedule's unknown errors
OWN = Backoff(1.0, 60.0)  # a job's own faults, while attempts are left
