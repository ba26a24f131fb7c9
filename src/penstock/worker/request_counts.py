# SPDX-License-Identifier: Apache-2.0
"""How many requests and tokens went to a model, in all and lately, and how many were in vain?"""

from __future__ import annotations

from collections import deque

from penstock.admission.requests.decisions import RequestAdmissionLease
from penstock.model.provider import ProviderModelKey
from penstock.model.release import ReleaseResult
from penstock.model.request import LOCAL_OUTCOMES, RequestOutcome, RequestReleaseOutcome
from penstock.requests.admission import RequestAdmissionController

MINUTE_SECONDS = 60
FAILURES = frozenset({RequestOutcome.PROVIDER_FAILURE, RequestOutcome.PROVIDER_TIMEOUT})


class ModelCounts:
    """The last minute of one model, second by second."""

    __slots__ = ("_seconds", "failed", "failed_in_row", "refused", "requests", "tokens")

    def __init__(self) -> None:
        self._seconds: deque[list[int]] = deque()  # second, requests, tokens
        self.requests = 0
        self.tokens = 0
        self.refused = 0
        self.failed = 0
        self.failed_in_row = 0

    def add(self, now: float, tokens: int) -> None:
        self.requests += 1
        self.tokens += tokens
        second = int(now)
        if not self._seconds or self._seconds[-1][0] != second:
            self._forget(second)
            self._seconds.append([second, 0, 0])
        last = self._seconds[-1]
        last[1] += 1
        last[2] += tokens

    def ended(self, outcome: RequestOutcome) -> None:
        """How one of them has ended; what is our own doing says nothing."""
        if outcome in FAILURES:
            self.failed += 1
            self.failed_in_row += 1
        elif outcome not in LOCAL_OUTCOMES:
            self.refused += outcome is RequestOutcome.RATE_LIMITED
            self.failed_in_row = 0

    def last_minute(self, now: float) -> tuple[int, int]:
        """Requests and tokens."""
        self._forget(int(now))
        return sum(x[1] for x in self._seconds), sum(x[2] for x in self._seconds)

    def _forget(self, second: int) -> None:
        while self._seconds and self._seconds[0][0] <= second - MINUTE_SECONDS:
            self._seconds.popleft()


class CountedAdmission(RequestAdmissionController):
    """Request admission that counts what has ended, for whoever looks."""

    counts: dict[ProviderModelKey, ModelCounts]

    def release(
        self, lease: RequestAdmissionLease, outcome: RequestReleaseOutcome
    ) -> ReleaseResult:
        result = super().release(lease, outcome)
        if result.released and outcome.was_sent:
            key = lease.item.resource.provider_model
            counts = self.counts.get(key)
            if counts is None:
                counts = self.counts[key] = ModelCounts()
            tokens = outcome.tokens_served(lease.item.tokens_estimate)
            counts.add(self._monotonic(), tokens)
            counts.ended(outcome.outcome)
        return result
