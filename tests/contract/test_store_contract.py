# SPDX-License-Identifier: Apache-2.0
"""Does every store keep to the contract?"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.stores.protocol import Store
from penstock.stores.sqlite.in_process import InProcessStore
from penstock.stores.sqlite.store import SqliteStore
from penstock.testing.clocks import ManualClock
from tests.contract import *  # noqa: F403
from tests.contract import StoreWorld
from tests.model.memory import MemoryStore


def _open(request: pytest.FixtureRequest, folder: Path, clock: ManualClock) -> Store:
    if request.param == "memory":
        return MemoryStore(clock)
    if request.param == "in_process":
        return InProcessStore(clock)
    if request.param == "postgres":
        from penstock.stores.postgres.open import open_postgres

        url = request.getfixturevalue("empty_store")()
        return open_postgres(url, durability="normal", server_time=lambda: clock.now_micros)
    path = folder / "store.db"
    shutil.copy(request.getfixturevalue("new_file"), path)
    return SqliteStore.open(path, clock=clock, boot_clock=clock, durability="normal")


@pytest.fixture(scope="session")
def new_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that was made and never used: to copy it costs a fifth of running the migrations."""
    path = tmp_path_factory.mktemp("new") / "store.db"
    SqliteStore.open(path, durability="normal").close()
    return path


@pytest.fixture(params=["memory", "in_process", "sqlite", "postgres"])
def store_world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreWorld]:
    clock = ManualClock()
    store = _open(request, tmp_path, clock)
    closes_itself = "closed_store" in request.node.name
    on_server = request.param == "postgres"
    yield StoreWorld(
        store, clock, leases_by_wall_clock=on_server, chain_max=300 if on_server else 2_000
    )
    if not closes_itself:
        assert store.check().result() == []
    store.close()
