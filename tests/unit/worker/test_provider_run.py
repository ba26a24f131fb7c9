# SPDX-License-Identifier: Apache-2.0
"""Learned limits are kept, whatever the share of a process, and hold nobody up."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from penstock.admission.requests.algorithm import LearnedLimit, read_learned
from penstock.errors import StoreBusy
from penstock.model.provider import ProviderModelKey
from penstock.model.views import StoredLimit
from penstock.stores.sqlite.in_process import InProcessStore
from penstock.stores.store_future import Reply
from penstock.testing import ManualClock
from penstock.worker.provider_run import (
    FIRST_SAVE_SECONDS,
    SAVE_SECONDS,
    LearnedLimits,
    lesser,
)

KEY = ProviderModelKey("ai", "m")
FOUND = LearnedLimit(ceiling=6.0, confidence=2, rate=3.0)


def kept(store: InProcessStore) -> list[LearnedLimit | None]:
    return [read_learned(one.document) for one in store.learned().result()]


def test_what_a_part_has_found_is_kept_for_the_whole() -> None:
    clock = ManualClock()
    store = InProcessStore(clock)

    asyncio.run(LearnedLimits(store, clock, 2).save({KEY: FOUND}))
    clock.advance(100)
    four = LearnedLimits(store, clock, 4)
    asyncio.run(four.load())

    assert kept(store) == [LearnedLimit(ceiling=12.0, confidence=2, rate=6.0)]
    before = four.earlier(KEY)
    assert before is not None
    assert before.limit == LearnedLimit(ceiling=3.0, confidence=2, rate=1.5)
    assert before.age_seconds == 100.0
    assert four.earlier(ProviderModelKey("ai", "n")) is None


def test_only_what_is_new_is_written() -> None:
    clock = ManualClock()
    store = InProcessStore(clock)
    limits = LearnedLimits(store, clock, 1)
    asyncio.run(limits.save({KEY: FOUND, ProviderModelKey("ai", "idle"): LearnedLimit()}))
    (first,) = store.learned().result()
    clock.advance(5)

    asyncio.run(limits.save({KEY: FOUND}))

    assert store.learned().result() == [first]


def test_it_is_due_soon_for_a_run_that_is_short_and_then_once_a_minute() -> None:
    clock = ManualClock()
    limits = LearnedLimits(InProcessStore(clock), clock, 1)
    due = [limits.is_due]
    for seconds in (FIRST_SAVE_SECONDS, FIRST_SAVE_SECONDS, SAVE_SECONDS - FIRST_SAVE_SECONDS):
        clock.advance(seconds)
        due.append(limits.is_due)
        if limits.is_due:
            asyncio.run(limits.save({}))

    assert due == [False, True, False, True]


def test_a_store_that_is_away_stops_nobody_and_is_tried_again() -> None:
    class Away(InProcessStore):
        is_away = True

        def save_learned(self, limits: Mapping[ProviderModelKey, str]) -> Reply[None]:
            if self.is_away:
                return Reply.failed(StoreBusy("away"))
            return InProcessStore.save_learned(self, limits)

        def learned(self) -> Reply[list[StoredLimit]]:
            if self.is_away:
                return Reply.failed(StoreBusy("away"))
            return InProcessStore.learned(self)

    clock = ManualClock()
    store = Away(clock)
    limits = LearnedLimits(store, clock, 1)

    asyncio.run(limits.load())
    asyncio.run(limits.save({KEY: FOUND}))
    store.is_away = False
    asyncio.run(limits.save({KEY: FOUND}))

    assert kept(store) == [FOUND]


def test_a_document_of_another_version_is_passed_over() -> None:
    clock = ManualClock()
    store = InProcessStore(clock)
    store.save_learned({KEY: '{"mode": "later"}', ProviderModelKey("b", "m"): "no JSON"}).result()
    limits = LearnedLimits(store, clock, 1)

    asyncio.run(limits.load())

    assert limits.earlier(KEY) is None


def test_of_several_limits_of_a_model_the_least_is_kept() -> None:
    low, high, never = LearnedLimit(ceiling=3), LearnedLimit(ceiling=9), LearnedLimit()

    assert lesser(low, high) == lesser(high, low) == low
    assert lesser(low, never) == lesser(never, low) == lesser(low, None) == low
    assert lesser(never, None) == never
