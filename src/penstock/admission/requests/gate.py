# SPDX-License-Identifier: Apache-2.0
"""The gate of one level of a provider: in flight, static cap, token buckets, limit algorithm.

A provider, its model, and a domain of that: each counts what is in flight, and may have a static
cap, buckets of requests and tokens, and a limit algorithm. The caps hold at every instant.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from penstock.admission.requests.algorithm import LimitAlgorithm
from penstock.admission.requests.decisions import RequestAdmissionDenied, RequestDenialReason
from penstock.admission.requests.policy import RequestCaps
from penstock.admission.requests.token_bucket import TokenBucket
from penstock.errors import InternalError
from penstock.model.request import RequestAdmissionItem

MINUTE = 60.0
ASK_AGAIN_SECONDS = 0.05  # for a limit that should have grown by now and has not


class Blocked(NamedTuple):
    """Not now: why, and when it is worth to ask again (inf: after the next end)."""

    until: float
    reason: RequestDenialReason
    for_all: bool  # whoever asks: no request is small enough


class Gate:
    """Owns the count and the limits of one level."""

    __slots__ = ("algorithm", "cap", "in_flight", "name", "requests", "tokens", "window")

    def __init__(self, name: str) -> None:
        self.name = name
        self.cap: int | None = None  # None: none at this level
        self.in_flight = 0
        self.requests: TokenBucket | None = None
        self.tokens: TokenBucket | None = None
        self.algorithm: LimitAlgorithm | None = None
        self.window: int | None = None  # when it was asked last

    def __repr__(self) -> str:
        return f"<Gate {self.name}: {self.in_flight} of {self.cap} in flight>"

    @property
    def is_limited(self) -> bool:
        """True if it can keep anything back at all."""
        return not (
            self.cap is None
            and self.requests is None
            and self.tokens is None
            and self.algorithm is None
        )

    def set_caps(self, cap: int | None, caps: RequestCaps, share: float, now: float) -> None:
        """What was declared has changed; what was used of the buckets stays used."""
        self.cap = cap
        self.requests = _bucket(self.requests, caps.rpm, share, now)
        self.tokens = _bucket(self.tokens, caps.tpm, share, now)

    def limit(self, now: float) -> int | None:
        """How many may be in flight now; None: as many as anybody likes."""
        if self.algorithm is None:
            self.window = self.cap
        else:
            window = self.algorithm.window(now, self.in_flight)
            self.window = window if self.cap is None or window < self.cap else self.cap
        return self.window

    def blocked(self, now: float, tokens: float) -> Blocked | None:
        """What keeps a request of so many tokens back at this level."""
        algorithm = self.algorithm
        limit = self.limit(now)
        if limit is not None and self.in_flight >= limit:
            return self._full(now)
        if algorithm is not None:
            until = algorithm.send_at(now, self.in_flight, tokens)
            if until > now:
                if now < algorithm.blocked_until:
                    return Blocked(algorithm.blocked_until, RequestDenialReason.COOLDOWN, True)
                return Blocked(until, RequestDenialReason.NO_CAPACITY, False)
        if self.requests is not None:
            until = self.requests.ready_at(now, 1.0)
            if until > now:
                return Blocked(until, RequestDenialReason.BUDGET, True)
        if self.tokens is not None:
            until = self.tokens.ready_at(now, tokens)
            if until > now:
                return Blocked(until, RequestDenialReason.BUDGET, False)
        return None

    def denial(
        self, item: RequestAdmissionItem, blocked: Blocked, now: float
    ) -> RequestAdmissionDenied:
        """What is said to a request that was kept back here."""
        numbers = {"in_flight": float(self.in_flight)}
        if self.window is not None:
            numbers["limit"] = float(self.window)
        if blocked.until == inf:
            return RequestAdmissionDenied(item, blocked.reason, numbers=numbers)
        rest = blocked.until - now
        return RequestAdmissionDenied(item, blocked.reason, rest, blocked.until, numbers)

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

    def give(self, now: float, reserved: float, used: float, was_sent: bool) -> None:
        """One less is in flight."""
        if self.in_flight <= 0:
            raise InternalError(f"More requests of {self.name} have ended than were in flight.")
        self.in_flight -= 1
        if self.requests is not None and not was_sent:
            self.requests.give(now, 1.0)
        if self.tokens is not None and used != reserved:
            self.tokens.settle(now, reserved, used)

    def _full(self, now: float) -> Blocked:
        algorithm = self.algorithm
        if algorithm is None:
            return Blocked(inf, RequestDenialReason.NO_CAPACITY, True)
        if now < algorithm.blocked_until:
            return Blocked(algorithm.blocked_until, RequestDenialReason.COOLDOWN, True)
        if self.cap is not None and self.in_flight >= self.cap:
            return Blocked(inf, RequestDenialReason.NO_CAPACITY, True)
        until = algorithm.grows_at(now, self.in_flight)
        if until <= now:  # it has not grown: whoever says so must not keep everybody busy
            until = now + ASK_AGAIN_SECONDS
        return Blocked(until, RequestDenialReason.NO_CAPACITY, True)


def _bucket(
    before: TokenBucket | None, per_minute: float | None, share: float, now: float
) -> TokenBucket | None:
    if per_minute is None:
        return None
    rate = per_minute / MINUTE * share
    if before is not None and before.rate == rate:
        return before
    bucket = TokenBucket(rate, now)
    if before is not None:
        missing = (before.ready_at(now, before.size) - now) * before.rate
        bucket.take(now, missing)
    return bucket
