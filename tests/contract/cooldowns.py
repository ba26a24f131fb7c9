# SPDX-License-Identifier: Apache-2.0
"""What is kept of the long cool-downs of providers, and who may probe one?"""

from __future__ import annotations

from penstock.model.provider import CooldownKey
from penstock.model.views import StoredCooldown
from penstock.stores.protocol import LEARNED_SECONDS, PROBE_SECONDS
from tests.contract.world import StoreWorld

MODEL = CooldownKey("openai", "gpt-5", "a1b2")
HOUR = 3_600.0


def cooldowns(store_world: StoreWorld) -> dict[CooldownKey, StoredCooldown]:
    found = store_world.store.cooldowns().result()
    assert all(isinstance(one.key, CooldownKey) for one in found)
    return {one.key: one for one in found}


def test_nothing_is_known_of_a_provider_that_nobody_was_refused_by(
    store_world: StoreWorld,
) -> None:
    assert cooldowns(store_world) == {}
    assert store_world.store.take_probe(MODEL).result() is False
    assert store_world.store.take_probe(MODEL, at_once=True).result() is False
    store_world.store.end_cooldown(MODEL).result()
    assert cooldowns(store_world) == {}


def test_a_cool_down_is_there_with_the_time_that_is_left(store_world: StoreWorld) -> None:
    store = store_world.store
    store.begin_cooldown(MODEL, HOUR, '{"é": "☃"}').result()
    store_world.clock.advance(600)

    found = cooldowns(store_world)[MODEL]

    assert HOUR - 601 < found.left_seconds <= HOUR - 600
    assert found.until_at - found.begun_at == HOUR * 1_000_000
    assert (found.document, found.probed_seconds) == ('{"é": "☃"}', 0.0)


def test_a_wait_that_is_known_is_never_shortened(store_world: StoreWorld) -> None:
    store = store_world.store
    store.begin_cooldown(MODEL, HOUR, "long").result()
    first = cooldowns(store_world)[MODEL]

    store.begin_cooldown(MODEL, 60, "short").result()
    assert cooldowns(store_world)[MODEL].until_at == first.until_at
    assert cooldowns(store_world)[MODEL].document == "long"

    store.begin_cooldown(MODEL, 2 * HOUR, "longer").result()
    assert cooldowns(store_world)[MODEL].until_at >= first.until_at + HOUR * 1_000_000
    assert cooldowns(store_world)[MODEL].document == "longer"


def test_models_providers_and_accounts_are_apart_and_the_newest_come_first(
    store_world: StoreWorld,
) -> None:
    keys = [
        MODEL,
        MODEL._replace(account="c3d4"),
        MODEL._replace(model="*"),
        CooldownKey("x", "gpt-5"),
    ]
    for key in keys:
        store_world.store.begin_cooldown(key, HOUR, key.account).result()
        store_world.clock.advance(1)

    assert [one.key for one in store_world.store.cooldowns().result()] == keys[::-1]
    store_world.store.end_cooldown(MODEL).result()
    assert set(cooldowns(store_world)) == set(keys[1:])


def test_one_probes_and_only_when_it_is_over(store_world: StoreWorld) -> None:
    store = store_world.store
    store.begin_cooldown(MODEL, HOUR, "").result()
    assert store.take_probe(MODEL).result() is False

    store_world.clock.advance(HOUR + 1)
    assert cooldowns(store_world)[MODEL].left_seconds == 0.0
    assert [store.take_probe(MODEL).result() for _ in range(3)] == [True, False, False]
    assert 0 < cooldowns(store_world)[MODEL].probed_seconds <= PROBE_SECONDS


def test_who_probes_and_does_not_tell_is_followed_by_another(store_world: StoreWorld) -> None:
    store = store_world.store
    store.begin_cooldown(MODEL, 60, "").result()
    store_world.clock.advance(61)
    store.take_probe(MODEL).result()

    store_world.clock.advance(PROBE_SECONDS + 1)

    assert cooldowns(store_world)[MODEL].probed_seconds == 0.0
    assert store.take_probe(MODEL).result() is True


def test_a_probe_at_once_is_one_as_well(store_world: StoreWorld) -> None:
    store = store_world.store
    store.begin_cooldown(MODEL, HOUR, "").result()

    assert store.take_probe(MODEL, at_once=True).result() is True
    assert store.take_probe(MODEL, at_once=True).result() is False


def test_a_probe_that_was_refused_gives_its_right_back(store_world: StoreWorld) -> None:
    store = store_world.store
    store.begin_cooldown(MODEL, 60, "").result()
    store_world.clock.advance(61)
    store.take_probe(MODEL).result()

    store.begin_cooldown(MODEL, 5, "").result()

    assert cooldowns(store_world)[MODEL].probed_seconds == 0.0
    assert store.take_probe(MODEL).result() is False
    store_world.clock.advance(6)
    assert store.take_probe(MODEL).result() is True


def test_what_was_over_long_ago_is_forgotten_when_another_begins(store_world: StoreWorld) -> None:
    other = CooldownKey("crossref", "api.crossref.org")
    store_world.store.begin_cooldown(MODEL, 60, "").result()
    store_world.clock.advance(LEARNED_SECONDS)
    store_world.store.begin_cooldown(other, 60, "").result()
    assert set(cooldowns(store_world)) == {MODEL, other}
    store_world.clock.advance(61)

    store_world.store.begin_cooldown(other, 60, "").result()

    assert set(cooldowns(store_world)) == {other}


def test_a_cool_down_is_nothing_to_lease(store_world: StoreWorld) -> None:
    worker = store_world.new_worker()

    store_world.store.begin_cooldown(MODEL, HOUR, "").result()

    batch = store_world.lease(worker)
    assert (batch.jobs, batch.more) == ([], False)
