# SPDX-License-Identifier: Apache-2.0
"""A supervisor renews the locks of its build, and lets them go."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.errors import BuildLost
from penstock.ids import SeededIds
from penstock.stores.sqlite.in_process import InProcessStore
from penstock.supervisor import protocol
from penstock.supervisor.store_access import StoreAccess
from penstock.testing import ManualClock

HELLO = protocol.Hello(
    pid=1,
    app="",
    store_url="sqlite://",
    durability="normal",
    lease_ttl_seconds=30,
    beat_seconds=3600,
    grace_seconds=10,
    statistics_seconds=0,
    max_crashes=3,
)


@pytest.fixture
def access() -> Iterator[StoreAccess]:
    clock = ManualClock()
    access = StoreAccess("run-1", lambda *_: InProcessStore(clock), list, clock, SeededIds(0))
    access.meet(HELLO)
    assert access.open(60)
    access.keep_locks(["prices"])  # which nobody holds in this store so far
    yield access
    access.stop_heartbeats()
    access.close()


def beat(access: StoreAccess) -> None:
    assert access._locks is not None
    access._locks.run_once()


def test_locks_that_are_gone_while_they_are_needed_end_the_run(access: StoreAccess) -> None:
    beat(access)

    with pytest.raises(BuildLost, match="nobody holds them now"):
        access.look(lambda: None)


def test_locks_that_are_held_are_renewed_until_they_are_let_go(access: StoreAccess) -> None:
    store = access.store
    assert store is not None
    store.take_locks(["prices"], "run-1", "mark", 30, []).result()

    beat(access)
    access.look(lambda: None)
    held = [lock.name for lock in store.locks().result()]
    access.stop_heartbeats()
    access.let_locks_go()

    assert held == ["prices"]
    assert store.locks().result() == []
