# SPDX-License-Identifier: Apache-2.0
"""What the in-process store promises beyond the contract: no file, no thread, answers at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.stores.sqlite.in_process import WAIT_SECONDS, InProcessStore
from penstock.testing import ManualClock, VirtualClock, run_virtual
from tests.contract import StoreWorld


def new_world() -> StoreWorld:
    clock = ManualClock()
    return StoreWorld(InProcessStore(clock), clock)


def test_every_answer_is_there_when_the_call_returns() -> None:
    world = new_world()
    threads = threading.active_count()

    enqueued = world.store.enqueue([world.job("a")])

    assert enqueued.done
    assert world.store.stats().done
    assert threading.active_count() == threads


def test_stores_of_one_process_share_nothing() -> None:
    one, other = new_world(), new_world()

    one.add("a")

    assert other.store.job("a").result() is None


def test_many_threads_may_use_it() -> None:
    world = new_world()

    def add(n: int) -> None:
        world.store.enqueue([world.job(str(n))]).result()
        assert world.store.job(str(n)).result() is not None

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(200)))

    assert world.store.check().result() == []
    assert sum(world.store.stats().result().states.values()) == 200


@pytest.mark.parametrize("timeout", [0.25, None])
def test_a_lease_that_left_nothing_wakes_nobody(timeout: float | None) -> None:
    async def main() -> float:
        clock = VirtualClock()
        world = StoreWorld(InProcessStore(clock), ManualClock())
        worker = world.new_worker()
        world.add("a", "b")
        assert len(world.take(worker)) == 2
        began = clock.monotonic()
        await world.store.wait_for_work(timeout)
        return clock.monotonic() - began

    assert run_virtual(main()) == (WAIT_SECONDS if timeout is None else timeout)
