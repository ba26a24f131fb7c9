# SPDX-License-Identifier: Apache-2.0
"""Names of states and tasks that somebody typed."""

from __future__ import annotations

import pytest

from penstock.errors import UsageError
from penstock.model.job import JobState
from penstock.operate.actions import UnknownTaskName, state_named, stored_tasks, unknown_task
from tests.contract.world import StoreWorld


def test_a_state_is_found_by_its_name_or_the_nearest_is_named() -> None:
    assert state_named(None) is None
    assert state_named("queued") is JobState.QUEUED
    with pytest.raises(UsageError, match="'quened'; the nearest is 'queued'"):
        state_named("quened")


def test_a_task_without_jobs_is_unknown_and_the_nearest_is_named(world: StoreWorld) -> None:
    assert unknown_task(world.store, None) is None
    assert unknown_task(world.store, "work") is None
    assert unknown_task(world.store, "wrok") == UnknownTaskName("wrok", "work", ("work",))
    assert unknown_task(world.store, "payments") == UnknownTaskName("payments", None, ("work",))


def test_a_dataset_is_stored_under_one_name_for_each_root(world: StoreWorld) -> None:
    world.add(world.job("a", task="dataset:days#r1"), world.job("b", task="dataset:days#r2"))

    assert stored_tasks(world.store, "work") == ["work"]
    assert stored_tasks(world.store, "dataset:days") == ["dataset:days#r1", "dataset:days#r2"]
    assert stored_tasks(world.store, "dataset:none") == ["dataset:none"]
