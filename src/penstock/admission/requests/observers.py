# SPDX-License-Identifier: Apache-2.0
"""Who hears at once that a request waits, leaves or has ended, and why others cannot leave?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from penstock.admission.requests.controller import AdaptiveRequestAdmissionController
from penstock.admission.requests.decisions import RequestAdmissionLease, RequestDenialReason
from penstock.admission.requests.fair_queue import RequestWaiter
from penstock.admission.requests.gate import Blocked, Gate
from penstock.admission.requests.policy import ProcessShare, ProviderPolicy
from penstock.admission.requests.provider_tree import (
    MODELS_KEPT,
    DomainLevel,
    MakeAlgorithm,
    ModelLevel,
    ProviderLevel,
    Sleeping,
)
from penstock.model.lease import ReleaseResult
from penstock.model.provider import ANY, ProviderModelKey
from penstock.model.request import RequestAdmissionItem, RequestReleaseOutcome
from penstock.model.run import LimitKind


class RequestWatch(Protocol):
    """Hears every change, in the order in which they happen; it must be quick."""

    def waits(self, item: RequestAdmissionItem) -> None: ...

    def waits_no_more(self, item: RequestAdmissionItem) -> None: ...

    def sent(self, item: RequestAdmissionItem) -> None: ...

    def replied(self, item: RequestAdmissionItem) -> None: ...

    def kept_back(self, model: ProviderModelKey, kind: LimitKind, level: float | None) -> None:
        """Nobody can leave for a model now; with `*` for a provider."""
        ...


class RequestMaxima:
    """The most that there was of one model at once."""

    __slots__ = ("domains", "in_flight", "limit", "waiting")

    def __init__(self) -> None:
        self.domains: set[str] = set()
        self.in_flight = 0
        self.waiting = 0
        self.limit = 0


class WatchedRequestAdmission(AdaptiveRequestAdmissionController):
    """Request admission that lets somebody watch. Decides nothing itself."""

    def __init__(
        self,
        policies: Iterable[ProviderPolicy],
        make_algorithm: MakeAlgorithm,
        watch: RequestWatch,
        *,
        share: ProcessShare | None = None,
        generation: str = "1",
    ) -> None:
        super().__init__(policies, make_algorithm, share=share, generation=generation)
        self._watch = watch
        self._sleeping = _WatchedSleeping(watch)
        self.in_flight_max = 0  # of all models together
        self._maxima: dict[ProviderModelKey, RequestMaxima] = {}

    def maxima(self) -> dict[ProviderModelKey, RequestMaxima]:
        """The most of each model that is known now."""
        known = self.levels.models
        self._maxima = {key: found for key, found in self._maxima.items() if key in known}
        return self._maxima

    def enqueue(self, item: RequestAdmissionItem, now: float) -> RequestWaiter:
        waiter = super().enqueue(item, now)
        if waiter.denied is None:
            self._watch.waits(item)
            model = self.levels.models[item.resource.provider_model]
            most = self._most(model)
            most.waiting = max(most.waiting, len(model.queue))
        return waiter

    def release(
        self, lease: RequestAdmissionLease, outcome: RequestReleaseOutcome, now: float
    ) -> ReleaseResult:
        result = super().release(lease, outcome, now)
        if result.released:
            self._watch.replied(lease.item)
        return result

    def _grant(
        self, domain: DomainLevel, item: RequestAdmissionItem, tokens: float, now: float
    ) -> RequestAdmissionLease:
        lease = super()._grant(domain, item, tokens, now)
        self._watch.sent(item)
        most = self._most(domain.model)
        most.domains.add(domain.key.domain)
        most.in_flight = max(most.in_flight, domain.model.gate.in_flight)
        most.limit = max(most.limit, lease.current_adaptive_limit)
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        return lease

    def _left(self, waiter: RequestWaiter, model: ModelLevel) -> None:
        super()._left(waiter, model)
        self._watch.waits_no_more(waiter.item)

    def _most(self, model: ModelLevel) -> RequestMaxima:
        most = self._maxima.get(model.key)
        if most is None:
            if len(self._maxima) >= MODELS_KEPT:
                self.maxima()
            most = self._maxima[model.key] = RequestMaxima()
        return most


class _WatchedSleeping(Sleeping):
    __slots__ = ("_watch",)

    def __init__(self, watch: RequestWatch) -> None:
        super().__init__()
        self._watch = watch

    def sleep(self, level: ModelLevel | ProviderLevel, blocked: Blocked) -> None:
        super().sleep(level, blocked)
        if isinstance(level, ProviderLevel):
            key, cap, gates = ProviderModelKey(level.name, ANY), level.gate.cap, [level.gate]
        else:
            key, cap, gates = level.key, level.effective_max, [level.gate]
            if level.has_domain_limits:
                gates += [domain.gate for domain in level.domains.values()]
        self._watch.kept_back(key, *_cause(gates, cap, blocked))


def _cause(gates: list[Gate], cap: int | None, blocked: Blocked) -> tuple[LimitKind, float | None]:
    """Which limit keeps requests back, and where it stands."""
    if blocked.reason is RequestDenialReason.COOLDOWN:
        return LimitKind.COOLDOWN, None
    if blocked.reason is RequestDenialReason.BUDGET:  # tokens may suffice for a smaller one
        kind = LimitKind.RPM if blocked.for_all else LimitKind.TPM
        buckets = [gate.requests if blocked.for_all else gate.tokens for gate in gates]
        rates = [bucket.rate * 60 for bucket in buckets if bucket is not None]
        return kind, min(rates, default=None)
    if cap is not None and gates[0].in_flight >= cap:
        return LimitKind.MAX_PARALLEL, float(cap)
    windows = [gate.window for gate in gates if gate.algorithm is not None and gate.window]
    level = float(sum(windows)) if windows else None
    full = any(gate.window is not None and gate.in_flight >= gate.window for gate in gates)
    return (LimitKind.ADAPTIVE_LIMIT if full else LimitKind.LEARNED_RATE), level
