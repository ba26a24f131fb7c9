# SPDX-License-Identifier: Apache-2.0
"""What does a test say about a simulated provider: its hidden limits, its manners, its faults?"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from penstock.errors import UsageError
from penstock.testing.simulated_provider.messages import SimulatedRequest

#: How rate limits are told in the headers of every reply.
HeaderStyle = Literal["openai", "anthropic", "github", "ietf", "ietf_three"]


@dataclass(frozen=True, slots=True)
class Bucket:
    """So many in a second, and a burst after a rest; a burst of 1 is strict spacing."""

    per_second: float
    burst: float = 1.0
    refusals_count: bool = False  # whether a refused call uses up quota as well

    def __post_init__(self) -> None:
        if not (self.per_second > 0 and self.burst > 0):
            raise UsageError(
                f"A bucket has a positive rate and a positive burst, got {self.per_second!r} and "
                f"{self.burst!r}."
            )

    @classmethod
    def per_minute(cls, count: float, burst: float | None = None) -> Bucket:
        """So many in a minute; without a burst all of them may come at once."""
        return cls(count / 60, count if burst is None else burst)


@dataclass(frozen=True, slots=True)
class Window:
    """So many in each window of fixed length."""

    limit: float
    seconds: float = 60.0
    refusals_count: bool = False

    def __post_init__(self) -> None:
        if not (self.limit > 0 and self.seconds > 0):
            raise UsageError(
                f"A window has a positive limit and length, got {self.limit!r} and "
                f"{self.seconds!r}."
            )


Rate = Bucket | Window


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Latencies as services have them: most near the median, some much longer."""

    median_seconds: float
    sigma: float = 0.5

    def draw(self, dice: random.Random) -> float:
        return self.median_seconds * math.exp(dice.gauss(0.0, self.sigma))


#: Seconds until a reply is complete: a constant, a distribution, or a function of the request.
Latency = float | Lognormal | Callable[[SimulatedRequest], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderRules:
    """Everything that a provider does not tell its clients."""

    concurrency: int | None = None  # calls at once; 0 refuses everything
    requests: Rate | None = None
    tokens: Rate | None = None

    retry_after: Literal["seconds", "date"] | None = "seconds"  # of a refusal; None: not told
    retry_after_seconds: float | None = None  # None: when a call may pass; of concurrency: 1
    retry_after_text: str | None = None  # told in place of a sensible value
    headers: HeaderStyle | None = None
    refusal_status: int = 429
    refusal_seconds: float = 0.01  # how long a refusal takes

    latency: Latency = 0.1
    completion_tokens_max: int = 64  # of a chat call that does not limit them itself

    failure_rate: float = 0.0  # part of the calls that are answered with `failure_status`
    failure_status: int = 503
    outages: tuple[tuple[float, float], ...] = ()  # from, to; every call fails meanwhile
    reset_rate: float = 0.0  # connections reset in the middle of a body
    hang_rate: float = 0.0  # bodies that never end
    slow_rate: float = 0.0  # bodies that come byte by byte
    slow_byte_seconds: float = 10.0
    lie_rate: float = 0.0  # status 200 with an error for a body

    def __post_init__(self) -> None:
        if self.concurrency is not None and self.concurrency < 0:
            raise UsageError(f"A concurrency is not negative, got {self.concurrency!r}.")
        for name in ("failure_rate", "reset_rate", "hang_rate", "slow_rate", "lie_rate"):
            rate: Any = getattr(self, name)
            if not 0 <= rate <= 1:
                raise UsageError(f"{name} is a part between 0 and 1, got {rate!r}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """From a moment, or from a call, on, other rules hold."""

    rules: ProviderRules
    after_seconds: float | None = None  # since the first call
    after_calls: int | None = None

    def __post_init__(self) -> None:
        if (self.after_seconds is None) == (self.after_calls is None):
            raise UsageError("A change comes either after_seconds or after_calls.")

    def due(self, seconds: float, calls: int) -> bool:
        if self.after_seconds is not None:
            return seconds >= self.after_seconds
        return self.after_calls is not None and calls >= self.after_calls
