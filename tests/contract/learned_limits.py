# SPDX-License-Identifier: Apache-2.0
"""What is kept of the limits that runs have learned?"""

from __future__ import annotations

from penstock.model.provider import ProviderModelKey
from penstock.model.views import StoredLimit
from penstock.stores.protocol import LEARNED_SECONDS
from tests.contract.world import StoreWorld

GPT = ProviderModelKey("openai", "gpt-5")
HOST = ProviderModelKey("crossref", "api.crossref.org")


def kept(store_world: StoreWorld) -> dict[ProviderModelKey, str]:
    return {one.key: one.document for one in store_world.store.learned().result()}


def test_nothing_is_known_of_a_limit_that_nobody_learned(store_world: StoreWorld) -> None:
    assert store_world.store.learned().result() == []


def test_what_was_learned_is_there_with_its_time(store_world: StoreWorld) -> None:
    now = store_world.clock.now_micros

    store_world.store.save_learned({GPT: '{"ceiling": 12}'}).result()

    (found,) = store_world.store.learned().result()
    assert (found.key, found.document) == (GPT, '{"ceiling": 12}')
    assert isinstance(found, StoredLimit)
    assert isinstance(found.key, ProviderModelKey)
    assert found.learned_at >= now


def test_the_last_word_about_a_model_counts_and_others_stay(store_world: StoreWorld) -> None:
    store = store_world.store
    store.save_learned({GPT: "1", HOST: "2"}).result()
    store_world.clock.advance(5)

    store.save_learned({GPT: "3"}).result()

    assert kept(store_world) == {GPT: "3", HOST: "2"}
    assert [one.key for one in store.learned().result()] == [GPT, HOST]  # the newest first


def test_models_of_several_providers_with_one_name_are_several(store_world: StoreWorld) -> None:
    other = ProviderModelKey("azure", "gpt-5")
    odd = ProviderModelKey("a'b", 'ä "quoted" %s ?1 $1 name')

    store_world.store.save_learned({GPT: "1", other: "2", odd: '{"é": "☃"}'}).result()

    assert kept(store_world) == {GPT: "1", other: "2", odd: '{"é": "☃"}'}


def test_what_is_old_is_forgotten_when_something_is_learned(store_world: StoreWorld) -> None:
    store = store_world.store
    store.save_learned({GPT: "old"}).result()
    store_world.clock.advance(LEARNED_SECONDS - 1)
    store.save_learned({}).result()
    assert kept(store_world) == {GPT: "old"}
    store_world.clock.advance(2)

    store.save_learned({HOST: "new"}).result()

    assert kept(store_world) == {HOST: "new"}


def test_what_is_learned_is_nothing_to_lease(store_world: StoreWorld) -> None:
    worker = store_world.new_worker()

    store_world.store.save_learned({GPT: "1"}).result()

    batch = store_world.lease(worker)
    assert (batch.jobs, batch.more) == ([], False)
