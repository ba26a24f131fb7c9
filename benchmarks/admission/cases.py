# SPDX-License-Identifier: Apache-2.0
"""Which providers is control scored against, and what could one that knows them reach?"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.admission.providers import (
    Bucket,
    Concurrent,
    Congested,
    FixedWindow,
    Latency,
    Noisy,
    Provider,
    Shifting,
    Tenants,
)
from benchmarks.admission.simulation import Simulation

MEAN = Latency().mean
SLOW = Latency(15.0)
OUTAGE = (200.0, 230.0)
STEP_DOWN, STEP_UP = 120, 300  # seconds
BURST_CREDIT = 200.0  # requests of a large burst that the oracle counts


@dataclass(frozen=True, slots=True)
class Sizes:
    """Lognormal tokens of a request, and how well a client guesses them."""

    mean: float = 1_500.0
    sigma: float = 0.7
    guess_sigma: float = 0.2
    most: float = 6.0  # × the mean: one above the bucket's size could never be served

    def draw(self, rand: random.Random) -> tuple[float, float]:
        """True tokens, guessed tokens."""
        size = self.mean * math.exp(self.sigma * rand.gauss(0, 1) - self.sigma**2 / 2)
        size = min(size, self.most * self.mean)
        return size, size * math.exp(self.guess_sigma * rand.gauss(0, 1))


@dataclass(frozen=True, slots=True)
class Case:
    """One provider with hidden limits."""

    name: str
    provider: Callable[[Simulation], Provider]
    rate: Callable[[float], float]  # requests per second of the oracle, at a time
    extra: float = 0.0  # requests of the first burst
    seconds: int = 600
    sizes: Sizes | None = None
    span: int = 10  # seconds over which a rate is measured


def _step(time: float) -> int:
    return 16 if STEP_DOWN <= time < STEP_UP else 64


def _limit(limit: int) -> Callable[[float], float]:
    return lambda _: limit


def _per_second(rate: float) -> Callable[[float], float]:
    return lambda _: rate


def _concurrent(
    name: str, limit: int, retry_after: float | None, latency: Latency | None = None
) -> Case:
    latency = latency or Latency()
    is_slow = latency.mean > MEAN
    return Case(
        name,
        lambda sim: Concurrent(sim, _limit(limit), latency, retry_after),
        _per_second(limit / latency.mean),
        seconds=1_800 if is_slow else 600,
        span=60 if is_slow else 10,
    )


CASES: tuple[Case, ...] = (
    _concurrent("P1 C=64 RA1", 64, 1.0),
    _concurrent("P1 C=64 noRA", 64, None),
    _concurrent("P1 C=8 RA1", 8, 1.0),
    _concurrent("P1 C=200 RA1", 200, 1.0),
    _concurrent("P1 C=64 slow RA5", 64, 5.0, SLOW),
    Case("P2 10/s b10 RA", lambda sim: Bucket(sim, 10, 10), _per_second(10), 10),
    Case("P2 10/s b10 noRA", lambda sim: Bucket(sim, 10, 10, says_when=False), _per_second(10), 10),
    Case("P2 10/s b1 noRA", lambda sim: Bucket(sim, 10, 1, says_when=False), _per_second(10), 1),
    Case(
        "P2 10/s rejcost",
        lambda sim: Bucket(sim, 10, 10, says_when=False, refusal_cost=1.0),
        _per_second(10),
        10,
    ),
    Case(
        "P2 window RA",
        lambda sim: FixedWindow(sim, 600, says_when=True),
        _per_second(10),
        span=60,
    ),
    Case(
        "P2 window noRA",
        lambda sim: FixedWindow(sim, 600, says_when=False),
        _per_second(10),
        span=60,
    ),
    Case(
        "P3 TPM hdr",
        lambda sim: Bucket(sim, 15_000, 150_000, by_tokens=True, tells=True),
        _per_second(10),
        100,
        sizes=Sizes(),
    ),
    Case(
        "P3 TPM hdr+C16",
        lambda sim: Bucket(sim, 15_000, 150_000, by_tokens=True, tells=True, most_at_once=16),
        _per_second(16 / MEAN),
        sizes=Sizes(),
    ),
    Case(
        "P3 TPM RA",
        lambda sim: Bucket(sim, 15_000, 150_000, by_tokens=True),
        _per_second(10),
        100,
        sizes=Sizes(),
    ),
    Case(
        "P3 TPM noRA",
        lambda sim: Bucket(sim, 15_000, 15_000, by_tokens=True, says_when=False),
        _per_second(10),
        10,
        sizes=Sizes(),
    ),
    Case(
        "P4 step RA1",
        lambda sim: Concurrent(sim, _step, retry_after=1.0),
        lambda time: _step(time) / MEAN,
    ),
    Case("P4 tenants RA1", lambda sim: Tenants(sim, 64), _per_second(64 / MEAN)),
    Case("P5 congest", lambda sim: Congested(sim, 32, 30.0), _per_second(32 / MEAN)),
    Case(
        "P5b lat shift",
        lambda sim: Shifting(sim, 64, 200.0, 4.0),
        lambda time: 64 / MEAN / (4 if time >= 200 else 1),
    ),
    Case(
        "P6 5xx+outage",
        lambda sim: Noisy(sim, 64, 0.05, OUTAGE),
        lambda time: 0.0 if OUTAGE[0] <= time < OUTAGE[1] else 64 / (MEAN + 0.05 / 0.95 * 0.3),
    ),
)
STRICT = "P2 10/s b1 noRA"
STEP = "P4 step RA1"
CONGESTION = "P5 congest"
TENANTS = "P4 tenants RA1"


def worlds(count: int, seed: int) -> list[Case]:
    """Providers with parameters drawn at random."""
    rand = random.Random(seed)
    return [_world(number, rand) for number in range(count)]


def _log_uniform(rand: random.Random, low: float, high: float) -> float:
    return math.exp(rand.uniform(math.log(low), math.log(high)))


def _world(number: int, rand: random.Random) -> Case:
    latency = Latency(_log_uniform(rand, 0.4, 15))
    retry_after = rand.choice([None, 1.0, 1.0, 5.0, 15.0])
    kind = rand.choice(["concurrency", "rate", "step", "tokens"])
    seconds = int(max(600, 60 * latency.mean))
    about = f"{number:02} {kind}, {latency.mean:.1f} s, Retry-After {retry_after or 'none'}"
    if kind in ("concurrency", "step"):
        most = int(_log_uniform(rand, 4, 230))
        low = max(2, most // 3) if kind == "step" else most

        def limit(time: float) -> float:
            return low if 0.3 * seconds <= time < 0.6 * seconds else most

        return Case(
            f"{about}, C={most}",
            lambda sim: Concurrent(sim, limit, latency, retry_after),
            lambda time: limit(time) / latency.mean,
            seconds=seconds,
        )
    by_tokens = kind == "tokens"
    rate = min(_log_uniform(rand, 1, 60), 200 / latency.mean)
    burst = max(2.0, rate * rand.choice([1.0, 5.0, 60.0]))
    burst = max(burst, 12.0) if by_tokens else burst
    tells = by_tokens and rand.random() < 0.5
    unit = Sizes().mean if by_tokens else 1.0
    return Case(
        f"{about}, {rate:.1f}/s burst {burst:.0f}{' headers' if tells else ''}",
        lambda sim: Bucket(
            sim,
            rate * unit,
            burst * unit,
            latency=latency,
            by_tokens=by_tokens,
            tells=tells,
            says_when=retry_after is not None,
        ),
        _per_second(rate),
        min(burst, BURST_CREDIT),
        seconds,
        Sizes() if by_tokens else None,
    )
