# SPDX-License-Identifier: Apache-2.0
"""How long is a limit kept before more is tried?

A probe beyond a known limit ends in a refusal. Probes are spaced so that what they cost stays below
a part of the throughput; while a limit is new and unconfirmed they come sooner.
"""

from __future__ import annotations

BUDGET = 0.01  # of throughput and of requests, for probing
HOLD_MIN_SECONDS = 4.0
HOLD_MAX_SECONDS = 80.0
HOLD_MAX_LATENCIES = 6.0  # or so long, if that is more
CONFIRMED = 3  # refusals in a row that agree: from here on the whole price is asked


def hold_seconds(
    per_second: float,
    cost_seconds: float,
    confidence: int,
    latency: float,
    least_seconds: float = 0.0,
) -> float:
    """From a refusal to the next probe, at so many requests per second."""
    most = max(HOLD_MAX_SECONDS, HOLD_MAX_LATENCIES * latency)
    price = max(cost_seconds, 1.0 / max(0.05, per_second)) / BUDGET
    part = 1.0 if confidence >= CONFIRMED else 2.0 ** (confidence - CONFIRMED)
    return max(HOLD_MIN_SECONDS, least_seconds, min(most, price * part))
