# SPDX-License-Identifier: Apache-2.0
"""Does every store keep to the contract?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("penstock.testing.store_contract")

from penstock.stores.memory import MemoryStore  # noqa: E402
from penstock.stores.sqlite.store import SqliteStore  # noqa: E402
from penstock.stores.store import Store  # noqa: E402
from penstock.testing.manual_clock import ManualClock  # noqa: E402
from penstock.testing.store_contract import *  # noqa: E402, F403
from penstock.testing.store_contract import StoreWorld  # noqa: E402


def _open(kind: str, folder: Path, clock: ManualClock) -> Store:
    if kind == "memory":
        return MemoryStore(clock)
    path = folder / "store.db"
    return SqliteStore.open(path, clock=clock, boot_clock=clock, durability="normal")


@pytest.fixture(params=["memory", "sqlite"])
def store_world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreWorld]:
    clock = ManualClock()
    store = _open(request.param, tmp_path, clock)
    closes_itself = "closed_store" in request.node.name
    yield StoreWorld(store, clock)
    if not closes_itself:
        assert store.check().result() == []
    store.close()
