# SPDX-License-Identifier: Apache-2.0
"""The tree of providers, models and domains, with their gates and who waits at them.

A provider has models, a model has domains. They are made when the first request asks for them, from
what was declared and this process's share of it, and made anew when either changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from math import inf

import msgspec

from penstock.admission.requests.account import AccountGate
from penstock.admission.requests.alarms import Alarm, AlarmHeap
from penstock.admission.requests.algorithm import LimitAlgorithm
from penstock.admission.requests.fair_queue import RequestFairQueue
from penstock.admission.requests.gate import Blocked, Gate
from penstock.admission.requests.policy import DEFAULT_MAX, ProcessShare, ProviderPolicy
from penstock.model.provider import ProviderModelKey, RequestResourceKey
from penstock.model.request import LeakCounters, RequestOutcome

MODELS_KEPT = 8_192  # beyond, those are forgotten that nobody uses and that have learned nothing

#: A limit for this provider (its policy), of at most so many requests, beginning now.
MakeAlgorithm = Callable[[ProviderPolicy, ProviderModelKey, int, float], LimitAlgorithm]


class DomainLevel:
    """One domain of a model: what one resource key stands for."""

    def __init__(self, key: RequestResourceKey, model: ModelLevel) -> None:
        self.key = key
        self.model = model
        self.gate = Gate("/".join(key))
        self.limited = self.gate  # the one with the algorithm
        self.gates: tuple[Gate, ...] = ()  # those that can keep a request back
        self.active_leases = 0
        self.last_outcome: RequestOutcome | None = None
        self.leaks = LeakCounters()

    def count_leak(self, name: str) -> None:
        """Count one more release that was refused, or error of an algorithm."""
        count: int = getattr(self.leaks, name)
        self.leaks = msgspec.structs.replace(self.leaks, **{name: count + 1})


class ModelLevel:
    """One provider's model: its gate, its domains, and who waits for it."""

    def __init__(self, key: ProviderModelKey, policy: ProviderPolicy, provider: ProviderLevel):
        self.key = key
        self.policy = policy
        self.provider = provider
        self.gate = Gate(f"{key.provider}/{key.model}")
        self.domains: dict[str, DomainLevel] = {}
        self.queue = RequestFairQueue()
        self.has_domain_limits = False
        self.is_denied = False  # this process has no slot
        self.effective_max = 1
        self.alarm: Alarm | None = None  # it sleeps until then
        self.closed_for_all = False  # whoever comes meanwhile changes nothing
        self.cooldown_alarm: Alarm | None = None  # of the end of its cool-down
        self.cooldown_until = -inf
        self.in_line = False  # of its provider
        self.tag = 0.0  # when its next turn is there

    def is_idle(self, now: float) -> bool:
        """Return whether it could be forgotten and made anew without a difference."""
        return (
            not self.queue
            and not self.gate.in_flight
            and not self.in_line
            and self.cooldown_until <= now
            and all(_is_unused(gate, now) for gate in self._gates())
        )

    def _gates(self) -> Iterator[Gate]:
        yield self.gate
        for domain in self.domains.values():
            yield domain.gate


class ProviderLevel:
    """One provider: its gate, and the models with waiters that could leave, in turn."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.gate = Gate(name)
        self.account = AccountGate()
        self.is_limited = False
        self.alarm: Alarm | None = None
        self.closed_for_all = False
        self.line: list[tuple[float, int, ModelLevel]] = []
        self.models: dict[ProviderModelKey, ModelLevel] = {}
        self.waiting = 0  # in all of them
        self._turns = 0
        self._v = 0.0

    def join(self, model: ModelLevel) -> None:
        """Queue a model that has a waiter which may be able to leave."""
        if model.in_line:
            return
        model.in_line = True
        self._turns += 1
        model.tag = max(model.tag, self._v)
        heappush(self.line, (model.tag, self._turns, model))

    def first(self) -> ModelLevel | None:
        """Return the model whose turn it is, and drop those for which nobody waits any more."""
        while self.line:
            model = self.line[0][2]
            if model.queue:
                return model
            self.leave()
        return None

    def leave(self) -> None:
        """Drop the first model: none of its waiters can leave."""
        _, _, model = heappop(self.line)
        model.in_line = False

    def served(self, weight: int) -> None:
        """Charge the first model for a request that has left: others come before its next."""
        _, _, model = heappop(self.line)
        self._v = max(self._v, model.tag)
        model.tag += 1.0 / weight
        model.in_line = False
        if model.queue:
            self.join(model)


class ProviderTree:
    """Owns all levels, their declared policies, and this process's share."""

    def __init__(
        self,
        policies: Iterable[ProviderPolicy],
        make_algorithm: MakeAlgorithm,
        share: ProcessShare,
    ) -> None:
        self._policies = {policy.name: policy for policy in policies}
        self._make_algorithm = make_algorithm
        self.share = share
        self.providers: dict[str, ProviderLevel] = {}
        self.models: dict[ProviderModelKey, ModelLevel] = {}
        self.resources: dict[RequestResourceKey, DomainLevel] = {}
        self._models_kept = MODELS_KEPT

    def __repr__(self) -> str:
        return f"<ProviderTree {len(self.providers)} providers, {len(self.models)} models>"

    def policy(self, provider: str) -> ProviderPolicy:
        return self._policies.get(provider) or ProviderPolicy(provider)

    def make(self, resource: RequestResourceKey, now: float) -> DomainLevel:
        """Make the level of a resource that nobody has asked for yet."""
        key = resource.provider_model
        model = self.models.get(key) or self.make_model(key, now)
        domain = DomainLevel(resource, model)
        if model.has_domain_limits:
            domain.gate.algorithm = self._algorithm(model, now)
        model.domains[resource.domain] = self.resources[resource] = domain
        _settle(domain)
        return domain

    def provider(self, name: str, now: float) -> ProviderLevel:
        """Return the level of a provider; it is made if nobody has asked for it yet."""
        found = self.providers.get(name)
        if found is None:
            found = self.providers[name] = ProviderLevel(name)
            self._set_provider(found, now)
        return found

    def set_policy(self, policy: ProviderPolicy, now: float) -> list[ModelLevel]:
        """Change a policy and return the models that it is about."""
        self._policies[policy.name] = policy
        return self._refresh([policy.name], now)

    def set_share(self, share: ProcessShare, now: float) -> list[ModelLevel]:
        """Change this process's share of every cap and return all models."""
        self.share = share
        return self._refresh([*self.providers], now)

    def _refresh(self, names: list[str], now: float) -> list[ModelLevel]:
        changed: list[ModelLevel] = []
        for provider in [self.providers[name] for name in names if name in self.providers]:
            self._set_provider(provider, now)
            for model in provider.models.values():
                self._set_model(model, now)
                changed.append(model)
        return changed

    def make_model(self, key: ProviderModelKey, now: float) -> ModelLevel:
        """Make the level of a model that nobody has asked for yet."""
        if len(self.models) >= self._models_kept:
            self._forget_idle(now)
        provider = self.provider(key.provider, now)
        model = ModelLevel(key, self.policy(key.provider), provider)
        self.models[key] = provider.models[key] = model
        self._set_model(model, now)
        return model

    def _set_provider(self, provider: ProviderLevel, now: float) -> None:
        caps = self.policy(provider.name).caps
        provider.gate.set_caps(self._slots(caps.max_parallel), caps, 1 / self.share.count, now)
        provider.is_limited = provider.gate.is_limited

    def _set_model(self, model: ModelLevel, now: float) -> None:
        before, policy = model.policy, self.policy(model.key.provider)
        model.policy = policy
        caps = policy.model_caps(model.key.model)
        model.gate.set_caps(self._slots(caps.max_parallel), caps, 1 / self.share.count, now)
        both = [cap for cap in (model.gate.cap, model.provider.gate.cap) if cap is not None]
        model.is_denied = 0 in both
        model.effective_max = max(1, min(both, default=self.share.of(DEFAULT_MAX)))
        is_new = not model.has_domain_limits and model.gate.algorithm is None
        if is_new or (before.algorithm, before.aimd) != (policy.algorithm, policy.aimd):
            model.has_domain_limits = policy.algorithm == "aimd"
            model.gate.algorithm = None if model.has_domain_limits else self._algorithm(model, now)
            for domain in model.domains.values():
                own = self._algorithm(model, now) if model.has_domain_limits else None
                domain.gate.algorithm = own
        for gate in (model.gate, *(domain.gate for domain in model.domains.values())):
            if gate.algorithm is not None:
                gate.algorithm.set_max(model.effective_max)
        for domain in model.domains.values():
            _settle(domain)

    def _algorithm(self, model: ModelLevel, now: float) -> LimitAlgorithm:
        return self._make_algorithm(model.policy, model.key, model.effective_max, now)

    def _slots(self, cap: int | None) -> int | None:
        return None if cap is None else self.share.of(cap)

    def _forget_idle(self, now: float) -> None:
        for key in [key for key, model in self.models.items() if model.is_idle(now)]:
            model = self.models.pop(key)
            del model.provider.models[key]
            for domain in model.domains.values():
                del self.resources[domain.key]
        self._models_kept = max(MODELS_KEPT, 2 * len(self.models))


def _settle(domain: DomainLevel) -> None:
    """Note which of its three gates can keep a request back, and which has the algorithm."""
    model = domain.model
    domain.limited = domain.gate if model.has_domain_limits else model.gate
    domain.gates = tuple(
        gate for gate in (domain.gate, model.gate, model.provider.gate) if gate.is_limited
    )


def _is_unused(gate: Gate, now: float) -> bool:
    for bucket in (gate.requests, gate.tokens):
        if bucket is not None and bucket.ready_at(now, bucket.size) > now:
            return False
    return gate.algorithm is None or gate.algorithm.ceiling is None


class LevelAlarms:
    """Owns which levels are awake, and when blocked ones wake.

    A level has one alarm at most; without one, the next release wakes it.
    """

    def __init__(self) -> None:
        self._awake: dict[ProviderLevel, None] = {}
        self._alarms: AlarmHeap[ModelLevel | ProviderLevel] = AlarmHeap()

    def __repr__(self) -> str:
        return f"<LevelAlarms {len(self._awake)} awake, {len(self._alarms)} alarms>"

    @property
    def is_any_awake(self) -> bool:
        return bool(self._awake)

    def block(self, level: ModelLevel | ProviderLevel, blocked: Blocked) -> None:
        """Let a level sleep until it may have room; closed for all, not even newcomers wake it."""
        if level.alarm is not None:
            self._alarms.cancel(level.alarm)
        until = blocked.until
        level.alarm = None if until == inf else self._alarms.add(until, level)
        level.closed_for_all = blocked.for_all

    def wake_model(self, model: ModelLevel) -> None:
        """Wake a model for which something has changed: its waiters are tried again."""
        self._open(model)
        provider = model.provider
        if model.queue:
            provider.join(model)
        # Also if nobody waits there any more: it may have been first, and others behind it.
        if provider.line and not provider.closed_for_all:
            self._awake[provider] = None

    def wake_provider(self, provider: ProviderLevel) -> None:
        """Wake a provider for which something has changed: its models are tried again."""
        self._open(provider)
        if provider.line:
            self._awake[provider] = None

    def wake_due(self, now: float) -> None:
        """Wake the levels whose alarms are due."""
        while (level := self._alarms.take(now)) is not None:
            if isinstance(level, ModelLevel):
                self.wake_model(level)
            else:
                self.wake_provider(level)

    def next_awake(self) -> ProviderLevel | None:
        return self._awake.popitem()[0] if self._awake else None

    def next_due(self) -> float | None:
        return self._alarms.next_due()

    def clear(self) -> None:
        self._alarms.clear()
        self._awake.clear()

    def _open(self, level: ModelLevel | ProviderLevel) -> None:
        if level.alarm is not None:
            self._alarms.cancel(level.alarm)
            level.alarm = None
        level.closed_for_all = False
