# SPDX-License-Identifier: Apache-2.0
"""Listeners of request admission: they hear of every change at once, and decide nothing.

`RequestCounts` counts the requests of each model for the status row and the run record.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from typing import Protocol

from penstock.admission.requests.decisions import RequestAdmissionLease, RequestDenialReason
from penstock.admission.requests.gate import Blocked
from penstock.admission.requests.provider_tree import MODELS_KEPT, ModelLevel, ProviderLevel
from penstock.model.provider import ANY, ProviderModelKey
from penstock.model.request import (
    LOCAL_OUTCOMES,
    RequestAdmissionItem,
    RequestOutcome,
    RequestReleaseOutcome,
)
from penstock.model.run import LimitKind

MINUTE_SECONDS = 60
FAILURES = frozenset({RequestOutcome.PROVIDER_FAILURE, RequestOutcome.PROVIDER_TIMEOUT})


class RequestListener(Protocol):
    """Hears every change, in the order in which they happen; it must be quick."""

    def queued(self, item: RequestAdmissionItem) -> None:
        """A request waits for a permit."""
        ...

    def dequeued(self, item: RequestAdmissionItem) -> None:
        """It waits no longer, whatever the answer is."""
        ...

    def granted(self, lease: RequestAdmissionLease) -> None:
        """A request may leave."""
        ...

    def released(
        self, lease: RequestAdmissionLease, outcome: RequestReleaseOutcome, now: float
    ) -> None:
        """It has ended; what is not held, or was released before, is not heard of."""
        ...

    def held_back(self, model: ProviderModelKey, kind: LimitKind, level: float | None) -> None:
        """Nobody can leave for a model now; with `*` for a provider."""
        ...


class ModelCounts:
    """What is counted of one model: the last minute by seconds, the whole run, and the maxima."""

    __slots__ = (
        "_seconds",
        "domains",
        "failed",
        "failed_in_row",
        "failing_since",
        "in_flight",
        "in_flight_max",
        "limit_max",
        "refused",
        "requests",
        "tokens",
        "waiting",
        "waiting_max",
    )

    def __init__(self) -> None:
        self._seconds: deque[list[int]] = deque()  # second, requests, tokens
        self.requests = 0
        self.tokens = 0
        self.refused = 0
        self.failed = 0
        self.failed_in_row = 0
        self.failing_since: float | None = None  # monotonic: no good answer since then
        self.domains: set[str] = set()
        self.in_flight = self.in_flight_max = 0
        self.waiting = self.waiting_max = 0
        self.limit_max = 0  # the highest limit under which a request has left

    def add(self, now: float, tokens: int) -> None:
        """A request that was sent has ended."""
        self.requests += 1
        self.tokens += tokens
        second = int(now)
        if not self._seconds or self._seconds[-1][0] != second:
            self._forget(second)
            self._seconds.append([second, 0, 0])
        last = self._seconds[-1]
        last[1] += 1
        last[2] += tokens

    def ended(self, outcome: RequestOutcome, now: float) -> None:
        """Count how one of them has ended; what is our own doing says nothing."""
        if outcome in FAILURES:
            self.failed += 1
            self.failed_in_row += 1
        elif outcome not in LOCAL_OUTCOMES:
            self.refused += outcome is RequestOutcome.RATE_LIMITED
            self.failed_in_row = 0
        if outcome is RequestOutcome.SUCCESS:
            self.failing_since = None
        elif outcome not in LOCAL_OUTCOMES and self.failing_since is None:
            self.failing_since = now

    def last_minute(self, now: float) -> tuple[int, int]:
        """Requests and tokens."""
        self._forget(int(now))
        return sum(x[1] for x in self._seconds), sum(x[2] for x in self._seconds)

    def _forget(self, second: int) -> None:
        while self._seconds and self._seconds[0][0] <= second - MINUTE_SECONDS:
            self._seconds.popleft()


class RequestCounts:
    """Owns the counts of all models. A listener; belongs to one loop."""

    def __init__(self, known: Container[ProviderModelKey]) -> None:
        self._known = known  # models whose counts are not forgotten
        self._models: dict[ProviderModelKey, ModelCounts] = {}
        self._models_kept = MODELS_KEPT
        self.in_flight = self.in_flight_max = 0  # of all models together

    def of(self, model: ProviderModelKey) -> ModelCounts:
        """The counts of a model; of one that nobody has asked for they are all zero."""
        return self._models.get(model) or ModelCounts()

    def failing_since(self, provider: str, model: str) -> float | None:
        """Since when a model, or with `*` each model of a provider, has given no good answer.

        Monotonic; None: it has, or nobody has asked it for anything.
        """
        found = [
            counts.failing_since
            for key, counts in self._models.items()
            if key.provider == provider and model in (key.model, ANY) and counts.requests
        ]
        since = [one for one in found if one is not None]
        return max(since) if since and len(since) == len(found) else None

    def queued(self, item: RequestAdmissionItem) -> None:
        counts = self._model(item)
        counts.waiting += 1
        if counts.waiting > counts.waiting_max:
            counts.waiting_max = counts.waiting

    def dequeued(self, item: RequestAdmissionItem) -> None:
        self._model(item).waiting -= 1

    def granted(self, lease: RequestAdmissionLease) -> None:
        item = lease.item
        counts = self._model(item)
        counts.domains.add(item.resource.domain)
        counts.in_flight += 1
        if counts.in_flight > counts.in_flight_max:
            counts.in_flight_max = counts.in_flight
        if lease.current_adaptive_limit > counts.limit_max:
            counts.limit_max = lease.current_adaptive_limit
        self.in_flight += 1
        if self.in_flight > self.in_flight_max:
            self.in_flight_max = self.in_flight

    def released(
        self, lease: RequestAdmissionLease, outcome: RequestReleaseOutcome, now: float
    ) -> None:
        counts = self._model(lease.item)
        counts.in_flight -= 1
        self.in_flight -= 1
        if outcome.was_sent:
            counts.add(now, outcome.tokens_served(lease.item.tokens_estimate))
            counts.ended(outcome.outcome, now)

    def held_back(self, model: ProviderModelKey, kind: LimitKind, level: float | None) -> None:
        """Nothing is counted."""

    def _model(self, item: RequestAdmissionItem) -> ModelCounts:
        key = item.resource.provider_model
        counts = self._models.get(key)
        if counts is None:
            if len(self._models) >= self._models_kept:
                self._models = {k: one for k, one in self._models.items() if k in self._known}
                self._models_kept = max(MODELS_KEPT, 2 * len(self._models))
            counts = self._models[key] = ModelCounts()
        return counts


def limit_of(
    level: ModelLevel | ProviderLevel, blocked: Blocked
) -> tuple[ProviderModelKey, LimitKind, float | None]:
    """The limit that holds requests back: of which model or provider, which kind, and its value."""
    if isinstance(level, ProviderLevel):
        key, cap, gates = ProviderModelKey(level.name, ANY), level.gate.cap, [level.gate]
    else:
        key, cap, gates = level.key, level.effective_max, [level.gate]
        if level.has_domain_limits:
            gates += [domain.gate for domain in level.domains.values()]
    if blocked.reason in (RequestDenialReason.COOLDOWN, RequestDenialReason.ACCOUNT_CLOSED):
        return key, LimitKind.COOLDOWN, None
    if blocked.reason is RequestDenialReason.BUDGET:  # tokens may suffice for a smaller one
        kind = LimitKind.RPM if blocked.for_all else LimitKind.TPM
        buckets = [gate.requests if blocked.for_all else gate.tokens for gate in gates]
        rates = [bucket.rate * 60 for bucket in buckets if bucket is not None]
        return key, kind, min(rates, default=None)
    if cap is not None and gates[0].in_flight >= cap:
        return key, LimitKind.MAX_PARALLEL, float(cap)
    windows = [gate.window for gate in gates if gate.algorithm is not None and gate.window]
    value = float(sum(windows)) if windows else None
    full = any(gate.window is not None and gate.in_flight >= gate.window for gate in gates)
    return key, LimitKind.ADAPTIVE_LIMIT if full else LimitKind.LEARNED_RATE, value
