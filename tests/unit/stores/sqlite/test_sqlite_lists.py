# SPDX-License-Identifier: Apache-2.0
"""Does a list of what has not ended cost the same, however many jobs have?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.model.job import Edge, JobId, JobState
from penstock.stores.protocol import JobFilter
from penstock.stores.sql.views import WINDOW_JOBS
from penstock.stores.sqlite.store import SqliteStore
from penstock.testing.clocks import ManualClock
from tests.contract.world import StoreWorld

STEP = 50  # instructions of SQLite between two counts


@pytest.fixture
def world(tmp_path: Path) -> Iterator[StoreWorld]:
    clock = ManualClock()
    path = tmp_path / "store.db"
    store = SqliteStore.open(path, clock=clock, boot_clock=clock, durability="normal")
    yield StoreWorld(store, clock)
    store.close()


def finish(world: StoreWorld, name: str, count: int) -> None:
    """Add jobs and bring them to their end."""
    worker = world.new_worker(tasks=["quick"])
    for first in range(0, count, 5_000):
        some = [world.job(f"{name}-{first + n}", task="quick") for n in range(5_000)]
        world.store.enqueue(some).result()
    while jobs := world.lease(worker, 1_000).jobs:
        world.store.ack(worker, [world.end(job) for job in jobs]).result()


def instructions(world: StoreWorld, state: JobState, count: int) -> int:
    """What the first page of a list costs, in steps of SQLite."""
    steps = 0

    def step() -> bool:
        nonlocal steps
        steps += 1
        return False

    store: Any = world.store
    connection = store._reader._connection
    connection.set_progress_handler(step, STEP)
    found = world.store.jobs(JobFilter(state=state), JobId(0), 100).result()
    connection.set_progress_handler(None)
    assert len(found) == count
    return steps


OPEN = {JobState.WAITING: 1, JobState.QUEUED: 2, JobState.IN_PROGRESS: 1}


def open_some(world: StoreWorld, mark: str) -> None:
    """Add jobs of each state that is open."""
    world.add(f"leased{mark}")
    world.take_one(world.new_worker())
    world.add(f"queued{mark}", world.job(f"late{mark}", delay=9.0))
    world.add(world.job(f"waiting{mark}", after=[Edge(f"queued{mark}")]))


def test_ended_jobs_in_front_are_jumped_over(world: StoreWorld) -> None:
    finish(world, "before", 2 * WINDOW_JOBS)
    open_some(world, "")
    few = {state: instructions(world, state, count) for state, count in OPEN.items()}

    # The open ones come last again, behind three times as many.
    world.cancel("leased", "queued", "late", "waiting")
    finish(world, "more", 4 * WINDOW_JOBS)
    open_some(world, "2")
    many = {state: instructions(world, state, count) for state, count in OPEN.items()}

    assert {state for state in OPEN if many[state] > 1.2 * few[state] + 10} == set()


@pytest.mark.parametrize("state", [JobState.ERROR, JobState.CANCELLED, JobState.SKIPPED])
def test_what_ended_badly_is_found_by_its_index(world: StoreWorld, state: JobState) -> None:
    finish(world, "before", WINDOW_JOBS)
    world.add("top", world.job("child", after=[Edge("top")]), "stopped")
    world.cancel("stopped")
    world.run(world.new_worker(), "top", JobState.ERROR)

    assert instructions(world, state, 1) < 20
