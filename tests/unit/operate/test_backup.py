# SPDX-License-Identifier: Apache-2.0
"""Backup and restore of an embedded store, and what a server's store is told instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import UsageError
from penstock.model.views import RestorePlan
from penstock.operate.backup import Restore, back_up, refuse_file, void_leases
from penstock.stores.open import open_store
from tests.contract.world import StoreWorld

URL = "sqlite:///shop.db"
SERVER = "postgresql://user:secret@host/db"


def test_a_restore_says_what_it_would_replace_and_keeps_it(tmp_path: Path) -> None:
    open_store(URL, folder=tmp_path).close()

    copy = back_up(URL, Path("copy.db"), force=False, folder=tmp_path)
    work = Restore(URL, Path("copy.db"), folder=tmp_path)

    assert copy.jobs == 0
    assert work.check() == RestorePlan(jobs=0, replaces=True, replaced=0)
    kept = work.run().kept
    assert kept is not None
    assert kept.exists()


def test_a_restore_into_nothing_replaces_nothing(tmp_path: Path) -> None:
    open_store(URL, folder=tmp_path).close()
    back_up(URL, Path("copy.db"), force=False, folder=tmp_path)

    work = Restore("sqlite:///new.db", Path("copy.db"), folder=tmp_path)

    assert work.check() == RestorePlan(jobs=0, replaces=False, replaced=None)
    assert work.run().kept is None


def test_a_server_is_backed_up_and_restored_by_its_own_tools(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="pg_dump") as backed_up:
        back_up(SERVER, Path("copy.db"), force=False, folder=tmp_path)
    with pytest.raises(UsageError, match="pg_restore"):
        Restore(SERVER, Path("copy.db"), folder=tmp_path)

    assert "secret" not in str(backed_up.value)
    refuse_file(SERVER)


def test_leases_are_not_voided_by_hand_in_a_file(world: StoreWorld) -> None:
    with pytest.raises(UsageError, match="voids its leases itself"):
        refuse_file(URL)
    with pytest.raises(UsageError, match="voids its leases itself"):
        void_leases(world.store, world.clock)
