# SPDX-License-Identifier: Apache-2.0
"""Until when does nothing leave after a refusal?

A refusal of our own probe at a known ceiling is no reason to stop everything: the first strike is
forgiven, and only a second one near it stops the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

FIRST_SECONDS = 0.5  # if the provider does not say how long; doubles
MOST_SECONDS = 10.0
FAILURES_MAX = 7
JITTER = 0.1  # of a pause, added
JITTER_MAX_SECONDS = 0.25
STRIKE_LATENCIES = 2.0  # how long a strike is remembered
BREATH_LATENCIES = 0.5  # after a strike that was not a probe


class Cooldown:
    """Owns the time before which nothing leaves. Invariant: it never moves earlier."""

    __slots__ = (
        "_strike_at",
        "_strike_seconds",
        "calm_until",
        "failures",
        "last_seconds",
        "last_until",
        "seconds",
        "until",
    )

    def __init__(self) -> None:
        self.until = -inf
        self.seconds = 1.0  # the last pause, without jitter
        self.last_until = -inf  # when the pause before the present one ended
        self.last_seconds = 0.0
        self.failures = 0  # refused epochs in a row
        self.calm_until = -inf  # requests leave evenly
        self._strike_at = -inf
        self._strike_seconds = 0.0

    @property
    def strike_seconds(self) -> float:
        """How long the last strike is remembered; 0: there was none."""
        return self._strike_seconds

    def strike(self, now: float, retry_after: float, latency: float) -> bool:
        """A refusal of a probe at the ceiling: is it forgiven?"""
        seconds = max(retry_after, STRIKE_LATENCIES * latency)
        is_first = now - self._strike_at > seconds
        self._strike_at = now
        self._strike_seconds = seconds
        return is_first

    def is_of_strike(self, sent_at: float) -> bool:
        """Was a request sent before the last strike, and so is part of it?"""
        return sent_at <= self._strike_at

    def begin(self, now: float, retry_after: float, rand: Callable[[], float]) -> None:
        """Stop: for as long as the provider says, or longer each time."""
        seconds = retry_after
        if seconds <= 0:
            seconds = min(MOST_SECONDS, FIRST_SECONDS * 2.0**self.failures)
        if now >= self.until > -inf:
            self.last_until, self.last_seconds = self.until, self.seconds
        self.seconds = seconds
        jitter = rand() * min(JITTER_MAX_SECONDS, JITTER * seconds)
        self.until = max(self.until, now + seconds + jitter)

    def calm_down(self, now: float) -> None:
        """While the strike is remembered, requests leave evenly."""
        self.calm_until = now + self._strike_seconds

    def breathe(self, now: float, latency: float) -> None:
        """A strike where it should have been safe: a rate may be the limit, so let it recover."""
        self.until = max(self.until, now + BREATH_LATENCIES * latency)

    def refused(self) -> None:
        """A new epoch begins with a refusal."""
        self.failures = min(FAILURES_MAX, self.failures + 1)
