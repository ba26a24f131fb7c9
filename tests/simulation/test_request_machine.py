# SPDX-License-Identifier: Apache-2.0
"""Does request admission decide as a look at everything would?

The model is a list of waiters and a list of leases; every question is answered by counting. A pump
must grant exactly who may go, in the order of their turns; the timer must not be late; a try must
not overtake. `HYPOTHESIS_PROFILE=soak` runs for minutes and draws new examples each time.
"""

from __future__ import annotations

import random
from collections import defaultdict
from math import inf

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from penstock.admission.requests.adaptive.limit import Adaptive
from penstock.admission.requests.aimd import Aimd
from penstock.admission.requests.algorithm import LimitAlgorithm, LimitMode
from penstock.admission.requests.decisions import (
    RequestAdmissionDenied,
    RequestAdmissionLease,
    RequestDenialReason,
)
from penstock.admission.requests.fair_queue import RequestWaiter
from penstock.admission.requests.policy import AimdConfig, ProcessShare, ProviderPolicy, RequestCaps
from penstock.admission.requests.pressure import RequestPressureReader
from penstock.model.lease import ReleaseReason
from penstock.model.provider import ProviderModelKey, RequestResourceKey
from penstock.model.request import RequestAdmissionItem, RequestOutcome, RequestReleaseOutcome
from tests.depth import SOAK
from tests.requests import Core, ScriptedLimit, item

PROFILE = settings(
    max_examples=3_000 if SOAK else 30,
    stateful_step_count=80 if SOAK else 50,
    derandomize=not SOAK,
    deadline=None,
    print_blob=True,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],  # explaining is slow
)
MODELS = ("m", "n")
DOMAINS = ("chat", "embedding")
GROUPS = {"a": 1, "b": 3}
STEP = 1 / 64  # seconds: times are exact, so that a grant that is early by nothing shows

caps = st.builds(
    RequestCaps,
    st.sampled_from([None, None, 1, 2, 4]),
    st.sampled_from([None, None, 240.0]),
    st.sampled_from([None, None, 3840.0]),
)
times = st.integers(0, 256).map(lambda steps: steps * STEP)
items = st.builds(
    lambda model, domain, group, tokens, timeout, refusals: item(
        RequestResourceKey("p", model, domain),
        group,
        GROUPS[group],
        tokens=tokens,
        timeout=timeout,
        refusals=refusals,
    ),
    st.sampled_from(MODELS),
    st.sampled_from(DOMAINS),
    st.sampled_from([*GROUPS]),
    st.sampled_from([None, None, 1, 30, 64, 100]),
    st.sampled_from([None, None, 1.0, 2.5]),
    st.sampled_from([0, 0, 0, 1, 2]),
)
picks = st.integers(0, 255)
#: The account gate has tests of its own: while it is shut, nothing else of this would be seen.
OUTCOMES = [one for one in RequestOutcome if one is not RequestOutcome.ACCOUNT_CLOSED]
endings = st.builds(
    RequestReleaseOutcome,
    st.sampled_from([*OUTCOMES, RequestOutcome.SUCCESS, RequestOutcome.RATE_LIMITED]),
    st.sampled_from([None, 0.0, 0.5, 2.0]),
    st.just(()),
    st.sampled_from([None, 0, 20, 200]),
    st.booleans(),
)


class RequestMachine(RuleBasedStateMachine):
    """One provider; who waits and what is in flight are the whole model."""

    algorithm = "adaptive"
    is_real = False  # the algorithm: not one that does what the machine says
    late = 0.0  # seconds by which it may be late to say when it grows

    @initialize(
        whole=caps,
        models=st.lists(caps, min_size=len(MODELS), max_size=len(MODELS)),
        pace=st.sampled_from([0.0, 0.0, STEP * 8]),
        ramp=st.sampled_from([0.0, 2.0]),
    )
    def begin(
        self, whole: RequestCaps, models: list[RequestCaps], pace: float, ramp: float
    ) -> None:
        self.now = 0.0
        self.aimd = AimdConfig(
            startup_ramp_seconds=ramp, successes_until_increase=3, cooldown_seconds=1.0
        )
        self.policy = self.declared(whole, models)
        self.share = ProcessShare()
        self.core = Core(self.policy, pace=pace, make=self.made_for_real if self.is_real else None)
        self.reader = RequestPressureReader(self.core, lambda: self.now)
        self.waiting: list[RequestWaiter] = []  # in the order of their coming
        self.came: dict[RequestWaiter, tuple[int, int]] = {}
        self.leases: list[RequestAdmissionLease] = []
        self.done: list[RequestAdmissionLease] = []
        self.tags: dict[str, dict[str, float]] = defaultdict(dict)
        self.v: dict[str, float] = defaultdict(float)
        self.numbers = 0

    def made_for_real(
        self, declared: ProviderPolicy, key: ProviderModelKey, effective_max: int, now: float
    ) -> LimitAlgorithm:
        if declared.algorithm == "aimd":
            return Aimd(declared.aimd, effective_max, now)
        return Adaptive(effective_max, now, random.Random(1).random)

    def declared(self, whole: RequestCaps, models: list[RequestCaps]) -> ProviderPolicy:
        named = dict(zip(MODELS, models, strict=True))
        return ProviderPolicy("p", whole, named, algorithm=self.algorithm, aimd=self.aimd)  # type: ignore[arg-type]

    # ── What is asked ─────────────────────────────────────────────────────────────────────────

    @rule(wanted=items)
    def ask(self, wanted: RequestAdmissionItem) -> None:
        overtaken = self.would_overtake(wanted)
        decision = self.core.try_acquire(wanted, self.now)
        if isinstance(decision, RequestAdmissionLease):
            assert not overtaken, "a try overtook somebody"
            self.leased(decision)
        elif self.is_denied(wanted):
            assert decision.reason is RequestDenialReason.HARD_POLICY_DENIAL
        elif decision.reason is RequestDenialReason.QUEUED_WAITERS_AHEAD:
            assert overtaken or self.blocked(wanted, provider=True), "nobody was ahead"
        else:
            assert decision.available_at is None or decision.available_at > self.now
            assert self.blocked(wanted, provider=True), "there was room"

    @rule(seconds=times, wanted=items)
    def ask_before_the_timer_rings(self, seconds: float, wanted: RequestAdmissionItem) -> None:
        """Time has passed, others may go now, and nobody has told them yet."""
        self.let_time_pass(seconds / 16)
        due = self.core.next_due()
        if due is not None:
            self.now = max(self.now, due)
        self.ask(wanted)
        self.pump()

    @rule(all_wanted=st.lists(items, min_size=1, max_size=4))
    def wait(self, all_wanted: list[RequestAdmissionItem]) -> None:
        for wanted in all_wanted:
            self.let_wait(wanted)

    @rule(wanted=items)
    def ask_or_wait(self, wanted: RequestAdmissionItem) -> None:
        overtaken = self.would_overtake(wanted)
        found = self.core.acquire_or_enqueue(wanted, self.now)
        if isinstance(found, RequestAdmissionLease):
            assert not overtaken, "somebody was overtaken"
            self.leased(found)
        else:
            self.stands(found)

    def let_wait(self, wanted: RequestAdmissionItem) -> None:
        self.stands(self.core.enqueue(wanted, self.now))

    def stands(self, waiter: RequestWaiter) -> None:
        wanted = waiter.item
        if self.is_denied(wanted):
            assert waiter.denied is not None
            assert waiter.denied.reason is RequestDenialReason.HARD_POLICY_DENIAL
            return
        model, group = wanted.resource.model, wanted.group.key
        if not any(_same_group(one, wanted) for one in self.waiting):
            tags = self.tags[model]
            tags[group] = max(tags.get(group, 0.0), self.v[model])
        self.numbers += 1
        self.came[waiter] = (0 if wanted.refusals == 1 else 1, self.numbers)
        self.waiting.append(waiter)
        self.pump()

    @rule(pick=picks)
    def give_up(self, pick: int) -> None:
        if self.waiting:
            waiter = self.waiting.pop(pick % len(self.waiting))
            assert self.core.withdraw(waiter) is None
            assert not waiter.is_waiting
            self.pump()

    @rule(pick=picks, ending=endings)
    def end(self, pick: int, ending: RequestReleaseOutcome) -> None:
        if self.leases:
            lease = self.leases.pop(pick % len(self.leases))
            assert self.core.release(lease, ending, self.now).released
            self.done.append(lease)
            self.pump()

    @rule(pick=picks, ending=endings)
    def end_again(self, pick: int, ending: RequestReleaseOutcome) -> None:
        if self.done:
            changes = self.core.changes
            result = self.core.release(self.done[pick % len(self.done)], ending, self.now)
            assert (result.released, result.reason) == (False, ReleaseReason.DUPLICATE)
            assert self.core.changes == changes

    @rule(seconds=times)
    def let_time_pass(self, seconds: float) -> None:
        """Ring the timer whenever it says; in between nobody could have gone."""
        end = self.now + seconds
        while (due := self.core.next_due()) is not None and due <= end + self.late:
            self.before(due)
            self.now = max(self.now, due)
            self.pump()
        self.before(end)
        self.now = max(self.now, end)
        assert self.core.pump(self.now) == [], "the timer was late"

    def before(self, until: float) -> None:
        """Nobody can be answered just before a moment at which the timer rings, or none does."""
        early = self.now + (until - self.now) / 2
        if self.now < early < until:  # not if no time is between them
            self.now = early
            assert self.core.pump(early) == [], "the timer was late"

    @rule(whole=caps, models=st.lists(caps, min_size=len(MODELS), max_size=len(MODELS)))
    def declare_anew(self, whole: RequestCaps, models: list[RequestCaps]) -> None:
        self.policy = self.declared(whole, models)
        self.core.set_policy(self.policy, self.now)
        self.pump()

    @rule(count=st.integers(1, 3), index=st.integers(0, 2))
    def share_anew(self, count: int, index: int) -> None:
        self.share = ProcessShare(min(index, count - 1), count)
        self.core.set_share(self.share, self.now)
        self.pump()

    @rule(
        model=st.sampled_from(MODELS), limit=st.integers(1, 3), more=st.integers(1, 3), after=times
    )
    def move_a_limit(self, model: str, limit: int, more: int, after: float) -> None:
        """One that grows with time must be waited for, though nothing ends."""
        for algorithm in self.scripted(model):
            algorithm.limit = limit
            algorithm.grows_to = (self.now + after + STEP, limit + more)
        self.core.set_policy(self.policy, self.now)
        self.pump()

    # ── What must follow ──────────────────────────────────────────────────────────────────────

    def pump(self) -> None:
        for waiter in self.core.pump(self.now):
            if waiter.denied is not None:
                self.waiting.remove(waiter)
                self.check_denied(waiter, waiter.denied)
                continue
            assert waiter.lease is not None
            assert waiter.lease.item is waiter.item, "somebody else's lease"
            self.check_turn(waiter)
            self.waiting.remove(waiter)
            self.leased(waiter.lease)
        self.check_nobody_could_go()

    def check_denied(self, waiter: RequestWaiter, denied: RequestAdmissionDenied) -> None:
        if denied.reason is RequestDenialReason.QUEUE_TIMEOUT:
            assert waiter.deadline is not None
            assert waiter.deadline <= self.now
        else:
            assert denied.reason is RequestDenialReason.HARD_POLICY_DENIAL
            assert self.is_denied(waiter.item)

    def check_turn(self, waiter: RequestWaiter) -> None:
        """Nobody of its model and domain had an earlier turn; then its group's is later."""
        resource, group = waiter.item.resource, waiter.item.group
        rivals = [one for one in self.waiting if one.item.resource == resource]
        assert min(rivals, key=self.place) is waiter, "out of turn"
        if self.algorithm == "adaptive":  # no domain is closed on its own
            rivals = [one for one in self.waiting if one.item.resource[:2] == resource[:2]]
            assert min(rivals, key=self.place) is waiter, "out of turn between domains"
        tags = self.tags[resource.model]
        self.v[resource.model] = tag = max(self.v[resource.model], tags[group.key])
        tags[group.key] = tag + 1 / group.weight

    def place(self, waiter: RequestWaiter) -> tuple[float, int, int]:
        return (
            self.tags[waiter.item.resource.model][waiter.item.group.key],
            *self.came[waiter],
        )

    def leased(self, lease: RequestAdmissionLease) -> None:
        self.leases.append(lease)
        resource = lease.item.resource
        model = [one for one in self.leases if one.item.resource.model == resource.model]
        limited = model
        if self.algorithm == "aimd":
            limited = [one for one in model if one.item.resource == resource]
        assert len(limited) <= lease.current_adaptive_limit <= lease.effective_max
        assert len(model) <= self.cap(self.policy.model_caps(resource.model))
        assert len(self.leases) <= self.cap(self.policy.caps)
        algorithm = self.core.tree.resources[resource].limited.algorithm
        assert algorithm is not None
        assert algorithm.blocked_until <= self.now, "left in a cool-down"

    def check_nobody_could_go(self) -> None:
        """Whoever is next at a model is kept back by a gate; so nobody was forgotten."""
        could = self.ready()
        if could:
            gate = self.core.tree.providers["p"].gate
            tokens = [float(one.item.tokens_estimate or 0) for one in could]
            assert any(gate.blocked(self.now, amount) for amount in tokens), "forgotten"

    def ready(self) -> list[RequestWaiter]:
        """Who is next at each model, if neither the model nor the domain keeps it back."""
        could = []
        for model in MODELS:
            found = [one for one in self.in_time() if one.item.resource.model == model]
            heads = [found]
            if self.algorithm == "aimd":  # each domain may be closed on its own
                heads = [[one for one in found if one.item.resource.domain == d] for d in DOMAINS]
            firsts = [min(own, key=self.place) for own in heads if own]
            is_open = [one for one in firsts if not self.domain_blocked(one.item)]
            first = min(is_open, key=self.place, default=None)
            if first is None or self.blocked(first.item, provider=False):
                continue
            if not self.has_just_grown(first.item):
                could.append(first)
        return could

    def in_time(self) -> list[RequestWaiter]:
        """Who waits and has not waited for too long, whether it has been told or not."""
        waiting = self.waiting
        return [one for one in waiting if one.deadline is None or one.deadline > self.now]

    def has_just_grown(self, wanted: RequestAdmissionItem) -> bool:
        """True if its limit is larger than it foretold: by a moment, or because a rate has grown.

        What a rate needs grows as it is asked; a full window that sleeps learns of it at the next
        end.
        """
        model = self.core.tree.resources[wanted.resource].model
        if model.alarm is not None:
            return bool(self.now < model.alarm[0] <= self.now + self.late)
        limit = model.gate.algorithm
        is_rate = isinstance(limit, Adaptive) and limit.mode is not LimitMode.CONCURRENCY
        return is_rate and not model.in_line and model.gate.in_flight > 0

    # ── Counting ──────────────────────────────────────────────────────────────────────────────

    def would_overtake(self, wanted: RequestAdmissionItem) -> bool:
        """Does anybody wait who competes with it: for the model, the domain or the provider?"""
        for one in self.in_time():
            resource = one.item.resource
            if resource.model == wanted.resource.model and (
                self.algorithm == "adaptive"
                or resource.domain == wanted.resource.domain
                or not self.domain_blocked(one.item)
            ):
                return True
        return self.policy.caps != RequestCaps() and bool(self.ready())

    def domain_blocked(self, wanted: RequestAdmissionItem) -> bool:
        gate = self.core.tree.resources[wanted.resource].gate
        return gate.blocked(self.now, float(wanted.tokens_estimate or 0)) is not None

    def blocked(self, wanted: RequestAdmissionItem, *, provider: bool) -> bool:
        level = self.core.tree.resources[wanted.resource]
        gates = [level.gate, level.model.gate]
        if provider:
            gates.append(level.model.provider.gate)
        tokens = float(wanted.tokens_estimate or 0)
        return any(gate.blocked(self.now, tokens) is not None for gate in gates)

    def scripted(self, model: str) -> list[ScriptedLimit]:
        return self.core.limits.get(ProviderModelKey("p", model), [])

    def cap(self, declared: RequestCaps) -> float:
        return inf if declared.max_parallel is None else self.share.of(declared.max_parallel)

    def is_denied(self, wanted: RequestAdmissionItem) -> bool:
        model = self.policy.model_caps(wanted.resource.model)
        return not self.cap(model) or not self.cap(self.policy.caps)

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "core"):
            return
        assert self.core.in_flight == len(self.leases)
        assert self.core.waiting == len(self.waiting)
        assert all(waiter.is_waiting for waiter in self.waiting)
        for whole in self.reader.models():
            own = [one for one in self.leases if one.item.resource.provider_model == whole.key]
            queued = [one for one in self.waiting if one.item.resource.provider_model == whole.key]
            assert whole.in_flight == whole.active_leases == len(own)
            assert whole.waiters == len(queued)
            for domain, part in whole.domains.items():
                assert part.in_flight == part.active_leases
                assert part.in_flight == sum(one.item.resource.domain == domain for one in own)
                assert part.waiters == sum(one.item.resource.domain == domain for one in queued)
        for provider in self.core.tree.providers.values():
            assert provider.gate.in_flight == len(self.leases)
            assert provider.waiting == len(self.waiting)


class RealAdaptive(RequestMachine):
    is_real = True
    late = 1e-5  # it says when its window grows, and a millionth of a second more


class ScriptedDomains(RequestMachine):
    algorithm = "aimd"


class RealAimd(RequestMachine):
    algorithm = "aimd"
    is_real = True


def _same_group(waiter: RequestWaiter, wanted: RequestAdmissionItem) -> bool:
    item = waiter.item
    return item.resource.model == wanted.resource.model and item.group.key == wanted.group.key


@pytest.mark.parametrize("machine", [RequestMachine, RealAdaptive, ScriptedDomains, RealAimd])
def test_request_admission_decides_as_a_look_at_everything_would(
    machine: type[RequestMachine],
) -> None:
    run_state_machine_as_test(machine, settings=PROFILE)
