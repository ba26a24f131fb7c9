# SPDX-License-Identifier: Apache-2.0
"""What does one request have to pass, one level after the other?

A provider, its model, and a domain of that: each counts what is in flight, and may have a static
cap, buckets of requests and tokens, and a limit algorithm. The caps hold at every instant.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from penstock.admission.requests.algorithm import LimitAlgorithm
from penstock.admission.requests.caps import RequestCaps
from penstock.admission.requests.decisions import RequestDenialReason
from penstock.errors import InternalError
from penstock.limits.token_bucket import TokenBucket

MINUTE = 60.0


class Blocked(NamedTuple):
    """Not now: why, and when it is worth to ask again (inf: after the next end)."""

    until: float
    reason: RequestDenialReason


class Gate:
    """Owns the count and the limits of one level."""

    __slots__ = ("algorithm", "cap", "in_flight", "name", "requests", "tokens")

    def __init__(
        self,
        name: str,
        cap: int | None,
        caps: RequestCaps,
        share: float,
        now: float,
        algorithm: LimitAlgorithm | None = None,
    ) -> None:
        self.name = name
        self.cap = cap  # None: none at this level
        self.in_flight = 0
        self.requests = TokenBucket(caps.rpm / MINUTE * share, now) if caps.rpm else None
        self.tokens = TokenBucket(caps.tpm / MINUTE * share, now) if caps.tpm else None
        self.algorithm = algorithm

    def window(self, now: float) -> int | None:
        """How many may be in flight now; None: as many as anybody likes."""
        if self.algorithm is None:
            return self.cap
        window = self.algorithm.window(now, self.in_flight)
        return window if self.cap is None else min(window, self.cap)

    def is_full(self, now: float) -> bool:
        window = self.window(now)
        return window is not None and self.in_flight >= window

    def blocked(self, now: float, tokens: float) -> Blocked | None:
        """What keeps a request of so many tokens back at this level."""
        algorithm = self.algorithm
        if algorithm is not None and now < algorithm.blocked_until:
            return Blocked(algorithm.blocked_until, RequestDenialReason.COOLDOWN)
        if self.is_full(now):
            until = inf
            if algorithm is not None and (self.cap is None or self.in_flight < self.cap):
                until = algorithm.grows_at(now, self.in_flight)
            return Blocked(until, RequestDenialReason.NO_CAPACITY)
        until = now
        if self.requests is not None:
            until = max(until, self.requests.ready_at(now, 1.0))
        if self.tokens is not None:
            until = max(until, self.tokens.ready_at(now, tokens))
        if until > now:
            return Blocked(until, RequestDenialReason.BUDGET)
        if algorithm is not None:
            until = algorithm.send_at(now, self.in_flight, tokens)
            if until > now:
                return Blocked(until, RequestDenialReason.NO_CAPACITY)
        return None

    def take(self, now: float, tokens: float) -> object:
        """One more is in flight; what the algorithm wants back when it ends."""
        mark: object = None
        if self.algorithm is not None:
            mark = self.algorithm.granted(now, self.in_flight, tokens)
        if self.requests is not None:
            self.requests.take(now, 1.0)
        if self.tokens is not None:
            self.tokens.take(now, tokens)
        self.in_flight += 1
        return mark

    def give(self, now: float, reserved: float, used: float) -> None:
        """One less is in flight."""
        if self.in_flight <= 0:
            raise InternalError(f"More requests of {self.name} have ended than were in flight.")
        self.in_flight -= 1
        if self.tokens is not None:
            self.tokens.settle(now, reserved, used)
