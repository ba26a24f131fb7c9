# SPDX-License-Identifier: Apache-2.0
"""Putting failed jobs back, and counting them before."""

from __future__ import annotations

from penstock.model.job import JobState
from penstock.model.views import RetriedJobs
from penstock.operate.retry import count_retries, retry_failed
from tests.contract.world import StoreWorld


def test_a_count_says_what_a_retry_then_puts_back(world: StoreWorld) -> None:
    counted = count_retries(world.store, None, None)
    unchanged = world.states("bad", "child")
    retried = retry_failed(world.store, None, None)

    assert counted == retried == RetriedJobs(failed=1, skipped=1, of_builds=0)
    assert unchanged == [JobState.ERROR, JobState.SKIPPED]
    assert world.states("bad", "child") == [JobState.QUEUED, JobState.WAITING]
    assert retry_failed(world.store, None, None) == RetriedJobs(0, 0, 0)


def test_a_retry_is_narrowed_by_task_and_by_failures(world: StoreWorld) -> None:
    worker = world.new_worker(tasks=["often"])
    world.add(world.job("often", task="often"))
    for _ in range(3):
        world.fail(worker, world.take(worker)["often"], max_attempts=3)

    assert retry_failed(world.store, "else", None).failed == 0
    assert retry_failed(world.store, None, 2).failed == 1
    assert world.states("often", "bad") == [JobState.ERROR, JobState.QUEUED]


def test_failed_jobs_of_builds_are_counted_and_left_alone(world: StoreWorld) -> None:
    world.add(world.job("slice", task="dataset:days#r1", plan_id="p"))
    world.run(world.new_worker(tasks=["dataset:days#r1"]), "slice", JobState.ERROR)

    assert retry_failed(world.store, "dataset:days", None) == RetriedJobs(0, 0, of_builds=1)
    assert retry_failed(world.store, None, None).of_builds == 1
    assert world.state("slice") is JobState.ERROR
