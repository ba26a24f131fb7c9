# SPDX-License-Identifier: Apache-2.0
"""How loaded is a provider's resource?"""

from __future__ import annotations

import pytest

from penstock.admission.requests.decisions import RequestAdmissionLease
from penstock.admission.requests.policy import ProcessShare, ProviderPolicy, RequestCaps
from penstock.admission.requests.pressure import EXACT_MODELS, RequestPressureReader
from penstock.model.provider import ProviderModelKey, RequestResourceKey
from penstock.model.request import DeclaredCap, PressureSnapshot, RequestOutcome
from tests.requests import CHAT, EMBEDDING, SUCCESS, Core, aimd, item, policy, refused


class World:
    """A controller, its reader and the time."""

    def __init__(self, *policies: ProviderPolicy, share: ProcessShare | None = None) -> None:
        self.now = 0.0
        self.core = Core(*policies, share=share)
        self.reader = RequestPressureReader(self.core, lambda: self.now)

    def lease(self, resource: RequestResourceKey = CHAT) -> RequestAdmissionLease:
        found = self.core.try_acquire(item(resource), self.now)
        assert isinstance(found, RequestAdmissionLease)
        return found

    def wait(self, resource: RequestResourceKey = CHAT) -> None:
        self.core.enqueue(item(resource), self.now)
        self.core.pump(self.now)

    def of(self, *key: str) -> PressureSnapshot:
        found = self.reader.snapshot(RequestResourceKey(*key))
        assert found is not None
        return found


def test_nothing_is_known_of_what_nobody_asked_for() -> None:
    reader = World(policy(3)).reader

    assert reader.snapshot(CHAT) is None
    assert reader.snapshot(RequestResourceKey("p", "*", "*")) is None
    assert reader.snapshot("p") is None
    assert reader.model(ProviderModelKey("p", "m")) is None
    assert reader.models() == []


def test_a_resource_tells_its_limit_and_who_is_there() -> None:
    world = World(policy(2))
    first, _ = world.lease(), world.lease(EMBEDDING)
    world.wait()
    world.wait()
    world.core.release(first, refused(5.0), 1.0)
    world.now = 2.0

    found = world.of(*CHAT)

    assert (found.limit, found.effective_max, found.in_flight, found.waiters) == (2, 2, 0, 2)
    assert (found.active_leases, found.blocked_until, found.cooldown_seconds) == (0, 6.0, 4.0)
    assert (found.resource, found.captured_at) == (CHAT, 2.0)
    assert (found.consecutive_refusals, found.last_outcome) == (1, RequestOutcome.RATE_LIMITED)


def test_snapshots_are_numbered_by_what_changed_and_never_change_themselves() -> None:
    world = World(policy(2))
    lease = world.lease()
    before = world.of(*CHAT)
    assert world.of(*CHAT).sequence == before.sequence
    world.core.release(lease, SUCCESS, 0.0)
    world.core.release(lease, SUCCESS, 0.0)

    after = world.of(*CHAT)
    assert after.sequence > before.sequence
    assert (before.in_flight, before.leaks.duplicate) == (1, 0)
    assert (after.in_flight, after.leaks.duplicate) == (0, 1)
    with pytest.raises(AttributeError):
        after.limit = 3  # type: ignore[misc]


def test_a_model_is_read_over_its_domains_with_its_caps_and_who_declared_them() -> None:
    caps = (DeclaredCap("p/m", 9), DeclaredCap("q/m", 4))
    declared = ProviderPolicy("p", RequestCaps(8), {"m": RequestCaps(4)}, {"m": caps})
    world = World(declared, share=ProcessShare(0, 2))
    world.lease(CHAT)
    world.lease(EMBEDDING)
    world.wait(EMBEDDING)

    (whole,) = world.reader.models()

    assert (whole.model_cap, whole.provider_cap, whole.effective_max, whole.limit) == (4, 8, 2, 2)
    assert (whole.in_flight, whole.active_leases, whole.waiters) == (2, 2, 1)
    assert (whole.aliases, whole.algorithm, whole.provider_in_flight) == (caps, "adaptive", 2)
    assert {name: part.waiters for name, part in whole.domains.items()} == {
        "chat": 0,
        "embedding": 1,
    }
    assert world.reader.model(whole.key) == whole
    assert world.of("p", "m", "*").waiters == 1


def test_limits_of_domains_together_are_at_most_the_models() -> None:
    core = Core(policy(6, algorithm="aimd"), make=aimd)
    reader = RequestPressureReader(core, lambda: 0.0)
    for resource in (CHAT, EMBEDDING):
        core.try_acquire(item(resource), 0.0)

    found = reader.model(ProviderModelKey("p", "m"))
    assert found is not None
    assert (found.limit, found.domains["chat"].limit) == (6, 6)


def test_a_provider_cools_down_if_all_its_models_do() -> None:
    world = World(policy())
    leases = [world.lease(RequestResourceKey("p", name, "chat")) for name in "ab"]
    world.core.release(leases[0], refused(5.0), 0.0)
    assert world.of("p", "*", "*").cooldown_seconds == 0.0
    world.core.release(leases[1], refused(3.0), 0.0)
    world.now = 1.0

    found = world.of("p", "*", "*")
    assert (found.cooldown_seconds, found.blocked_until) == (2.0, 3.0)


def test_a_provider_with_very_many_models_is_read_without_looking_at_each() -> None:
    world = World(policy())
    for number in range(EXACT_MODELS + 10):
        world.lease(RequestResourceKey("p", f"host-{number}", "http"))
    first = world.of("p", "*", "*")
    world.lease(RequestResourceKey("p", "one-more", "http"))

    soon = world.of("p", "*", "*")
    assert (soon.limit, soon.in_flight) == (first.limit, first.in_flight + 1)
    world.now = 1.0
    assert world.of("p", "*", "*").limit > first.limit


def test_a_process_without_a_slot_has_no_limit_to_offer() -> None:
    world = World(policy(1), share=ProcessShare(1, 2))
    world.core.try_acquire(item(), 0.0)

    assert (world.of(*CHAT).limit, world.of(*CHAT).effective_max) == (0, 0)
