# SPDX-License-Identifier: Apache-2.0
"""Request admission: grants permits for requests in flight, and queues those that must wait.

The pure core. It counts, decides and keeps the fair queues; it never waits, knows no loop, and
takes the time as an argument. `pump` grants whatever may leave; `next_due` says when to pump again
although nothing has happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.admission.requests.alarms import DueHeap
from penstock.admission.requests.algorithm import LimitAlgorithm
from penstock.admission.requests.decisions import (
    CHANGES,
    RequestAdmissionDecision,
    RequestAdmissionDenied,
    RequestAdmissionLease,
    RequestDenialReason,
    RequestNotes,
)
from penstock.admission.requests.fair_queue import RequestWaiter
from penstock.admission.requests.gate import Blocked
from penstock.admission.requests.listeners import RequestListener, limit_of
from penstock.admission.requests.policy import ProcessShare, ProviderPolicy
from penstock.admission.requests.provider_tree import (
    DomainLevel,
    MakeAlgorithm,
    ModelLevel,
    ProviderLevel,
    RequestLevels,
    Sleeping,
)
from penstock.errors import InternalError
from penstock.events.kinds import RequestEventKind as Kind
from penstock.model.lease import ReleaseReason, ReleaseResult
from penstock.model.provider import ProviderModelKey, RequestResourceKey
from penstock.model.request import RequestAdmissionItem, RequestOutcome, RequestReleaseOutcome

_RELEASED = ReleaseResult(True, ReleaseReason.RELEASED)

#: A lease that is held, its level, the algorithm that granted it, what that wants back, tokens.
_Held = tuple[RequestAdmissionLease, DomainLevel, LimitAlgorithm | None, object, float]


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
        self.levels = RequestLevels(policies, make_algorithm, share or ProcessShare())
        self._generation = generation
        self._leases: dict[int, _Held] = {}
        self._last_lease_id = 0
        self._sleeping = Sleeping()
        self._deadlines: DueHeap[RequestWaiter] = DueHeap()
        self._cooling: DueHeap[ModelLevel] = DueHeap()
        self._doomed: list[RequestWaiter] = []  # denied already, to be answered
        self._relieved: dict[RequestResourceKey, None] = {}
        self._is_shut = False
        self._listeners: tuple[RequestListener, ...] = ()
        self.waiting = 0
        self.changes = 0  # of anything that a snapshot shows
        self.notes = RequestNotes()
        #: Somebody wants to know when a resource has more room.
        self.tells_relief = False

    def __repr__(self) -> str:
        return (
            f"<AdaptiveRequestAdmissionController {len(self._leases)} in flight, "
            f"{self.waiting} waiting>"
        )

    def listen(self, listener: RequestListener) -> None:
        """Tell it of every change from now on."""
        self._listeners += (listener,)

    # ── Asking ────────────────────────────────────────────────────────────────────────────────

    def try_acquire(self, item: RequestAdmissionItem, now: float) -> RequestAdmissionDecision:
        """A lease, or why not; never before those who wait already."""
        domain = self.levels.resources.get(item.resource) or self._make(item.resource, now)
        if self._is_shut or domain.model.is_denied:
            return self._refusal(item)
        if self.waiting and self._is_ahead(domain, now):
            return RequestAdmissionDenied(
                item,
                RequestDenialReason.QUEUED_WAITERS_AHEAD,
                numbers={"waiting": len(domain.model.queue)},
            )
        tokens = float(item.tokens_estimate or 0)
        for gate in domain.gates:
            blocked = gate.blocked(now, tokens)
            if blocked is not None:
                return gate.denial(item, blocked, now)
        return self._grant(domain, item, tokens, now)

    def ask(self, item: RequestAdmissionItem, now: float) -> RequestAdmissionLease | RequestWaiter:
        """A lease if it may leave at once, else a place in the line, as a try and `enqueue` do."""
        domain = self.levels.resources.get(item.resource) or self._make(item.resource, now)
        is_kept = self._is_shut or domain.model.is_denied
        if is_kept or (self.waiting and self._is_ahead(domain, now)):
            return self.enqueue(item, now)
        tokens = float(item.tokens_estimate or 0)
        for gate in domain.gates:
            if gate.blocked(now, tokens) is not None:
                return self.enqueue(item, now)
        return self._grant(domain, item, tokens, now)

    def enqueue(self, item: RequestAdmissionItem, now: float) -> RequestWaiter:
        """Let a request wait; `pump` answers, now or later."""
        timeout = item.queue_wait_timeout_seconds
        waiter = RequestWaiter(item, now, None if timeout is None else now + timeout)
        domain = self.levels.resources.get(item.resource) or self._make(item.resource, now)
        model = domain.model
        if self._is_shut or model.is_denied:
            waiter.denied = self._refusal(item)
            return waiter
        model.queue.enqueue(waiter)
        model.provider.waiting += 1
        self.waiting += 1
        self.changes += 1
        if waiter.deadline is not None:
            waiter.alarm = self._deadlines.add(waiter.deadline, waiter)
        if self.notes.is_on and model.queue.waiting(item.resource.domain) == 1:
            self.notes.of_item(Kind.REQUEST_QUEUE_FORMED, item)
        if not model.closed_for_all:
            self._sleeping.wake(model)
        for listener in self._listeners:
            listener.queued(item)
        return waiter

    def withdraw(self, waiter: RequestWaiter) -> RequestAdmissionLease | None:
        """Whoever waited gives up. If it has a lease already, that is the answer: release it."""
        if waiter.is_waiting:
            self._remove(waiter)
            return None
        return waiter.lease

    def pump(self, now: float) -> list[RequestWaiter]:
        """Everybody who has an answer now: a lease or a denial, in the order of their turns."""
        answered, self._doomed = self._doomed, []
        while (late := self._deadlines.take(now)) is not None:
            self._deny(late, RequestDenialReason.QUEUE_TIMEOUT)
            answered.append(late)
        while (cool := self._cooling.take(now)) is not None:
            cool.cooling = None
            self._relieve(cool)
        self._sleeping.ring(now)
        while (provider := self._sleeping.next_awake()) is not None:
            self._serve(provider, now, answered)
        return answered

    def next_due(self) -> float | None:
        """When to pump although nothing has happened; None: never."""
        heaps = (self._sleeping, self._deadlines, self._cooling)
        return min((due for heap in heaps if (due := heap.next_due()) is not None), default=None)

    @property
    def is_stirred(self) -> bool:
        """True if pumping at once would answer somebody."""
        return self._sleeping.is_anybody_awake or bool(self._doomed)

    def release(
        self, lease: RequestAdmissionLease, outcome: RequestReleaseOutcome, now: float
    ) -> ReleaseResult:
        """A request has ended; anything but the one lease that is held changes nothing."""
        held = self._leases.get(lease.lease_id)
        if held is None or (held[0] is not lease and held[0] != lease):
            return self._not_held(lease, held)
        del self._leases[lease.lease_id]
        _, domain, algorithm, mark, reserved = held
        model = domain.model
        provider = model.provider
        used = outcome.tokens_of(reserved)
        domain.gate.give(now, reserved, used, outcome.was_sent)
        model.gate.give(now, reserved, used, outcome.was_sent)
        provider.gate.give(now, reserved, used, outcome.was_sent)
        domain.active_leases -= 1
        domain.last_outcome = outcome.outcome
        self.changes += 1
        result = _RELEASED
        if algorithm is not None and algorithm is domain.limited.algorithm:
            result = self._tell_algorithm(domain, algorithm, mark, outcome, lease, now)
        if model.queue or model.closed_for_all:
            self._sleeping.wake(model)
        if provider.line or provider.closed_for_all:
            self._sleeping.stir(provider)
        for listener in self._listeners:
            listener.released(lease, outcome, now)
        return result

    def shut(self) -> list[RequestWaiter]:
        """From now on nothing leaves; everybody who waits is told."""
        self._is_shut = True
        answered, self._doomed = self._doomed, []
        for model in self.levels.models.values():
            while (waiter := model.queue.select_next()) is not None:
                self._deny(waiter, RequestDenialReason.SHUTDOWN)
                answered.append(waiter)
        self._sleeping.clear()
        self._cooling.clear()
        return answered

    def is_held(self, lease: RequestAdmissionLease) -> bool:
        """Return whether it has not been released yet."""
        held = self._leases.get(lease.lease_id)
        return held is not None and held[0] is lease

    # ── Changing what was declared ────────────────────────────────────────────────────────────

    def set_policy(self, policy: ProviderPolicy, now: float) -> None:
        """Other caps, or another algorithm; what is in flight beyond them drains. Pump after it."""
        self._changed(self.levels.set_policy(policy, now), now)

    def set_share(self, share: ProcessShare, now: float) -> None:
        """Another part of every cap is this process's. Pump after it."""
        self._changed(self.levels.set_share(share, now), now)

    def _changed(self, models: list[ModelLevel], now: float) -> None:
        self.changes += 1
        for model in models:
            if model.is_denied:
                while (waiter := model.queue.select_next()) is not None:
                    self._deny(waiter, RequestDenialReason.HARD_POLICY_DENIAL)
                    self._doomed.append(waiter)
            self._sleeping.wake(model)
            self._sleeping.stir(model.provider)
            self._relieve(model)
            for domain in model.domains.values() if self.notes.is_on else ():
                self.notes.of_resource(
                    Kind.REQUEST_EFFECTIVE_CAP_CHANGED,
                    domain.key,
                    numbers={
                        "effective_max": 0 if model.is_denied else model.effective_max,
                        "limit": float(domain.limited.limit(now) or 0),
                    },
                )

    # ── Telling ───────────────────────────────────────────────────────────────────────────────

    @property
    def in_flight(self) -> int:
        return len(self._leases)

    def algorithms(self) -> Mapping[RequestResourceKey | ProviderModelKey, LimitAlgorithm]:
        """Every limit that is in use, by what it holds for."""
        found: dict[RequestResourceKey | ProviderModelKey, LimitAlgorithm] = {}
        for key, model in self.levels.models.items():
            if model.gate.algorithm is not None:
                found[key] = model.gate.algorithm
            for domain in model.domains.values():
                if domain.gate.algorithm is not None:
                    found[domain.key] = domain.gate.algorithm
        return found

    def take_relieved(self) -> list[RequestResourceKey]:
        """The resources with fewer waiters, other caps or an ended cool-down since last time."""
        taken = list(self._relieved)
        self._relieved.clear()
        return taken

    # ── Deciding ──────────────────────────────────────────────────────────────────────────────

    def _refusal(self, item: RequestAdmissionItem) -> RequestAdmissionDenied:
        if self._is_shut:
            return RequestAdmissionDenied(item, RequestDenialReason.SHUTDOWN)
        return RequestAdmissionDenied(item, RequestDenialReason.HARD_POLICY_DENIAL)

    def _is_ahead(self, domain: DomainLevel, now: float) -> bool:
        """Return whether somebody waits whom a newcomer would overtake."""
        self._sleeping.ring(now)  # whose time has come is ahead, told or not
        model = domain.model
        if model.queue:
            if not model.has_domain_limits or model.queue.waiting(domain.key.domain):
                return True
            if self._next_of(model, now, own_limits_only=True)[0] is not None:
                return True
        return model.provider.is_limited and self._next_at(model.provider, now) is not None

    def _serve(self, provider: ProviderLevel, now: float, answered: list[RequestWaiter]) -> None:
        """Grant what may leave, the models of a provider in turn."""
        while (found := self._next_at(provider, now)) is not None:
            model, waiter = found
            item = waiter.item
            tokens = float(item.tokens_estimate or 0)
            if provider.is_limited:
                blocked = provider.gate.blocked(now, tokens)
                if blocked is not None:  # nobody else's turn would change it
                    self._sleep(provider, blocked)
                    return
            model.queue.commit(waiter)
            self._left(waiter, model)
            waiter.lease = self._grant(model.domains[item.resource.domain], item, tokens, now)
            answered.append(waiter)
            provider.served(item.group.weight)

    def _next_at(
        self, provider: ProviderLevel, now: float
    ) -> tuple[ModelLevel, RequestWaiter] | None:
        """Whose turn it is, if the provider lets anybody go; models that let nobody go sleep."""
        while (model := provider.first()) is not None:
            waiter, blocked = self._next_of(model, now)
            if waiter is not None:
                return model, waiter
            provider.leave()
            if blocked is not None:
                self._sleep(model, blocked)
        return None

    def _sleep(self, level: ModelLevel | ProviderLevel, blocked: Blocked) -> None:
        """Nobody can leave there now."""
        self._sleeping.sleep(level, blocked)
        if self._listeners:
            limit = limit_of(level, blocked)
            for listener in self._listeners:
                listener.held_back(*limit)

    def _next_of(
        self, model: ModelLevel, now: float, own_limits_only: bool = False
    ) -> tuple[RequestWaiter | None, Blocked | None]:
        """Who of a model may leave now; if nobody, what keeps them back."""
        blocked: Blocked | None = None
        if model.has_domain_limits:
            closed: list[Blocked] = []

            def may_go(waiter: RequestWaiter) -> bool:
                gate = model.domains[waiter.item.resource.domain].gate
                blocked = gate.blocked(now, float(waiter.item.tokens_estimate or 0))
                if blocked is not None:
                    closed.append(blocked)
                return blocked is None

            waiter = model.queue.select_next(may_go)
            if waiter is None and closed:
                # A domain that nobody waits for yet may be open: a newcomer asks again.
                blocked = min(closed)._replace(for_all=False)
        else:
            waiter = model.queue.select_next()
        if waiter is None or own_limits_only:
            return waiter, blocked
        blocked = model.gate.blocked(now, float(waiter.item.tokens_estimate or 0))
        return (waiter, None) if blocked is None else (None, blocked)

    def _grant(
        self, domain: DomainLevel, item: RequestAdmissionItem, tokens: float, now: float
    ) -> RequestAdmissionLease:
        model = domain.model
        limited = domain.limited
        limit = limited.window
        model.provider.gate.take(now, tokens)
        mark = model.gate.take(now, tokens)
        own = domain.gate.take(now, tokens)
        domain.active_leases += 1
        self.changes += 1
        self._last_lease_id = lease_id = self._last_lease_id + 1
        lease = RequestAdmissionLease(
            lease_id, item, now, limit or 0, model.effective_max, self._generation
        )
        self._leases[lease_id] = (
            lease,
            domain,
            limited.algorithm,
            own if model.has_domain_limits else mark,
            tokens,
        )
        for listener in self._listeners:
            listener.granted(lease)
        return lease

    def _tell_algorithm(
        self,
        domain: DomainLevel,
        algorithm: LimitAlgorithm,
        mark: object,
        outcome: RequestReleaseOutcome,
        lease: RequestAdmissionLease,
        now: float,
    ) -> ReleaseResult:
        try:
            changes = algorithm.ended(now, domain.limited.in_flight, mark, outcome)
        except Exception as error:  # the slot is free whatever it thinks
            domain.count_leak("algorithm_errors")
            said = f"the limit's algorithm raised {type(error).__name__}"
            self.notes.of_resource(Kind.REQUEST_RELEASE_DIAGNOSTIC, domain.key, said)
            return ReleaseResult(True, ReleaseReason.RELEASED, {"algorithm": said})
        model = domain.model
        until = algorithm.blocked_until
        if until > model.cool_until and until > now:
            model.cool_until = until
            if self.tells_relief:
                if model.cooling is not None:
                    self._cooling.drop(model.cooling)
                model.cooling = self._cooling.add(until, model)
        if self.notes.is_on:
            if outcome.outcome is RequestOutcome.RATE_LIMITED:
                rest = outcome.retry_after_seconds
                numbers = {} if rest is None else {"retry_after_seconds": rest}
                self.notes.of_item(Kind.REQUEST_RATE_LIMITED, lease.item, numbers, lease.lease_id)
            for change in changes:
                numbers = {"limit": float(domain.limited.limit(now) or 0)}
                self.notes.of_item(CHANGES[change], lease.item, numbers, lease.lease_id)
        return _RELEASED

    def _not_held(self, lease: RequestAdmissionLease, held: _Held | None) -> ReleaseResult:
        if lease.controller_generation != self._generation:
            reason = ReleaseReason.WRONG_CONTROLLER_GENERATION
        elif held is not None:
            reason = ReleaseReason.STALE_LEASE
        elif 0 < lease.lease_id <= self._last_lease_id:
            reason = ReleaseReason.DUPLICATE
        else:
            reason = ReleaseReason.UNKNOWN_LEASE
        domain = self.levels.resources.get(lease.item.resource)
        if domain is not None:
            domain.count_leak(reason.value)
            self.notes.of_resource(Kind.REQUEST_RELEASE_DIAGNOSTIC, domain.key, reason.value)
        return ReleaseResult(False, reason, {"lease": f"lease {lease.lease_id} is not held"})

    # ── Lines ─────────────────────────────────────────────────────────────────────────────────

    def _deny(self, waiter: RequestWaiter, reason: RequestDenialReason) -> None:
        """Whoever waits gets no lease, for this reason."""
        self._remove(waiter)
        waiter.denied = RequestAdmissionDenied(waiter.item, reason)

    def _remove(self, waiter: RequestWaiter) -> None:
        model = self.levels.models[waiter.item.resource.provider_model]
        if not model.queue.remove(waiter):
            raise InternalError("A request that does not wait cannot be taken out.")
        self._left(waiter, model)
        if not model.closed_for_all:
            self._sleeping.wake(model)  # it may have been the one that did not fit

    def _left(self, waiter: RequestWaiter, model: ModelLevel) -> None:
        """A waiter stands in no line any more."""
        model.provider.waiting -= 1
        self.waiting -= 1
        self.changes += 1
        if waiter.alarm is not None:
            self._deadlines.drop(waiter.alarm)
            waiter.alarm = None
        resource = waiter.item.resource
        if self.tells_relief:
            self._relieved[resource] = None
        if self.notes.is_on and not model.queue.waiting(resource.domain):
            self.notes.of_item(Kind.REQUEST_QUEUE_DRAINED, waiter.item)
        for listener in self._listeners:
            listener.dequeued(waiter.item)

    def _relieve(self, model: ModelLevel) -> None:
        if self.tells_relief:
            for domain in model.domains.values():
                self._relieved[domain.key] = None

    def _make(self, resource: RequestResourceKey, now: float) -> DomainLevel:
        domain = self.levels.make(resource, now)
        numbers = {
            "effective_max": float(domain.model.effective_max),
            "limit": float(domain.limited.limit(now) or 0),
        }
        self.notes.of_resource(Kind.REQUEST_RESOURCE_REGISTERED, resource, numbers=numbers)
        return domain
