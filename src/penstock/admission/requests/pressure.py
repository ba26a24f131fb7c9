# SPDX-License-Identifier: Apache-2.0
"""Snapshots of the pressure on providers, models and domains: limit, in flight, waiters."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from math import inf

from msgspec.structs import replace

from penstock.admission.requests.algorithm import LimitAlgorithm
from penstock.admission.requests.controller import AdaptiveRequestAdmissionController
from penstock.admission.requests.provider_tree import DomainLevel, ModelLevel, ProviderLevel
from penstock.model.provider import ANY, ProviderModelKey, RequestResourceKey
from penstock.model.request import PressureSnapshot, ProviderModelPressure

EXACT_MODELS = 64  # of a provider with more, the sum over them may be a moment old
SUM_SECONDS = 0.1


class RequestPressureReader:
    """Reads snapshots of one controller, each consistent in itself. Belongs to its loop."""

    def __init__(
        self, core: AdaptiveRequestAdmissionController, monotonic: Callable[[], float]
    ) -> None:
        self._core = core
        self._monotonic = monotonic
        #: By provider: when, what all its models may have in flight, until when all cool down.
        self._sums: dict[str, tuple[float, int, float]] = {}

    def snapshot(self, key: Hashable) -> PressureSnapshot | None:
        """Return the pressure of a resource; `*` as domain: of a model, as model: of a provider.

        None: no request has asked for it yet.
        """
        if not isinstance(key, RequestResourceKey):
            return None
        now = self._monotonic()
        found = self._snapshot(key, now)
        level = self._core.tree.providers.get(key.provider)
        if found is None or level is None or not level.account.is_closed:
            return found
        until = level.account.probe_at
        rest = max(found.cooldown_seconds, until - now, 0.0)
        return replace(found, limit=min(found.limit, 1), cooldown_seconds=rest, blocked_until=until)

    def _snapshot(self, key: RequestResourceKey, now: float) -> PressureSnapshot | None:
        levels = self._core.tree
        if key.model == ANY:
            return self._of_provider(key, now) if key.provider in levels.providers else None
        if key.domain == ANY:
            model = levels.models.get(key.provider_model)
            return None if model is None else self._of_model(model, key, now)
        domain = levels.resources.get(key)
        return None if domain is None else self._of_domain(domain, now)

    def models(self) -> list[ProviderModelPressure]:
        """Return the pressure of every model that was asked for, by name."""
        now = self._monotonic()
        models = self._core.tree.models
        return [self._aggregate(models[key], now) for key in sorted(models)]

    def model(self, key: ProviderModelKey) -> ProviderModelPressure | None:
        found = self._core.tree.models.get(key)
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

    def _of_model(self, model: ModelLevel, key: RequestResourceKey, now: float) -> PressureSnapshot:
        whole = self._aggregate(model, now)
        return PressureSnapshot(
            whole.limit,
            whole.in_flight,
            whole.waiters,
            whole.cooldown_seconds,
            key,
            now,
            whole.sequence,
            whole.effective_max,
            whole.active_leases,
            whole.blocked_until,
            whole.ceiling,
            whole.consecutive_refusals,
        )

    def _of_provider(self, key: RequestResourceKey, now: float) -> PressureSnapshot:
        """Sum up its models; it cools down if all of them do."""
        provider = self._core.tree.providers[key.provider]
        gate = provider.gate
        captured_at, limit, blocked_until = self._sums.get(key.provider, (-inf, 0, -inf))
        if len(provider.models) <= EXACT_MODELS or now - captured_at >= SUM_SECONDS:
            limit, blocked_until = self._sum(provider, now)
            self._sums[key.provider] = (now, limit, blocked_until)
        is_cooling = now < blocked_until < inf
        return PressureSnapshot(
            limit if gate.cap is None else min(limit, gate.cap),
            gate.in_flight,
            provider.waiting,
            blocked_until - now if is_cooling else 0.0,
            key,
            now,
            self._core.changes,
            limit if gate.cap is None else gate.cap,
            gate.in_flight,
            blocked_until if is_cooling else None,
        )

    def _sum(self, provider: ProviderLevel, now: float) -> tuple[int, float]:
        """Return what all models may have in flight together, and until when all cool down."""
        limit, blocked_until = 0, inf
        for model in provider.models.values():
            gates = [model.gate]
            if model.has_domain_limits:
                gates = [domain.gate for domain in model.domains.values()]
            limit += min(model.effective_max, sum(_limit(model, gate.limit(now)) for gate in gates))
            for gate in gates:
                if gate.algorithm is not None:
                    blocked_until = min(blocked_until, gate.algorithm.blocked_until)
        return limit, blocked_until

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
