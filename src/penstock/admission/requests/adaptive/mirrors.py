# SPDX-License-Identifier: Apache-2.0
"""Mirrors of the provider's own token buckets, kept from its rate limit headers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

import msgspec

from penstock.model.request import Quota, QuotaReading

SLOWER = 0.998  # × the refill that was announced
RESERVE = 0.03  # of a bucket, against errors of the estimates
RESERVE_OF_REQUEST = 0.4  # × its own tokens: their number is a guess
TRUST_IN_MORE = 0.5  # of a reading that is higher than ours; a lower one is taken wholly
WAIT_MIN_SECONDS = 0.005
WAIT_MAX_SECONDS = 900.0  # then the provider is asked, whatever its headers said


class Sent(msgspec.Struct, frozen=True, gc=False):
    """The buckets when a request left: the reply's reading is of that moment."""

    at: float
    requests: float  # sent by then, itself included
    tokens: float
    levels: Mapping[Quota, tuple[float, float]] | None  # what was left, and corrections by then


class _Mirror:
    """One bucket of the provider."""

    __slots__ = ("at", "corrected", "level", "rate", "size")

    def __init__(self, level: float, rate: float, size: float, now: float) -> None:
        self.level = level
        self.rate = rate
        self.size = size
        self.at = now
        self.corrected = 0.0

    def refill(self, now: float) -> None:
        self.level = min(self.size, self.level + (now - self.at) * self.rate)
        self.at = now

    def needed(self, quota: Quota, amount: float) -> float:
        """Return the level that a request of so much needs."""
        guess = RESERVE_OF_REQUEST * amount if quota is Quota.TOKENS else 0.0
        return min(self.size, amount + max(RESERVE * self.size, guess))


class Mirrors:
    """Owns a copy of each bucket that replies report. Empty until one does."""

    __slots__ = ("_mirrors", "_requests", "_sent_at", "_tokens")

    def __init__(self) -> None:
        self._mirrors: dict[Quota, _Mirror] = {}
        self._requests = 0.0  # sent in all
        self._tokens = 0.0
        self._sent_at = -inf

    def __len__(self) -> int:
        return len(self._mirrors)

    def ready_at(self, now: float, tokens: float) -> float:
        """Return when there is enough for a request of so many tokens."""
        ready = now
        if now >= self._sent_at + WAIT_MAX_SECONDS:
            return now
        for quota, mirror in self._mirrors.items():
            mirror.refill(now)
            missing = mirror.needed(quota, _amount(quota, tokens)) - mirror.level
            if missing > 0:
                ready = max(ready, now + max(WAIT_MIN_SECONDS, missing / mirror.rate))
        return min(ready, self._sent_at + WAIT_MAX_SECONDS)

    def sent(self, now: float, tokens: float) -> Sent:
        """Take a request that leaves out of the buckets."""
        self._requests += 1.0
        self._tokens += tokens
        self._sent_at = now
        levels = None
        if self._mirrors:
            levels = {}
            for quota, mirror in self._mirrors.items():
                mirror.refill(now)
                mirror.level -= _amount(quota, tokens)
                levels[quota] = (mirror.level, mirror.corrected)
        return Sent(now, self._requests, self._tokens, levels)

    def read(self, now: float, sent: Sent, readings: Sequence[QuotaReading]) -> None:
        """Correct the buckets by a reply, which reports them as its request found them."""
        for reading in readings:
            if reading.limit < 1 or reading.remaining < 0 or reading.window_seconds <= 0:
                continue  # seen in the wild: -1 and 0
            quota = reading.quota
            rate = SLOWER * reading.limit / reading.window_seconds
            size = max(1.0, reading.remaining + max(0.0, reading.reset_seconds) * rate)
            size = min(size, max(reading.limit, reading.remaining, 1.0))
            mirror = self._mirrors.get(quota)
            if mirror is None:
                since = self._requests - sent.requests
                if quota is Quota.TOKENS:
                    since = self._tokens - sent.tokens
                level = reading.remaining + (now - sent.at) * rate - since
                self._mirrors[quota] = _Mirror(max(0.0, min(size, level)), rate, size, now)
                continue
            mirror.refill(now)
            mirror.rate, mirror.size = rate, size
            found = None if sent.levels is None else sent.levels.get(quota)
            if found is not None:
                level, corrected = found
                error = reading.remaining - (level + mirror.corrected - corrected)
                error = error if error < 0 else TRUST_IN_MORE * error
                mirror.level = min(size, mirror.level + error)
                mirror.corrected += error

    def explains_refusal(self, tokens: float) -> bool:
        """Return whether a bucket is so low that a refusal needs no other reason."""
        return any(
            mirror.level < 2 * _amount(quota, tokens) + RESERVE * mirror.size
            for quota, mirror in self._mirrors.items()
        )


def _amount(quota: Quota, tokens: float) -> float:
    return 1.0 if quota is Quota.REQUESTS else tokens
