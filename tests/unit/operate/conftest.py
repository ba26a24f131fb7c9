# SPDX-License-Identifier: Apache-2.0
"""A store in memory, with jobs in most states."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.model.job import Edge, JobState
from penstock.stores.sqlite.in_process import InProcessStore
from penstock.testing.clocks import ManualClock
from tests.contract.world import StoreWorld


@pytest.fixture
def world() -> Iterator[StoreWorld]:
    """`bad` failed, `child` was skipped, `good` is done, `held` in progress, `next` is queued."""
    clock = ManualClock()
    store = InProcessStore(clock)
    world = StoreWorld(store, clock)
    worker = world.new_worker()
    world.add("bad", world.job("child", after=[Edge("bad")]))
    world.run(worker, "bad", JobState.ERROR)
    world.add("good")
    world.run(worker, "good")
    world.add("held")
    world.take_one(worker)
    world.add("next", world.job("waits", after=[Edge("next")]))
    yield world
    assert store.check().result() == []
    store.close()
