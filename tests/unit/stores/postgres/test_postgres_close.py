# SPDX-License-Identifier: Apache-2.0
"""Is nothing left of a store that was closed, and is whoever still asks it answered?"""

from __future__ import annotations

import asyncio
import threading

import pytest

from penstock.errors import StoreClosed
from penstock.stores.postgres.open import open_postgres
from tests.waiting import wait_until

pytestmark = pytest.mark.integration


def _threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("penstock-")}


def test_no_thread_is_left_of_a_store_that_listened(postgres_url: str) -> None:
    before = _threads()
    store = open_postgres(postgres_url)
    asyncio.run(store.wait_for_work(0.01))
    names = {thread.name for thread in _threads() - before}

    store.close()

    assert names == {"penstock-writer", "penstock-reader", "penstock-listener", "penstock-watch"}
    wait_until(lambda: _threads() <= before)


def test_whoever_asks_after_the_close_is_refused(postgres_url: str) -> None:
    store = open_postgres(postgres_url)
    before = _threads()

    store.close()
    store.close()

    for reply in (store.stats(), store.enqueue([])):
        with pytest.raises(StoreClosed):
            reply.result(10)
    with pytest.raises(StoreClosed):
        asyncio.run(store.wait_for_work(None))
    assert _threads() <= before


def test_a_question_that_meets_the_close_is_answered_or_refused(postgres_url: str) -> None:
    for _ in range(10):
        store = open_postgres(postgres_url)
        closing = threading.Thread(target=store.close)
        closing.start()
        replies = [store.job("k") for _ in range(50)]

        for reply in replies:
            try:
                assert reply.result(30) is None
            except StoreClosed:
                continue
        closing.join()
