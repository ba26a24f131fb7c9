# SPDX-License-Identifier: Apache-2.0
"""Forgetting jobs that ended long ago."""

from __future__ import annotations

from penstock.model.job import finished
from penstock.operate.purge import count_purged, purge
from tests.contract.world import StoreWorld

DAY = 86_400.0


def test_a_purge_forgets_what_is_old_and_nobody_waits_for(world: StoreWorld) -> None:
    world.add(world.job("later", after=[finished("good"), finished("next")]))
    world.clock.advance(2 * DAY)

    young = count_purged(world.store, 3 * DAY, world.clock)
    counted = count_purged(world.store, DAY, world.clock)
    there = world.store.job("bad").result()
    purged = purge(world.store, DAY, world.clock)

    assert (young, counted, purged) == (0, 2, 2)  # bad and child
    assert there is not None
    assert world.store.job("bad").result() is None
    assert world.store.job("good").result() is not None
