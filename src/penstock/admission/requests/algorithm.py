# SPDX-License-Identifier: Apache-2.0
"""The protocol of a limit algorithm, and what is learned from one run to the next.

An algorithm is fed with grants and outcomes and asked for a window and a send time; the controller
enforces both, and the static caps above them. Pure: time and chance come in as arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from penstock.model.request import RequestReleaseOutcome

# What is beyond these was not learned, but damaged.
CEILING_MAX = 1e7  # in flight
CONFIDENCE_MAX = 1_000_000
RATE_MIN, RATE_MAX = 1e-5, 1e12  # per second: one a day, and as declared ones
LATENCY_SECONDS_MAX = 3_600.0  # pace follows it

#: A refusal for longer is about a quota that is used up, of an hour or a day. It is waited out, and
#: says nothing of how many requests may be in flight, or of how many a second.
QUOTA_SECONDS = 300.0

#: A pause of so long that a provider asks for is told to the other processes of the store, which
#: read it once a second: a shorter one would be over about when they hear of it.
SHARED_SECONDS = 5.0


class LimitMode(StrEnum):
    """What the provider seems to limit."""

    CONCURRENCY = "concurrency"
    REQUESTS = "requests"  # per second
    TOKENS = "tokens"  # per second


class LimitChange(StrEnum):
    """What an outcome did to a limit, as events report it."""

    DECREASED = "decreased"
    INCREASED = "increased"
    SOFT_CEILING_RECOVERED = "soft_ceiling_recovered"  # above the level of the last refusal
    FULLY_RECOVERED = "fully_recovered"  # at the maximum, no cool-down


class LearnedLimit(msgspec.Struct, frozen=True):
    """What is stored of a limit from one run to the next."""

    ceiling: float | None = None  # in flight when it was refused; None: never
    confidence: int = 0  # refusals in a row that agreed on it
    mode: LimitMode = LimitMode.CONCURRENCY
    rate: float | None = None  # per second, of what the mode counts
    latency_seconds: float | None = None


def read_learned(document: str) -> LearnedLimit | None:
    """Decode a learned limit; None if it is damaged, or of another version."""
    try:
        found = msgspec.json.decode(document, type=LearnedLimit)
    except msgspec.MsgspecError:
        return None
    return found if _is_sane(found) else None


def _is_sane(found: LearnedLimit) -> bool:
    """Refuse what cannot have been learned: a run would not recover from a rate of nothing."""
    return (
        (found.ceiling is None or 0 < found.ceiling <= CEILING_MAX)
        and 0 <= found.confidence <= CONFIDENCE_MAX
        and (found.rate is None or RATE_MIN <= found.rate <= RATE_MAX)
        and (found.latency_seconds is None or 0 <= found.latency_seconds <= LATENCY_SECONDS_MAX)
    )


class LimitAlgorithm(Protocol):
    """One adaptive limit."""

    @property
    def blocked_until(self) -> float:
        """Monotonic: nothing leaves before."""
        ...

    @property
    def ceiling(self) -> float | None:
        """Where it was refused; None: never."""
        ...

    @property
    def consecutive_refusals(self) -> int: ...

    def set_max(self, effective_max: int) -> None:
        """Set the maximum of the static caps: 1 ≤ window ≤ effective_max holds from now on."""
        ...

    def window(self, now: float, in_flight: int) -> int:
        """Return how many may be in flight now; at least 1. It grows with time."""
        ...

    def grows_at(self, now: float, in_flight: int) -> float:
        """Return when the window may exceed what is in flight, though nothing ends; inf: never."""
        ...

    def send_at(self, now: float, in_flight: int, tokens: float) -> float:
        """Return when a request of so many tokens may leave: now, later, or (inf) after an end.

        Cool-down, pace, mirrored buckets of the provider; not the window.
        """
        ...

    def granted(self, now: float, in_flight_before: int, tokens: float) -> Any:  # noqa: ANN401
        """Count a request that leaves; the returned mark comes back with its end."""
        ...

    def ended(
        self,
        now: float,
        in_flight_after: int,
        mark: Any,  # noqa: ANN401 (its own)
        ending: RequestReleaseOutcome,
    ) -> Sequence[LimitChange]:
        """Learn from the end of a request. Local outcomes change nothing."""
        ...

    def pause(self, now: float, seconds: float) -> None:
        """Let nothing leave for so long: another process was told so. Nothing is learned."""
        ...

    def learned(self) -> LearnedLimit:
        """Return what the next run may start from."""
        ...
