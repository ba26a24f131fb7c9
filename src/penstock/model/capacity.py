# SPDX-License-Identifier: Apache-2.0
"""How much could a run do at once: as configured, as it is, and as it was at most?

A capacity plan explains a run and steers nothing.
"""

from __future__ import annotations

import msgspec

#: What one fact can be: a number, a word, or numbers by name.
CapacityFact = int | float | str | dict[str, float] | None


class CapacityValue(msgspec.Struct, frozen=True):
    """One value, and where it is from."""

    value: CapacityFact
    source: str = ""  # who said so; empty: nobody did
    fallback_from: str | None = None  # the setting that nobody made, so that a default counts
    missing_reason: str | None = None  # why there is no value


class AsyncCapacityPlan(msgspec.Struct, frozen=True):
    """The capacity of one run. What was observed is in `observed_maxima` only."""

    configured: dict[str, CapacityValue] = {}  # known at the start
    runtime_snapshot: dict[str, CapacityValue] = {}  # when the plan was written
    observed_maxima: dict[str, CapacityValue] = {}  # the most at once, so far


def missing(reason: str) -> CapacityValue:
    """There is no value, and this is why."""
    return CapacityValue(None, missing_reason=reason)
