# SPDX-License-Identifier: Apache-2.0
"""May this request leave now, and if not, who is next when one may?

The pure core of request admission. It counts, decides and keeps the lines; it never waits, knows no
loop, and takes the time as an argument. `pump` grants whatever may leave; `next_due` says when it
is worth to pump again although nothing has happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from heapq import heappop, heappush
from math import inf

from penstock.admission.requests.algorithm import LimitAlgorithm
from penstock.admission.requests.caps import DEFAULT_MAX, ProcessShare, ProviderPolicy, RequestCaps
from penstock.admission.requests.decisions import (
    RequestAdmissionDecision,
    RequestAdmissionDenied,
    RequestAdmissionLease,
    RequestDenialReason,
)
from penstock.admission.requests.fair_queue import RequestFairQueue, RequestWaiter
from penstock.admission.requests.gate import Blocked, Gate
from penstock.errors import InternalError
from penstock.model.provider import ProviderModelKey, RequestResourceKey
from penstock.model.release import ReleaseReason, ReleaseResult
from penstock.model.request import RequestAdmissionItem, RequestReleaseOutcome

_RELEASED = ReleaseResult(True, ReleaseReason.RELEASED)

#: A limit for this provider (its policy), of at most so many requests, beginning now.
MakeAlgorithm = Callable[[ProviderPolicy, ProviderModelKey, int, float], LimitAlgorithm]


class _Model:
    """One provider's model: its gate, those of its domains, and who waits for it."""

    __slots__ = ("domains", "due", "gate", "key", "policy", "provider", "queue", "waits_for_turn")

    def __init__(
        self, key: ProviderModelKey, policy: ProviderPolicy, provider: _Provider, gate: Gate
    ) -> None:
        self.key = key
        self.policy = policy
        self.provider = provider
        self.gate = gate
        self.domains: dict[str, Gate] = {}
        self.queue = RequestFairQueue()
        self.due = -inf  # before this it is not worth to ask; inf: after an end
        self.waits_for_turn = False  # it stands in its provider's line


class _Provider:
    """One provider: its gate, and the models that have somebody who could leave."""

    __slots__ = ("due", "gate", "line", "tags", "turns", "v")

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.due = -inf  # before this none of its models is served; inf: after an end
        self.line: list[tuple[float, int, _Model]] = []
        self.tags: dict[ProviderModelKey, float] = {}
        self.turns = 0
        self.v = 0.0

    def join(self, model: _Model) -> None:
        """A model has somebody who may be able to leave."""
        if model.waits_for_turn:
            return
        model.waits_for_turn = True
        self.turns += 1
        tag = max(self.tags.get(model.key, self.v), self.v)
        heappush(self.line, (tag, self.turns, model))

    def leave(self) -> None:
        """The first one has nobody who can."""
        _, _, model = heappop(self.line)
        model.waits_for_turn = False

    def served(self) -> None:
        """A request of the first one has left: the others come before its next."""
        tag, _, model = heappop(self.line)
        self.v = max(self.v, tag)
        self.tags[model.key] = tag + 1.0
        model.waits_for_turn = False
        self.join(model)


class AdaptiveRequestAdmissionController:
    """Owns who is in flight and who waits, of all providers. Belongs to one loop."""

    def __init__(
        self,
        policies: Iterable[ProviderPolicy],
        make_algorithm: MakeAlgorithm,
        *,
        share: ProcessShare | None = None,
        generation: str = "1",
    ) -> None:
        self._policies = {policy.name: policy for policy in policies}
        self._make_algorithm = make_algorithm
        self._share = share or ProcessShare()
        self._generation = generation
        self._providers: dict[str, _Provider] = {}
        self._models: dict[ProviderModelKey, _Model] = {}
        self._leases: dict[int, tuple[RequestAdmissionLease, _Model]] = {}
        self._last_lease_id = 0
        self._awake: dict[_Provider, None] = {}  # something has changed there
        self._timers: list[tuple[float, int, _Model | _Provider]] = []
        self._deadlines: list[tuple[float, int, RequestWaiter]] = []
        self._entries = 0  # of both heaps: between equal times
        self._is_shut = False
        self.waiting = 0

    def __repr__(self) -> str:
        return (
            f"<AdaptiveRequestAdmissionController {len(self._leases)} in flight, "
            f"{self.waiting} waiting>"
        )

    # ── Asking ────────────────────────────────────────────────────────────────────────────────

    def try_acquire(self, item: RequestAdmissionItem, now: float) -> RequestAdmissionDecision:
        """A lease, or why not; never before those who wait already."""
        refused = self._refusal(item)
        if refused is not None:
            return refused
        model = self._model(item.resource.provider_model, now)
        if model.queue and self._is_ahead(model, item.resource.domain, now):
            return RequestAdmissionDenied(
                item,
                RequestDenialReason.QUEUED_WAITERS_AHEAD,
                numbers={"waiting": len(model.queue)},
            )
        blocked = self._blocked(model, item, now)
        if blocked is not None:
            return _denied(item, blocked, now)
        return self._grant(model, item, now)

    def enqueue(self, item: RequestAdmissionItem, now: float) -> RequestWaiter:
        """Let a request wait; `pump` answers, now or later."""
        timeout = item.queue_wait_timeout_seconds
        waiter = RequestWaiter(item, now, None if timeout is None else now + timeout)
        waiter.denied = self._refusal(item)
        if waiter.denied is not None:
            return waiter
        model = self._model(item.resource.provider_model, now)
        self._domain(model, item.resource, now)
        model.queue.enqueue(waiter)
        self.waiting += 1
        if waiter.deadline is not None:
            self._entries += 1
            heappush(self._deadlines, (waiter.deadline, self._entries, waiter))
        if model.due <= now:
            self._wake(model)
        return waiter

    def withdraw(self, waiter: RequestWaiter, now: float) -> RequestAdmissionLease | None:
        """Whoever waited gives up. If it has a lease already, that is the answer: release it."""
        if waiter.is_waiting:
            self._remove(waiter)
            return None
        return waiter.lease

    def pump(self, now: float) -> list[RequestWaiter]:
        """Everybody who has an answer now: a lease or a denial, in the order of their turns."""
        answered: list[RequestWaiter] = []
        self._expire(now, answered)
        while self._timers and self._timers[0][0] <= now:
            due, _, sleeper = heappop(self._timers)
            if sleeper.due != due:
                continue
            if isinstance(sleeper, _Model):
                self._wake(sleeper)
            else:
                self._awake[sleeper] = None
        while self._awake:
            provider = next(iter(self._awake))
            del self._awake[provider]
            self._serve(provider, now, answered)
        return answered

    def next_due(self) -> float | None:
        """When to pump although nothing has happened; None: never."""
        while self._timers and self._timers[0][2].due != self._timers[0][0]:
            heappop(self._timers)
        while self._deadlines and not self._deadlines[0][2].is_waiting:
            heappop(self._deadlines)
        times = [heap[0][0] for heap in (self._timers, self._deadlines) if heap]
        return min(times, default=None)

    def release(
        self, lease: RequestAdmissionLease, outcome: RequestReleaseOutcome, now: float
    ) -> ReleaseResult:
        """A request has ended; anything but the one lease that is held changes nothing."""
        if lease.controller_generation != self._generation:
            return _refused(ReleaseReason.WRONG_CONTROLLER_GENERATION, lease)
        found = self._leases.get(lease.lease_id)
        if found is None:
            known = 0 < lease.lease_id <= self._last_lease_id
            reason = ReleaseReason.DUPLICATE if known else ReleaseReason.UNKNOWN_LEASE
            return _refused(reason, lease)
        held, model = found
        if held is not lease and held.item is not lease.item:
            return _refused(ReleaseReason.STALE_LEASE, lease)
        del self._leases[lease.lease_id]
        reserved = float(held.item.tokens_estimate or 0)
        used = reserved if outcome.tokens_used is None else float(outcome.tokens_used)
        domain = self._domain(model, held.item.resource, now)
        for gate in (model.provider.gate, model.gate, domain):
            gate.give(now, reserved, used)
        limited = model.gate if model.gate.algorithm is not None else domain
        if limited.algorithm is not None:
            limited.algorithm.ended(now, limited.in_flight, held.mark, outcome)
        self._wake(model)
        if model.provider.gate.cap is not None:
            self._awake[model.provider] = None
        return _RELEASED

    def shut(self) -> list[RequestWaiter]:
        """From now on nothing leaves; everybody who waits is told."""
        self._is_shut = True
        answered: list[RequestWaiter] = []
        for model in self._models.values():
            while (waiter := model.queue.select_next(lambda _: True)) is not None:
                self._deny(waiter, RequestDenialReason.SHUTDOWN)
                answered.append(waiter)
        return answered

    # ── Telling ───────────────────────────────────────────────────────────────────────────────

    @property
    def in_flight(self) -> int:
        return len(self._leases)

    def algorithms(self) -> Mapping[RequestResourceKey | ProviderModelKey, LimitAlgorithm]:
        """Every limit that is in use, by what it holds for."""
        found: dict[RequestResourceKey | ProviderModelKey, LimitAlgorithm] = {}
        for key, model in self._models.items():
            if model.gate.algorithm is not None:
                found[key] = model.gate.algorithm
            for domain, gate in model.domains.items():
                if gate.algorithm is not None:
                    found[RequestResourceKey(*key, domain)] = gate.algorithm
        return found

    # ── Deciding ──────────────────────────────────────────────────────────────────────────────

    def _refusal(self, item: RequestAdmissionItem) -> RequestAdmissionDenied | None:
        if self._is_shut:
            return RequestAdmissionDenied(item, RequestDenialReason.SHUTDOWN)
        policy = self._policies.get(item.resource.provider)
        if policy is not None:
            for caps in (policy.caps, policy.model_caps(item.resource.model)):
                if caps.max_parallel is not None and not self._share.of(caps.max_parallel):
                    return RequestAdmissionDenied(item, RequestDenialReason.HARD_POLICY_DENIAL)
        return None

    def _blocked(self, model: _Model, item: RequestAdmissionItem, now: float) -> Blocked | None:
        tokens = float(item.tokens_estimate or 0)
        domain = self._domain(model, item.resource, now)
        for gate in (model.provider.gate, model.gate, domain):
            blocked = gate.blocked(now, tokens)
            if blocked is not None:
                return blocked
        return None

    def _is_ahead(self, model: _Model, domain: str, now: float) -> bool:
        """Does anybody wait whom a newcomer of this domain would overtake?"""
        own = model.domains.get(domain)
        if own is None or own.algorithm is None:
            return True  # all domains share the model's limit
        if model.queue.waiting(domain):
            return True
        return model.queue.select_next(partial(_is_open, model, now)) is not None

    def _serve(self, provider: _Provider, now: float, answered: list[RequestWaiter]) -> None:
        """Grant what may leave, the models of a provider in turn."""
        while provider.line:
            model = provider.line[0][2]
            waiter = model.queue.select_next(partial(_is_open, model, now))
            if waiter is None:
                provider.leave()
                self._park(model, now)
                continue
            tokens = float(waiter.item.tokens_estimate or 0)
            blocked = provider.gate.blocked(now, tokens)
            if blocked is not None:  # of the whole provider: nobody else's turn would change it
                self._sleep(provider, blocked.until)
                return
            domain = model.domains[waiter.item.resource.domain]
            blocked = model.gate.blocked(now, tokens) or domain.blocked(now, tokens)
            if blocked is not None:
                provider.leave()
                self._sleep(model, blocked.until)
                continue
            model.queue.commit(waiter)
            self.waiting -= 1
            waiter.lease = self._grant(model, waiter.item, now)
            answered.append(waiter)
            provider.served()

    def _park(self, model: _Model, now: float) -> None:
        """Nobody of a model can leave: all its domains are closed, or nobody waits."""
        if not model.queue:
            model.due = -inf
            return
        until = inf
        for domain in model.domains.values():
            algorithm = domain.algorithm
            if algorithm is not None and algorithm.blocked_until > now:
                until = min(until, algorithm.blocked_until)
        self._sleep(model, until)

    def _sleep(self, sleeper: _Model | _Provider, until: float) -> None:
        sleeper.due = until
        if until != inf:
            self._entries += 1
            heappush(self._timers, (until, self._entries, sleeper))

    def _wake(self, model: _Model) -> None:
        """Something has changed for a model: whoever waits there is asked for again."""
        model.due = -inf
        if model.queue:
            model.provider.join(model)
            self._awake[model.provider] = None

    def _grant(
        self, model: _Model, item: RequestAdmissionItem, now: float
    ) -> RequestAdmissionLease:
        tokens = float(item.tokens_estimate or 0)
        domain = self._domain(model, item.resource, now)
        limited = model.gate if model.gate.algorithm is not None else domain
        limit = limited.window(now) or 0
        model.provider.gate.take(now, tokens)
        model_mark = model.gate.take(now, tokens)
        domain_mark = domain.take(now, tokens)
        self._last_lease_id += 1
        lease = RequestAdmissionLease(
            self._last_lease_id,
            item,
            now,
            limit,
            self._effective_max(model),
            self._generation,
            model_mark if limited is model.gate else domain_mark,
        )
        self._leases[lease.lease_id] = (lease, model)
        return lease

    def _expire(self, now: float, answered: list[RequestWaiter]) -> None:
        while self._deadlines and self._deadlines[0][0] <= now:
            _, _, waiter = heappop(self._deadlines)
            if waiter.is_waiting:
                self._deny(waiter, RequestDenialReason.QUEUE_TIMEOUT)
                answered.append(waiter)

    def _deny(self, waiter: RequestWaiter, reason: RequestDenialReason) -> None:
        self._remove(waiter)
        waiter.denied = RequestAdmissionDenied(waiter.item, reason)

    def _remove(self, waiter: RequestWaiter) -> None:
        model = self._models[waiter.item.resource.provider_model]
        if not model.queue.remove(waiter):
            raise InternalError("A request that does not wait cannot be taken out.")
        self.waiting -= 1
        if model.due > -inf:
            self._wake(model)  # it may have been the one that did not fit

    # ── Levels ────────────────────────────────────────────────────────────────────────────────

    def _model(self, key: ProviderModelKey, now: float) -> _Model:
        model = self._models.get(key)
        if model is None:
            policy = self._policies.get(key.provider) or ProviderPolicy(key.provider)
            provider = self._provider(policy, now)
            caps = policy.model_caps(key.model)
            cap = self._slots(caps.max_parallel)
            gate = Gate(f"{key.provider}/{key.model}", cap, caps, 1 / self._share.count, now)
            model = self._models[key] = _Model(key, policy, provider, gate)
            if policy.algorithm == "adaptive":
                most = self._effective_max(model)
                gate.algorithm = self._make_algorithm(policy, key, most, now)
        return model

    def _provider(self, policy: ProviderPolicy, now: float) -> _Provider:
        provider = self._providers.get(policy.name)
        if provider is None:
            cap = self._slots(policy.caps.max_parallel)
            gate = Gate(policy.name, cap, policy.caps, 1 / self._share.count, now)
            provider = self._providers[policy.name] = _Provider(gate)
        return provider

    def _domain(self, model: _Model, resource: RequestResourceKey, now: float) -> Gate:
        gate = model.domains.get(resource.domain)
        if gate is None:
            algorithm = None
            if model.policy.algorithm == "aimd":
                most = self._effective_max(model)
                algorithm = self._make_algorithm(model.policy, model.key, most, now)
            gate = Gate("/".join(resource), None, RequestCaps(), 1.0, now, algorithm)
            model.domains[resource.domain] = gate
        return gate

    def _effective_max(self, model: _Model) -> int:
        caps = [model.gate.cap, model.provider.gate.cap]
        return min((cap for cap in caps if cap is not None), default=self._share.of(DEFAULT_MAX))

    def _slots(self, cap: int | None) -> int | None:
        return None if cap is None else self._share.of(cap)


def _is_open(model: _Model, now: float, domain: str) -> bool:
    """Is a domain not kept back by a limit of its own?"""
    gate = model.domains[domain]
    algorithm = gate.algorithm
    return algorithm is None or not (now < algorithm.blocked_until or gate.is_full(now))


def _denied(item: RequestAdmissionItem, blocked: Blocked, now: float) -> RequestAdmissionDenied:
    if blocked.until == inf:
        return RequestAdmissionDenied(item, blocked.reason)
    return RequestAdmissionDenied(item, blocked.reason, blocked.until - now, blocked.until)


def _refused(reason: ReleaseReason, lease: RequestAdmissionLease) -> ReleaseResult:
    return ReleaseResult(False, reason, {"lease": f"lease {lease.lease_id} is not held"})
