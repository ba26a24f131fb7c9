# SPDX-License-Identifier: Apache-2.0
"""Request admission: grants permits for requests in flight, and queues those that must wait.

The pure core. It counts, decides and keeps the fair queues; it never waits, knows no loop, and
takes the time as an argument. `pump` grants whatever may leave; `next_due` says when to pump again
although nothing has happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

from penstock.admission.requests.alarms import AlarmHeap
from penstock.admission.requests.algorithm import SHARED_SECONDS, LimitAlgorithm
from penstock.admission.requests.decisions import (
    CHANGES,
    PendingEvents,
    RequestAdmissionDecision,
    RequestAdmissionDenied,
    RequestAdmissionLease,
    RequestDenialReason,
)
from penstock.admission.requests.fair_queue import RequestWaiter
from penstock.admission.requests.gate import Blocked
from penstock.admission.requests.listeners import RequestListener, limit_of
from penstock.admission.requests.policy import ProcessShare, ProviderPolicy
from penstock.admission.requests.provider_tree import (
    DomainLevel,
    LevelAlarms,
    MakeAlgorithm,
    ModelLevel,
    ProviderLevel,
    ProviderTree,
)
from penstock.errors import InternalError
from penstock.events.kinds import RequestEventKind as Kind
from penstock.model.lease import ReleaseReason, ReleaseResult
from penstock.model.provider import ANY, AccountNote, ProviderModelKey, RequestResourceKey
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
        self.tree = ProviderTree(policies, make_algorithm, share or ProcessShare())
        self._generation = generation
        self._leases: dict[int, _Held] = {}
        self._last_lease_id = 0
        self._alarms = LevelAlarms()
        self._deadlines: AlarmHeap[RequestWaiter] = AlarmHeap()
        self._cooldowns: AlarmHeap[ModelLevel] = AlarmHeap()
        self._denied: list[RequestWaiter] = []  # denied already, to be answered
        self._pressure_changes: dict[RequestResourceKey, None] = {}
        self._is_shut = False
        self._listeners: tuple[RequestListener, ...] = ()
        self.waiting = 0
        self._long_cooldowns: dict[RequestResourceKey, float] = {}  # not taken yet: until when
        self._account_changes: set[str] = set()  # not taken yet: providers
        self.changes = 0  # of anything that a snapshot shows
        self.pending_events = PendingEvents()
        self.tracks_pressure = False  # somebody asks for `take_pressure_changes`

    def __repr__(self) -> str:
        return (
            f"<AdaptiveRequestAdmissionController {len(self._leases)} in flight, "
            f"{self.waiting} waiting>"
        )

    def listen(self, listener: RequestListener) -> None:
        """Report every change to it from now on."""
        self._listeners += (listener,)

    # ── Acquiring ────────────────────────────────────────────────────────────────────────────────

    def try_acquire(self, item: RequestAdmissionItem, now: float) -> RequestAdmissionDecision:
        """Return a lease or a denial; never overtakes those who wait already."""
        domain = self.tree.resources.get(item.resource) or self._make(item.resource, now)
        if self._refuses(domain.model, now):
            return self._final_denial(item, domain.model, now)
        if self.waiting and self._would_overtake(domain, now):
            return RequestAdmissionDenied(
                item,
                RequestDenialReason.QUEUED_WAITERS_AHEAD,
                numbers={"waiting": len(domain.model.queue)},
            )
        if domain.model.provider.account.is_probing:
            return RequestAdmissionDenied(item, RequestDenialReason.ACCOUNT_CLOSED)
        tokens = float(item.tokens_estimate or 0)
        for gate in domain.gates:
            blocked = gate.blocked(now, tokens)
            if blocked is not None:
                return gate.denial(item, blocked, now)
        return self._grant(domain, item, tokens, now)

    def acquire_or_enqueue(
        self, item: RequestAdmissionItem, now: float
    ) -> RequestAdmissionLease | RequestWaiter:
        """Return a lease if it may leave at once, else a waiter in the fair queue."""
        domain = self.tree.resources.get(item.resource) or self._make(item.resource, now)
        is_kept = self._refuses(domain.model, now) or domain.model.provider.account.is_probing
        if is_kept or (self.waiting and self._would_overtake(domain, now)):
            return self.enqueue(item, now)
        tokens = float(item.tokens_estimate or 0)
        for gate in domain.gates:
            if gate.blocked(now, tokens) is not None:
                return self.enqueue(item, now)
        return self._grant(domain, item, tokens, now)

    def enqueue(self, item: RequestAdmissionItem, now: float) -> RequestWaiter:
        """Queue a request; `pump` answers, now or later."""
        timeout = item.queue_wait_timeout_seconds
        waiter = RequestWaiter(item, now, None if timeout is None else now + timeout)
        domain = self.tree.resources.get(item.resource) or self._make(item.resource, now)
        model = domain.model
        if self._refuses(model, now):
            waiter.denied = self._final_denial(item, model, now)
            return waiter
        model.queue.enqueue(waiter)
        model.provider.waiting += 1
        self.waiting += 1
        self.changes += 1
        if waiter.deadline is not None:
            waiter.alarm = self._deadlines.add(waiter.deadline, waiter)
        if self.pending_events.is_on and model.queue.waiting(item.resource.domain) == 1:
            self.pending_events.add(Kind.REQUEST_QUEUE_FORMED, item)
        if not model.closed_for_all:
            self._alarms.wake_model(model)
        for listener in self._listeners:
            listener.queued(item)
        return waiter

    def withdraw(self, waiter: RequestWaiter) -> RequestAdmissionLease | None:
        """Take a waiter out; if it was granted a lease already, return that, to be released."""
        if waiter.is_waiting:
            self._remove(waiter)
            return None
        return waiter.lease

    def pump(self, now: float) -> list[RequestWaiter]:
        """Grant and deny; return every waiter that has an answer now, in order."""
        self._expire(now)
        answered, self._denied = self._denied, []
        while (cool := self._cooldowns.take(now)) is not None:
            cool.cooldown_alarm = None
            self._note_pressure_change(cool)
        self._alarms.wake_due(now)
        while (provider := self._alarms.next_awake()) is not None:
            self._serve(provider, now, answered)
        return answered

    def next_due(self) -> float | None:
        """Return when to pump although nothing has happened; None: never."""
        heaps = (self._alarms, self._deadlines, self._cooldowns)
        return min((due for heap in heaps if (due := heap.next_due()) is not None), default=None)

    @property
    def needs_pump(self) -> bool:
        """True if pumping at once would answer somebody."""
        return self._alarms.is_any_awake or bool(self._denied)

    def release(
        self, lease: RequestAdmissionLease, outcome: RequestReleaseOutcome, now: float
    ) -> ReleaseResult:
        """Take a lease back with its outcome; anything but a lease that is held changes nothing."""
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
            result = self._feed_algorithm(domain, algorithm, mark, outcome, lease, now)
        if provider.account.ended(lease.lease_id, outcome, now):
            self._account_changed(provider, now)
        if model.queue or model.closed_for_all:
            self._alarms.wake_model(model)
        if provider.line or provider.closed_for_all:
            self._alarms.wake_provider(provider)
        for listener in self._listeners:
            listener.released(lease, outcome, now)
        return result

    def shut(self) -> list[RequestWaiter]:
        """Let nothing leave from now on; return every waiter, denied."""
        self._is_shut = True
        answered, self._denied = self._denied, []
        for model in self.tree.models.values():
            while (waiter := model.queue.select_next()) is not None:
                self._deny(waiter, RequestDenialReason.SHUTDOWN)
                answered.append(waiter)
        self._alarms.clear()
        self._cooldowns.clear()
        return answered

    def is_held(self, lease: RequestAdmissionLease) -> bool:
        """Return whether it has not been released yet."""
        held = self._leases.get(lease.lease_id)
        return held is not None and held[0] is lease

    # ── Changing what was declared ────────────────────────────────────────────────────────────

    def set_policy(self, policy: ProviderPolicy, now: float) -> None:
        """Change caps or algorithm; what is in flight beyond them drains. Pump after it."""
        self._changed(self.tree.set_policy(policy, now), now)

    def set_share(self, share: ProcessShare, now: float) -> None:
        """Change this process's share of every cap. Pump after it."""
        self._changed(self.tree.set_share(share, now), now)

    def pause(self, resource: RequestResourceKey, seconds: float, now: float) -> None:
        """Let nothing leave for so long: another process was told so. Pump after it.

        A model whose domains have limits of their own pauses in the one that is meant; with `*` in
        those that are known.
        """
        key = resource.provider_model
        model = self.tree.models.get(key) or self.tree.make_model(key, now)
        gates = [model.gate]
        if model.has_domain_limits:
            if resource.domain != ANY and resource not in self.tree.resources:
                self._make(resource, now)
            gates = [
                domain.gate
                for domain in model.domains.values()
                if resource.domain in (ANY, domain.key.domain)
            ]
        for algorithm in filter(None, (gate.algorithm for gate in gates)):
            if algorithm.blocked_until < now + seconds:
                algorithm.pause(now, seconds)
                self._note_cooldown(model, algorithm.blocked_until, now)
                self.changes += 1

    def take_long_cooldowns(self) -> dict[RequestResourceKey, float]:
        """Return the long cool-downs that began since last time: monotonic, until when.

        With `*` as domain they are of the model, whatever the domain.
        """
        taken, self._long_cooldowns = self._long_cooldowns, {}
        return taken

    def take_account_changes(self) -> set[str]:
        """Return the providers whose account was closed, probed or opened since last time."""
        taken, self._account_changes = self._account_changes, set()
        return taken

    @property
    def has_news(self) -> bool:
        """True if there is something that other processes are to know."""
        return bool(self._long_cooldowns or self._account_changes)

    def close_account_elsewhere(
        self, provider: str, note: AccountNote, closed_at: float, probe_at: float, now: float
    ) -> None:
        """Shut the account of a provider as another process has. Pump after it."""
        level = self.tree.provider(provider, now)
        if level.account.closed_elsewhere(note, closed_at, probe_at, now):
            self._deny_or_wake(level, now)

    def open_account(self, provider: str, now: float) -> None:
        """Open the account of a provider: another process has found it open. Pump after it."""
        level = self.tree.provider(provider, now)
        level.account.open()
        self._deny_or_wake(level, now)

    def close_account(self, provider: str, said: str, now: float) -> None:
        """Shut the account of a provider whose key cannot be read. Pump after it."""
        level = self.tree.provider(provider, now)
        if not level.account.refuses(now):
            level.account.unusable(said, now)
            self._account_changed(level, now)

    def probe_account(self, provider: str, now: float) -> None:
        """Let the next request probe a closed account at once. Pump after it."""
        self.tree.provider(provider, now).account.probe_now(now)
        self.changes += 1

    def _account_changed(self, provider: ProviderLevel, now: float) -> None:
        """A request or a key of this process has closed, probed or opened an account."""
        self._account_changes.add(provider.name)
        self._deny_or_wake(provider, now)

    def _deny_or_wake(self, provider: ProviderLevel, now: float) -> None:
        """Deny who waits for a closed account; wake who waits for one that is open."""
        self.changes += 1
        is_closed = provider.account.refuses(now)
        for model in provider.models.values():
            while is_closed and (waiter := model.queue.select_next()) is not None:
                self._deny(waiter, RequestDenialReason.ACCOUNT_CLOSED)
                self._denied.append(waiter)
            self._alarms.wake_model(model)
            self._note_pressure_change(model)
        self._alarms.wake_provider(provider)

    def _changed(self, models: list[ModelLevel], now: float) -> None:
        self.changes += 1
        for model in models:
            if model.is_denied:
                while (waiter := model.queue.select_next()) is not None:
                    self._deny(waiter, RequestDenialReason.HARD_POLICY_DENIAL)
                    self._denied.append(waiter)
            self._alarms.wake_model(model)
            self._alarms.wake_provider(model.provider)
            self._note_pressure_change(model)
            for domain in model.domains.values() if self.pending_events.is_on else ():
                self.pending_events.add(
                    Kind.REQUEST_EFFECTIVE_CAP_CHANGED,
                    domain.key,
                    numbers={
                        "effective_max": 0 if model.is_denied else model.effective_max,
                        "limit": float(domain.limited.limit(now) or 0),
                    },
                )

    # ── Reading ───────────────────────────────────────────────────────────────────────────────

    @property
    def in_flight(self) -> int:
        return len(self._leases)

    def algorithms(self) -> Mapping[RequestResourceKey | ProviderModelKey, LimitAlgorithm]:
        """Return every limit algorithm in use, by resource or model."""
        found: dict[RequestResourceKey | ProviderModelKey, LimitAlgorithm] = {}
        for key, model in self.tree.models.items():
            if model.gate.algorithm is not None:
                found[key] = model.gate.algorithm
            for domain in model.domains.values():
                if domain.gate.algorithm is not None:
                    found[domain.key] = domain.gate.algorithm
        return found

    def take_pressure_changes(self) -> list[RequestResourceKey]:
        """Return resources with fewer waiters, other caps or an ended cool-down since last time."""
        taken = list(self._pressure_changes)
        self._pressure_changes.clear()
        return taken

    # ── Deciding ──────────────────────────────────────────────────────────────────────────────

    def _refuses(self, model: ModelLevel, now: float) -> bool:
        """Return whether waiting would not help, or not for long."""
        return self._is_shut or model.is_denied or model.provider.account.refuses(now)

    def _final_denial(
        self, item: RequestAdmissionItem, model: ModelLevel, now: float
    ) -> RequestAdmissionDenied:
        if self._is_shut:
            return RequestAdmissionDenied(item, RequestDenialReason.SHUTDOWN)
        if model.provider.account.refuses(now):
            until = model.provider.account.probe_at
            reason = RequestDenialReason.ACCOUNT_CLOSED
            return RequestAdmissionDenied(item, reason, max(until - now, 0.0), until)
        return RequestAdmissionDenied(item, RequestDenialReason.HARD_POLICY_DENIAL)

    def _would_overtake(self, domain: DomainLevel, now: float) -> bool:
        """Return whether a new request would overtake one that waits."""
        self._expire(now)  # whose deadline has passed is not ahead, but others may be behind it
        self._alarms.wake_due(now)  # whose time has come is ahead
        model = domain.model
        if model.queue:
            if not model.has_domain_limits or model.queue.waiting(domain.key.domain):
                return True
            if self._next_of_model(model, now, own_limits_only=True)[0] is not None:
                return True
        return model.provider.is_limited and self._next_of_provider(model.provider, now) is not None

    def _serve(self, provider: ProviderLevel, now: float, answered: list[RequestWaiter]) -> None:
        """Grant what may leave, the models of a provider in turn."""
        while (found := self._next_of_provider(provider, now)) is not None:
            if provider.account.is_probing:  # its end tells what becomes of those who wait
                self._block(provider, Blocked(inf, RequestDenialReason.ACCOUNT_CLOSED, True))
                return
            model, waiter = found
            item = waiter.item
            tokens = float(item.tokens_estimate or 0)
            if provider.is_limited:
                blocked = provider.gate.blocked(now, tokens)
                if blocked is not None:  # nobody else's turn would change it
                    self._block(provider, blocked)
                    return
            model.queue.commit(waiter)
            self._dequeued(waiter, model)
            waiter.lease = self._grant(model.domains[item.resource.domain], item, tokens, now)
            answered.append(waiter)
            provider.served(item.group.weight)

    def _next_of_provider(
        self, provider: ProviderLevel, now: float
    ) -> tuple[ModelLevel, RequestWaiter] | None:
        """Return whose turn it is, if the provider has room; models without room are blocked."""
        while (model := provider.first()) is not None:
            waiter, blocked = self._next_of_model(model, now)
            if waiter is not None:
                return model, waiter
            provider.leave()
            if blocked is not None:
                self._block(model, blocked)
        return None

    def _block(self, level: ModelLevel | ProviderLevel, blocked: Blocked) -> None:
        """Note that nobody can leave there now."""
        self._alarms.block(level, blocked)
        if self._listeners:
            limit = limit_of(level, blocked)
            for listener in self._listeners:
                listener.held_back(*limit)

    def _next_of_model(
        self, model: ModelLevel, now: float, own_limits_only: bool = False
    ) -> tuple[RequestWaiter | None, Blocked | None]:
        """Return who of a model may leave now; if nobody, what blocks them."""
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
        model.provider.account.granted(lease_id)
        for listener in self._listeners:
            listener.granted(lease)
        return lease

    def _feed_algorithm(
        self,
        domain: DomainLevel,
        algorithm: LimitAlgorithm,
        mark: object,
        outcome: RequestReleaseOutcome,
        lease: RequestAdmissionLease,
        now: float,
    ) -> ReleaseResult:
        until_before = algorithm.blocked_until
        try:
            changes = algorithm.ended(now, domain.limited.in_flight, mark, outcome)
        except Exception as error:  # the slot is free whatever it thinks
            domain.count_leak("algorithm_errors")
            problem = f"the limit algorithm raised {type(error).__name__}"
            self.pending_events.add(Kind.REQUEST_RELEASE_DIAGNOSTIC, domain.key, reason=problem)
            return ReleaseResult(True, ReleaseReason.RELEASED, {"algorithm": problem})
        self._note_cooldown(domain.model, algorithm.blocked_until, now)
        is_long = outcome.pause_seconds >= SHARED_SECONDS
        if is_long and algorithm.blocked_until > max(until_before, now + SHARED_SECONDS / 2):
            limited = domain.key
            if not domain.model.has_domain_limits:
                limited = limited._replace(domain=ANY)
            self._long_cooldowns[limited] = algorithm.blocked_until
        if self.pending_events.is_on:
            if outcome.outcome is RequestOutcome.RATE_LIMITED:
                rest = outcome.retry_after_seconds
                numbers = {} if rest is None else {"retry_after_seconds": rest}
                self.pending_events.add(
                    Kind.REQUEST_RATE_LIMITED, lease.item, numbers, lease_id=lease.lease_id
                )
            for change in changes:
                numbers = {"limit": float(domain.limited.limit(now) or 0)}
                self.pending_events.add(
                    CHANGES[change], lease.item, numbers, lease_id=lease.lease_id
                )
        return _RELEASED

    def _note_cooldown(self, model: ModelLevel, until: float, now: float) -> None:
        """Note until when nothing leaves for a model, and wake at its end who waits."""
        if until <= max(model.cooldown_until, now):
            return
        model.cooldown_until = until
        if self.tracks_pressure:
            if model.cooldown_alarm is not None:
                self._cooldowns.cancel(model.cooldown_alarm)
            model.cooldown_alarm = self._cooldowns.add(until, model)

    def _not_held(self, lease: RequestAdmissionLease, held: _Held | None) -> ReleaseResult:
        if lease.controller_generation != self._generation:
            reason = ReleaseReason.WRONG_CONTROLLER_GENERATION
        elif held is not None:
            reason = ReleaseReason.STALE_LEASE
        elif 0 < lease.lease_id <= self._last_lease_id:
            reason = ReleaseReason.DUPLICATE
        else:
            reason = ReleaseReason.UNKNOWN_LEASE
        domain = self.tree.resources.get(lease.item.resource)
        if domain is not None:
            domain.count_leak(reason.value)
            self.pending_events.add(
                Kind.REQUEST_RELEASE_DIAGNOSTIC, domain.key, reason=reason.value
            )
        return ReleaseResult(False, reason, {"lease": f"lease {lease.lease_id} is not held"})

    # ── Waiters ─────────────────────────────────────────────────────────────────────────────────

    def _expire(self, now: float) -> None:
        """Deny those whose deadline has passed; `pump` returns them."""
        while (late := self._deadlines.take(now)) is not None:
            self._deny(late, RequestDenialReason.QUEUE_TIMEOUT)
            self._denied.append(late)

    def _deny(self, waiter: RequestWaiter, reason: RequestDenialReason) -> None:
        """Answer a waiter with a denial."""
        self._remove(waiter)
        waiter.denied = RequestAdmissionDenied(waiter.item, reason)

    def _remove(self, waiter: RequestWaiter) -> None:
        model = self.tree.models[waiter.item.resource.provider_model]
        if not model.queue.remove(waiter):
            raise InternalError("A request that does not wait cannot be taken out.")
        self._dequeued(waiter, model)
        if not model.closed_for_all:
            self._alarms.wake_model(model)  # it may have been the one that did not fit

    def _dequeued(self, waiter: RequestWaiter, model: ModelLevel) -> None:
        """Count a waiter that has left its queue."""
        model.provider.waiting -= 1
        self.waiting -= 1
        self.changes += 1
        if waiter.alarm is not None:
            self._deadlines.cancel(waiter.alarm)
            waiter.alarm = None
        resource = waiter.item.resource
        if self.tracks_pressure:
            self._pressure_changes[resource] = None
        if self.pending_events.is_on and not model.queue.waiting(resource.domain):
            self.pending_events.add(Kind.REQUEST_QUEUE_DRAINED, waiter.item)
        for listener in self._listeners:
            listener.dequeued(waiter.item)

    def _note_pressure_change(self, model: ModelLevel) -> None:
        if self.tracks_pressure:
            for domain in model.domains.values():
                self._pressure_changes[domain.key] = None

    def _make(self, resource: RequestResourceKey, now: float) -> DomainLevel:
        domain = self.tree.make(resource, now)
        numbers = {
            "effective_max": float(domain.model.effective_max),
            "limit": float(domain.limited.limit(now) or 0),
        }
        self.pending_events.add(Kind.REQUEST_RESOURCE_REGISTERED, resource, numbers=numbers)
        return domain
