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
from penstock.errors import InternalError, UsageError
from penstock.model.request import RequestAdmissionItem

MINUTE = 60.0
ASK_AGAIN_SECONDS = 0.05  # for a limit that should have grown by now and has not


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
        """Return what could be taken now."""
        self._refill(now)
        return self._level

    def ready_at(self, now: float, amount: float) -> float:
        """Return when so much could be taken; now if it could be at once."""
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
        """Correct what was reserved to what was used."""
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


class Blocked(NamedTuple):
    """Why a request may not leave now, and when to ask again (inf: after the next release)."""

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
        """True if it can block anything at all."""
        return not (
            self.cap is None
            and self.requests is None
            and self.tokens is None
            and self.algorithm is None
        )

    def set_caps(self, cap: int | None, caps: RequestCaps, share: float, now: float) -> None:
        """Change the declared caps; what was used of the buckets stays used."""
        self.cap = cap
        self.requests = _bucket(self.requests, caps.rpm, share, now)
        self.tokens = _bucket(self.tokens, caps.tpm, share, now)

    def limit(self, now: float) -> int | None:
        """Return how many may be in flight now; None: no limit."""
        if self.algorithm is None:
            self.window = self.cap
        else:
            window = self.algorithm.window(now, self.in_flight)
            self.window = window if self.cap is None or window < self.cap else self.cap
        return self.window

    def blocked(self, now: float, tokens: float) -> Blocked | None:
        """Return what blocks a request of so many tokens at this level; None: nothing."""
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
        """Return the denial of a request that is blocked here."""
        numbers = {"in_flight": float(self.in_flight)}
        if self.window is not None:
            numbers["limit"] = float(self.window)
        if blocked.until == inf:
            return RequestAdmissionDenied(item, blocked.reason, numbers=numbers)
        rest = blocked.until - now
        return RequestAdmissionDenied(item, blocked.reason, rest, blocked.until, numbers)

    def take(self, now: float, tokens: float) -> object:
        """Count one more in flight; return what the algorithm wants back when it ends."""
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
        """Count one less in flight, and settle its tokens."""
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
