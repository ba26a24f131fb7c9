# SPDX-License-Identifier: Apache-2.0
"""Detects the kind of limit: requests in flight, requests per second, or tokens per second.

What it limits is alike each time it refuses; the others are not. So between refusals we measure all
three, and follow the one that moves least.
"""

from __future__ import annotations

from math import log
from typing import NamedTuple

from penstock.admission.requests.algorithm import LimitMode

SAMPLE_MIN = 15  # accepted requests between two refusals, to measure a rate
SAMPLE_MIN_QUICK = 5  # while a rate is only suspected
SECONDS_MIN = 1.0
SMOOTHING = 0.4
MOVED = 0.2  # if all three have moved more, the limit itself has
ERROR_MAX = 0.4
LEAD = 0.03  # by which another must be better
SUSPICION = 5  # measurements for which a suspected rate is kept
DOORS = 3  # closed ones with answers between
UNKNOWN = {LimitMode.CONCURRENCY: 0.0, LimitMode.REQUESTS: 0.12, LimitMode.TOKENS: 0.16}
SUSPECTED = {LimitMode.CONCURRENCY: 0.3, LimitMode.REQUESTS: 0.05, LimitMode.TOKENS: 0.16}


class Rates(NamedTuple):
    """What was accepted between two refusals."""

    requests: float  # per second
    tokens: float  # per second
    seconds: float

    def of(self, mode: LimitMode) -> float:
        return self.tokens if mode is LimitMode.TOKENS else self.requests


class ModeDetector:
    """Owns what refusals have in common."""

    __slots__ = (
        "_answers_at_door",
        "_doors",
        "_errors",
        "_kept",
        "_level",
        "_previous",
        "_requests",
        "_since",
        "_tokens",
        "mode",
    )

    def __init__(self) -> None:
        self.mode = LimitMode.CONCURRENCY
        self._errors = dict(UNKNOWN)
        self._kept = 0  # measurements for which the mode stays what it is
        self._since: float | None = None  # the last refusal that was measured from
        self._requests = 0.0
        self._tokens = 0.0
        self._previous: Rates | None = None
        self._level = 0
        self._doors = 0  # closed ones with answers between
        self._answers_at_door = 0

    def resume(self, mode: LimitMode) -> None:
        """Begin with the mode of an earlier run."""
        self.mode = mode
        self._errors = dict(UNKNOWN) | {mode: 0.0}

    def sent(self, tokens: float) -> None:
        self._requests += 1.0
        self._tokens += tokens

    def not_accepted(self, tokens: float) -> None:
        """One of those that were sent was refused."""
        self._requests -= 1.0
        self._tokens -= tokens

    def closed_door(self, answers: int) -> bool:
        """Count a refusal with nothing in flight, after so many answers; True: it is a rate."""
        self._doors = self._doors + 1 if answers > self._answers_at_door else 0
        self._answers_at_door = answers
        return self._doors >= DOORS

    def suspect_rate(self) -> None:
        """It is refused with almost nothing in flight: take it for a rate for a while."""
        self.mode = LimitMode.REQUESTS
        self._doors = 0
        self._errors = dict(SUSPECTED)
        self._kept = SUSPICION

    def reject_rate(self) -> None:
        """The suspicion was wrong."""
        self.mode = LimitMode.CONCURRENCY
        self._errors = dict(UNKNOWN)
        self._kept = 0

    def refused(
        self, now: float, level: int, *, is_quick: bool = False, has_moved: bool = False
    ) -> Rates | None:
        """A refusal with so many in flight: the rates since the one before, if enough happened.

        `has_moved`: a limit that was sure until now is another, so there is nothing to compare.
        """
        if self._since is None:
            self._restart(now)
            return None
        seconds = now - self._since
        quick = is_quick or self._kept > 0
        least = SAMPLE_MIN_QUICK if quick else SAMPLE_MIN
        if self._requests < least or seconds <= SECONDS_MIN:
            return None
        # One that was refused may have been sent before, with more tokens than all since.
        tokens = max(self._tokens, self._requests)
        rates = Rates(self._requests / seconds, tokens / seconds, seconds)
        if self._previous is not None and not has_moved:
            self._compare(rates, self._previous, level, 1.0 / self._requests)
        self._previous = rates
        self._level = level
        self._restart(now)
        self._kept = max(0, self._kept - 1)
        if not self._kept:
            best = min(self._errors, key=self._errors.__getitem__)
            if self._errors[best] + LEAD < self._errors[self.mode]:
                self.mode = best
        return rates

    def _compare(self, rates: Rates, previous: Rates, level: int, noise: float) -> None:
        moved = {
            LimitMode.CONCURRENCY: max(0.0, abs(log(level / self._level)) - 1.0 / level),
            LimitMode.REQUESTS: max(0.0, abs(log(rates.requests / previous.requests)) - noise),
            LimitMode.TOKENS: max(0.0, abs(log(rates.tokens / previous.tokens)) - noise),
        }
        if min(moved.values()) >= MOVED:
            return
        for mode, by in moved.items():
            error = self._errors[mode]
            self._errors[mode] = error + SMOOTHING * (min(by, ERROR_MAX) - error)

    def _restart(self, now: float) -> None:
        self._since = now
        self._requests = self._tokens = 0.0
