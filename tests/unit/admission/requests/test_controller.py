# SPDX-License-Identifier: Apache-2.0
"""May a request leave now, and if not, who is next?"""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from penstock.admission.requests.decisions import (
    RequestAdmissionDenied,
    RequestAdmissionLease,
    RequestDenialReason,
)
from penstock.admission.requests.fair_queue import RequestWaiter
from penstock.admission.requests.policy import ProcessShare, RequestCaps
from penstock.admission.requests.provider_tree import MODELS_KEPT
from penstock.model.lease import ReleaseReason
from penstock.model.provider import RequestResourceKey
from penstock.model.request import (
    RequestAdmissionItem,
    RequestOutcome,
    RequestReleaseOutcome,
)
from tests.requests import (
    CANCELLED,
    CHAT,
    EMBEDDING,
    REFUSED,
    SUCCESS,
    Core,
    aimd,
    item,
    policy,
    refused,
)

Reason = RequestDenialReason


def leased(core: Core, wanted: RequestAdmissionItem, now: float = 0.0) -> RequestAdmissionLease:
    decision = core.try_acquire(wanted, now)
    assert isinstance(decision, RequestAdmissionLease)
    return decision


def denied(core: Core, wanted: RequestAdmissionItem, now: float = 0.0) -> RequestAdmissionDenied:
    decision = core.try_acquire(wanted, now)
    assert isinstance(decision, RequestAdmissionDenied)
    return decision


def waits(core: Core, wanted: RequestAdmissionItem, now: float = 0.0) -> RequestWaiter:
    waiter = core.enqueue(wanted, now)
    assert core.pump(now) == []
    return waiter


def model(name: str) -> RequestResourceKey:
    return RequestResourceKey("p", name, "chat")


# ── Caps ──────────────────────────────────────────────────────────────────────────────────────


def test_the_caps_of_a_model_hold_over_all_its_domains() -> None:
    core = Core(policy(models={"m": RequestCaps(2)}))
    leased(core, item(CHAT))
    leased(core, item(EMBEDDING))

    assert denied(core, item(CHAT)).reason is Reason.NO_CAPACITY
    assert isinstance(core.try_acquire(item(model("other")), 0.0), RequestAdmissionLease)


def test_the_cap_of_a_provider_holds_over_all_its_models() -> None:
    core = Core(policy(2))
    first = leased(core, item(model("a")))
    leased(core, item(model("b")))

    assert denied(core, item(model("c"))).reason is Reason.NO_CAPACITY
    core.release(first, SUCCESS, 0.0)
    leased(core, item(model("c")))


def test_aimd_caps_hold_over_domains_with_limits_of_their_own() -> None:
    core = Core(policy(models={"m": RequestCaps(3)}, algorithm="aimd"), make=aimd)
    for _ in range(2):
        leased(core, item(CHAT))
    leased(core, item(EMBEDDING))

    assert denied(core, item(EMBEDDING)).reason is Reason.NO_CAPACITY


def test_a_lease_tells_the_limit_and_the_maximum_of_its_grant() -> None:
    core = Core(policy(10, models={"m": RequestCaps(4)}))
    lease = leased(core, item())

    assert (lease.current_adaptive_limit, lease.effective_max) == (4, 4)
    assert (lease.lease_id, lease.acquired_at, lease.controller_generation) == (1, 0.0, "1")


@pytest.mark.parametrize("cap", [1, 2, 7, 64])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 64])
def test_the_shares_of_all_processes_are_the_whole_cap(cap: int, count: int) -> None:
    parts = [ProcessShare(index, count).of(cap) for index in range(count)]

    assert sum(parts) == cap
    assert max(parts) - min(parts) <= 1


def test_a_process_has_its_share_of_every_cap() -> None:
    core = Core(policy(5, rpm=120.0), share=ProcessShare(1, 2))
    for now in range(2):
        leased(core, item(), float(now))

    assert core.tree.providers["p"].gate.requests is not None
    assert core.tree.providers["p"].gate.requests.rate == 1.0  # of 2 a second
    assert denied(core, item(), 2.0).reason is Reason.NO_CAPACITY


def test_who_has_no_slot_is_denied_for_ever() -> None:
    core = Core(policy(models={"m": RequestCaps(1)}), share=ProcessShare(1, 2))

    assert denied(core, item()).reason is Reason.HARD_POLICY_DENIAL
    waiter = core.enqueue(item(), 0.0)
    assert waiter.denied is not None
    assert waiter.denied.reason is Reason.HARD_POLICY_DENIAL
    leased(core, item(model("other")))


def test_who_waits_when_the_last_slot_goes_is_denied_for_ever() -> None:
    core = Core(policy(1))
    leased(core, item())
    waiter = waits(core, item())
    core.set_share(ProcessShare(1, 2), 1.0)

    assert core.needs_pump
    assert core.pump(1.0) == [waiter]
    assert waiter.denied is not None
    assert waiter.denied.reason is Reason.HARD_POLICY_DENIAL


def test_a_greater_cap_wakes_those_who_wait() -> None:
    core = Core(policy(1))
    leased(core, item())
    first, second, third = (waits(core, item()) for _ in range(3))
    core.set_policy(policy(3), 1.0)

    assert core.pump(1.0) == [first, second]
    assert not third.lease


def test_after_a_smaller_cap_what_is_in_flight_drains() -> None:
    core = Core(policy(4))
    leases = [leased(core, item()) for _ in range(4)]
    core.set_policy(policy(2), 0.0)
    waiter = waits(core, item())

    for lease in leases[:2]:
        core.release(lease, SUCCESS, 0.0)
        assert core.pump(0.0) == []
    core.release(leases[2], SUCCESS, 0.0)
    assert core.pump(0.0) == [waiter]


def test_another_algorithm_starts_anew_and_hears_nothing_of_older_requests() -> None:
    core = Core(policy(4))
    lease = leased(core, item())
    before = core.limit()
    core.set_policy(policy(4, algorithm="aimd"), 0.0)
    after = core.limit()

    assert core.release(lease, SUCCESS, 0.0).released
    assert (before is after, before.endings, after.endings) == (False, [], [])


def test_a_bucket_that_changes_keeps_what_was_used() -> None:
    core = Core(policy(rpm=60.0 * 10))
    for _ in range(10):
        leased(core, item())
    core.set_policy(policy(rpm=60.0 * 5), 0.0)

    found = denied(core, item())
    assert found.reason is Reason.BUDGET
    assert found.retry_after_seconds == pytest.approx(6 / 5)


# ── Order ─────────────────────────────────────────────────────────────────────────────────────


def test_a_try_never_overtakes_who_waits_for_the_same_model() -> None:
    core = Core(policy(models={"m": RequestCaps(1, tpm=60.0 * 10)}))
    lease = leased(core, item(tokens=10))
    waits(core, item(tokens=10))
    core.release(lease, SUCCESS, 0.0)
    assert core.pump(0.0) == []  # the slot is free, its tokens are not there yet

    found = denied(core, item(EMBEDDING, tokens=0))
    assert found.reason is Reason.QUEUED_WAITERS_AHEAD
    assert found.numbers["waiting"] == 1


def test_a_try_never_overtakes_who_waits_for_the_same_provider() -> None:
    core = Core(policy(tpm=60.0 * 10))
    leased(core, item(model("a"), tokens=10))
    waits(core, item(model("a"), tokens=10))

    assert denied(core, item(model("b"))).reason is Reason.QUEUED_WAITERS_AHEAD


def test_a_try_does_not_overtake_those_behind_one_whose_deadline_has_passed() -> None:
    core = Core(policy(2, models={"a": RequestCaps(tpm=60.0 * 10)}))
    leased(core, item(model("a"), tokens=5))
    late = waits(core, item(model("a"), tokens=10, timeout=0.25))
    behind = waits(core, item(model("a"), tokens=5))  # fits, but is not next

    assert denied(core, item(model("b")), 0.25).reason is Reason.QUEUED_WAITERS_AHEAD
    assert core.needs_pump
    assert core.pump(0.25) == [late, behind]
    assert late.denied is not None
    assert late.denied.reason is Reason.QUEUE_TIMEOUT


def test_one_whose_deadline_has_passed_keeps_nobody_back() -> None:
    core = Core(policy(1))
    lease = leased(core, item())
    late = waits(core, item(timeout=1.0))
    core.release(lease, SUCCESS, 1.0)

    leased(core, item(), 1.0)
    assert core.withdraw(late) is None
    assert core.pump(1.0) == [late]


def test_who_waits_for_its_own_limit_keeps_no_other_model_back() -> None:
    core = Core(policy(8, models={"a": RequestCaps(1)}))
    leased(core, item(model("a")))
    waits(core, item(model("a")))

    leased(core, item(model("b")))


def test_a_closed_domain_keeps_no_open_one_back() -> None:
    core = Core(policy(algorithm="aimd"))
    first = leased(core, item(CHAT))
    leased(core, item(EMBEDDING))
    core.release(first, refused(10.0), 0.0)
    late = waits(core, item(CHAT))

    leased(core, item(EMBEDDING))
    core.limit(EMBEDDING).limit = 2
    also = waits(core, item(EMBEDDING))
    core.limit(EMBEDDING).limit = 3
    core.set_policy(policy(algorithm="aimd"), 1.0)
    assert core.pump(1.0) == [also]
    assert core.next_due() == 10.0
    assert core.pump(10.0) == [late]


def test_domains_behind_one_limit_get_turns_by_their_weights() -> None:
    core = Core(policy(8))
    for _ in range(8):
        leased(core, item())
    held = [lease for lease, *_ in core._leases.values()]
    for _ in range(2_000):
        core.enqueue(item(CHAT, "chat", 3), 0.0)
        core.enqueue(item(EMBEDDING, "embedding", 1), 0.0)
    served: Counter[str] = Counter()
    for _ in range(2_000):
        core.release(held.pop(0), SUCCESS, 0.0)
        for waiter in core.pump(0.0):
            assert waiter.lease is not None
            held.append(waiter.lease)
            served[waiter.item.resource.domain] += 1

    assert served["chat"] / served["embedding"] == pytest.approx(3.0, rel=0.05)


def test_models_behind_one_cap_take_turns() -> None:
    core = Core(policy(1))
    lease = leased(core, item(model("a")))
    for name in "aaaabbcc":
        waits(core, item(model(name)))
    order = ""
    for _ in range(8):
        core.release(lease, SUCCESS, 0.0)
        (waiter,) = core.pump(0.0)
        assert waiter.lease is not None
        lease = waiter.lease
        order += waiter.item.resource.model

    assert order == "bcabcaaa"  # the first of all was one of a


def test_groups_on_different_models_share_the_providers_cap_by_weight() -> None:
    core = Core(policy(1))
    lease = leased(core, item(model("a")))
    for _ in range(200):
        core.enqueue(item(model("a"), "heavy", 3), 0.0)
        core.enqueue(item(model("b"), "light", 1), 0.0)
    served: Counter[str] = Counter()
    for _ in range(200):
        core.release(lease, SUCCESS, 0.0)
        (waiter,) = core.pump(0.0)
        assert waiter.lease is not None
        lease = waiter.lease
        served[waiter.item.group.key] += 1

    assert served["heavy"] / served["light"] == pytest.approx(3.0, rel=0.05)


# ── Waking ────────────────────────────────────────────────────────────────────────────────────


def test_a_cool_down_is_over_at_its_end_and_not_before() -> None:
    core = Core(policy())
    core.release(leased(core, item()), refused(5.0), 1.0)
    found = denied(core, item(), 2.0)
    waiter = waits(core, item(), 2.0)

    assert (found.reason, found.retry_after_seconds, found.available_at) == (
        Reason.COOLDOWN,
        4.0,
        6.0,
    )
    assert core.next_due() == 6.0
    assert core.pump(5.999) == []
    assert core.pump(6.0) == [waiter]


def test_a_paced_limit_is_waited_for_one_by_one() -> None:
    core = Core(policy(), pace=0.5)
    leased(core, item())
    waiters = [waits(core, item()) for _ in range(3)]
    sent = []
    while (due := core.next_due()) is not None:
        sent += [(due, waiters.index(one)) for one in core.pump(due)]

    assert sent == [(0.5, 0), (1.0, 1), (1.5, 2)]


def test_a_limit_that_grows_with_time_is_waited_for() -> None:
    core = Core(policy())
    leased(core, item())
    core.limit().limit = 1
    core.limit().grows_to = (3.0, 2)
    waiter = waits(core, item())

    assert core.next_due() == 3.0
    assert core.pump(3.0) == [waiter]


def test_who_waited_for_tokens_and_gives_up_lets_the_next_go() -> None:
    core = Core(policy(tpm=60.0 * 10))
    leased(core, item(tokens=6))
    large = waits(core, item(tokens=10))
    small = waits(core, item(tokens=2))

    assert core.withdraw(large) is None
    assert core.pump(0.0) == [small]


def test_the_last_of_a_model_that_gives_up_lets_another_model_go() -> None:
    core = Core(policy(tpm=60.0 * 10))
    leased(core, item(model("a"), tokens=10))
    large = waits(core, item(model("b"), tokens=10))
    small = waits(core, item(model("a"), tokens=0))

    assert core.withdraw(large) is None
    assert core.pump(0.0) == [small]


def test_a_request_larger_than_the_bucket_waits_for_a_full_one() -> None:
    core = Core(policy(tpm=60.0 * 10))
    leased(core, item(tokens=10))
    waiter = waits(core, item(tokens=1_000))

    assert core.next_due() == 1.0
    assert core.pump(1.0) == [waiter]


def test_a_deadline_ends_the_wait() -> None:
    core = Core(policy(1))
    leased(core, item())
    waiter = waits(core, item(timeout=2.0), 1.0)

    assert core.next_due() == 3.0
    assert core.pump(2.9) == []
    assert core.pump(3.0) == [waiter]
    assert waiter.denied is not None
    assert waiter.denied.reason is Reason.QUEUE_TIMEOUT
    assert (core.waiting, core.next_due()) == (0, None)


def test_nothing_is_due_when_only_an_end_can_help() -> None:
    core = Core(policy(1))
    leased(core, item())
    waits(core, item())

    assert core.next_due() is None


def test_somebody_who_comes_after_all_had_given_up_is_not_forgotten() -> None:
    core = Core(policy(1))
    lease = leased(core, item())
    core.withdraw(waits(core, item()))
    core.release(lease, SUCCESS, 0.0)
    waiter = core.enqueue(item(), 0.0)

    assert core.pump(0.0) == [waiter]


def test_shutting_tells_everybody_and_lets_nobody_in() -> None:
    core = Core(policy(1))
    lease = leased(core, item())
    waiters = [waits(core, item(timeout=9.0)), waits(core, item(model("n")))]
    answered = core.shut()

    assert Counter(answered) == Counter(waiters)
    assert {one.denied.reason for one in answered if one.denied} == {Reason.SHUTDOWN}
    assert denied(core, item()).reason is Reason.SHUTDOWN
    assert core.release(lease, SUCCESS, 0.0).released
    assert (core.pump(0.0), core.next_due(), core.in_flight, core.waiting) == ([], None, 0, 0)


# ── Releasing ─────────────────────────────────────────────────────────────────────────────────


def test_a_release_counts_once() -> None:
    core = Core(policy(2))
    lease, other = leased(core, item()), leased(core, item())

    assert core.release(lease, SUCCESS, 0.0).reason is ReleaseReason.RELEASED
    assert core.release(lease, SUCCESS, 0.0).reason is ReleaseReason.DUPLICATE
    stale = msgspec.structs.replace(other, item=item(EMBEDDING))
    assert core.release(stale, SUCCESS, 0.0).reason is ReleaseReason.STALE_LEASE
    foreign = msgspec.structs.replace(other, controller_generation="0")
    result = core.release(foreign, SUCCESS, 0.0)
    assert result.reason is ReleaseReason.WRONG_CONTROLLER_GENERATION
    unknown = msgspec.structs.replace(other, lease_id=99)
    assert core.release(unknown, SUCCESS, 0.0).reason is ReleaseReason.UNKNOWN_LEASE
    assert (core.in_flight, core.limit().endings) == (1, [SUCCESS])
    assert core.release(msgspec.structs.replace(other), SUCCESS, 0.0).released  # a copy is as good


def test_an_algorithm_that_raises_frees_the_slot_all_the_same() -> None:
    core = Core(policy(1))
    lease = leased(core, item())
    core.limit().marks.clear()
    result = core.release(lease, SUCCESS, 0.0)

    assert result.released
    assert "KeyError" in result.diagnostics["algorithm"]
    assert core.tree.resources[CHAT].leaks.algorithm_errors == 1
    assert core.in_flight == core.tree.providers["p"].gate.in_flight == 0


@pytest.mark.parametrize(
    ("ending", "back"),
    [
        (SUCCESS, 0.0),
        (RequestReleaseOutcome(RequestOutcome.SUCCESS, tokens_used=4), 6.0),
        (RequestReleaseOutcome(RequestOutcome.PROVIDER_TIMEOUT), 0.0),
        (REFUSED, 10.0),
        (RequestReleaseOutcome(RequestOutcome.LOCAL_CANCELLED, was_sent=False), 10.0),
    ],
)
def test_tokens_are_settled_by_what_was_used(ending: RequestReleaseOutcome, back: float) -> None:
    core = Core(policy(tpm=60.0 * 20))
    lease = leased(core, item(tokens=10))
    bucket = core.tree.providers["p"].gate.tokens
    assert bucket is not None
    assert bucket.available(0.0) == 10.0
    core.release(lease, ending, 0.0)

    assert bucket.available(0.0) == 10.0 + back


def test_what_never_left_gives_its_place_in_the_minute_back() -> None:
    core = Core(policy(rpm=60.0))
    unsent = RequestReleaseOutcome(RequestOutcome.LOCAL_CANCELLED, was_sent=False)
    core.release(leased(core, item()), unsent, 0.0)
    core.release(leased(core, item()), CANCELLED, 0.0)

    assert denied(core, item()).reason is Reason.BUDGET


# ── Many ──────────────────────────────────────────────────────────────────────────────────────


def test_relief_is_told_when_fewer_wait_and_when_a_cool_down_ends() -> None:
    core = Core(policy(1))
    core.tracks_pressure = True
    lease = leased(core, item())
    waits(core, item())
    assert core.take_pressure_changes() == []
    core.release(lease, refused(5.0), 0.0)
    core.pump(0.0)
    assert core.take_pressure_changes() == []
    assert core.next_due() == 5.0
    core.pump(5.0)

    assert core.take_pressure_changes() == [CHAT]
    assert core.take_pressure_changes() == []


def test_a_cool_down_ends_audibly_though_nobody_waits() -> None:
    core = Core(policy())
    core.tracks_pressure = True
    leases = [leased(core, item()) for _ in range(3)]
    for seconds, lease in zip((5.0, 2.0, 7.0), leases, strict=True):
        core.release(lease, refused(seconds), 0.0)

    assert core.next_due() == 7.0
    core.pump(7.0)
    assert (core.take_pressure_changes(), core.next_due()) == ([CHAT], None)


def test_models_that_nobody_uses_are_forgotten_and_those_that_learned_are_not() -> None:
    core = Core(policy())
    kept = leased(core, item(model("kept")))
    taught = leased(core, item(model("taught")))
    core.limit(model("taught")).ceiling = 3.0
    core.release(taught, SUCCESS, 0.0)
    for number in range(2 * MODELS_KEPT):
        core.release(leased(core, item(model(f"host-{number}"))), SUCCESS, 0.0)

    names = {key.model for key in core.tree.models}
    assert {"kept", "taught"} < names
    assert len(names) <= MODELS_KEPT + 1
    assert len(core.tree.resources) == len(core.tree.providers["p"].models) == len(names)
    assert core.release(kept, SUCCESS, 0.0).released
