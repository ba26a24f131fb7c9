# SPDX-License-Identifier: Apache-2.0
"""How is the load of a provider's resource read? As copies, which change nothing."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from penstock.admission.requests.algorithm import LimitAlgorithm
from penstock.admission.requests.controller import AdaptiveRequestAdmissionController
from penstock.admission.requests.levels import DomainLevel, ModelLevel
from penstock.model.pressure import PressureSnapshot, ProviderModelPressure
from penstock.model.provider import ProviderModelKey, RequestResourceKey


class RequestPressureReader:
    """Reads snapshots of one controller, each consistent in itself. Belongs to its loop."""

    def __init__(
        self, core: AdaptiveRequestAdmissionController, monotonic: Callable[[], float]
    ) -> None:
        self._core = core
        self._monotonic = monotonic

    def snapshot(self, key: Hashable) -> PressureSnapshot | None:
        """Of a resource, of a model over its domains, or of a provider (its name) over its models.

        None: no request has asked for it yet.
        """
        now = self._monotonic()
        levels = self._core.levels
        if isinstance(key, RequestResourceKey):
            domain = levels.resources.get(key)
            return None if domain is None else self._of_domain(domain, now)
        if isinstance(key, ProviderModelKey):
            model = levels.models.get(key)
            return None if model is None else self._of_model(model, now)
        if isinstance(key, str) and key in levels.providers:
            return self._of_provider(key, now)
        return None

    def models(self) -> list[ProviderModelPressure]:
        """Every provider's model that was asked for, by name."""
        now = self._monotonic()
        models = self._core.levels.models
        return [self._aggregate(models[key], now) for key in sorted(models)]

    def model(self, key: ProviderModelKey) -> ProviderModelPressure | None:
        found = self._core.levels.models.get(key)
        return None if found is None else self._aggregate(found, self._monotonic())

    def _of_domain(self, domain: DomainLevel, now: float) -> PressureSnapshot:
        model = domain.model
        gate = domain.limited
        blocked_until, rest = _cooldown(gate.algorithm, now)
        return PressureSnapshot(
            _limit(model, gate.limit(now)),
            domain.gate.in_flight,
            model.queue.waiting(domain.key.domain),
            rest,
            domain.key,
            now,
            self._core.changes,
            0 if model.is_denied else model.effective_max,
            domain.active_leases,
            blocked_until,
            None if gate.algorithm is None else gate.algorithm.ceiling,
            0 if gate.algorithm is None else gate.algorithm.consecutive_refusals,
            domain.last_outcome,
            domain.leaks,
        )

    def _of_model(self, model: ModelLevel, now: float) -> PressureSnapshot:
        whole = self._aggregate(model, now)
        return PressureSnapshot(
            whole.limit,
            whole.in_flight,
            whole.waiters,
            whole.cooldown_seconds,
            None,
            now,
            whole.sequence,
            whole.effective_max,
            whole.active_leases,
            whole.blocked_until,
            whole.ceiling,
            whole.consecutive_refusals,
        )

    def _of_provider(self, name: str, now: float) -> PressureSnapshot:
        """The sum over its models; it cools down if all of them do."""
        levels = self._core.levels
        models = [
            self._aggregate(model, now)
            for model in levels.models.values()
            if model.key.provider == name
        ]
        gate = levels.providers[name].gate
        limit = sum(model.limit for model in models)
        rest = min((model.cooldown_seconds for model in models), default=0.0)
        return PressureSnapshot(
            limit if gate.cap is None else min(limit, gate.cap),
            gate.in_flight,
            sum(model.waiters for model in models),
            rest,
            None,
            now,
            self._core.changes,
            sum(model.effective_max for model in models) if gate.cap is None else gate.cap,
            sum(model.active_leases for model in models),
            now + rest if rest > 0 else None,
        )

    def _aggregate(self, model: ModelLevel, now: float) -> ProviderModelPressure:
        domains = {name: self._of_domain(domain, now) for name, domain in model.domains.items()}
        policy = model.policy
        key = model.key
        if model.has_domain_limits:
            limit = sum(one.limit for one in domains.values())
            rest = min((one.cooldown_seconds for one in domains.values()), default=0.0)
            blocked_until = now + rest if rest > 0 else None
        else:
            limit = _limit(model, model.gate.limit(now))
            blocked_until, rest = _cooldown(model.gate.algorithm, now)
        ceilings = [one.ceiling for one in domains.values() if one.ceiling is not None]
        return ProviderModelPressure(
            key,
            now,
            self._core.changes,
            policy.algorithm,
            0 if model.is_denied else model.effective_max,
            min(limit, model.effective_max),
            model.gate.in_flight,
            sum(one.active_leases for one in domains.values()),
            len(model.queue),
            rest,
            blocked_until,
            max(ceilings, default=None),
            max((one.consecutive_refusals for one in domains.values()), default=0),
            policy.model_caps(key.model).max_parallel,
            policy.caps.max_parallel,
            model.provider.gate.in_flight,
            policy.contributors.get(key.model, ()),
            domains,
        )


def _cooldown(algorithm: LimitAlgorithm | None, now: float) -> tuple[float | None, float]:
    if algorithm is None or algorithm.blocked_until <= now:
        return None, 0.0
    return algorithm.blocked_until, algorithm.blocked_until - now


def _limit(model: ModelLevel, limit: int | None) -> int:
    if model.is_denied:
        return 0
    return model.effective_max if limit is None else min(limit, model.effective_max)
