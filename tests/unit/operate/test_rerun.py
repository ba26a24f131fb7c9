# SPDX-License-Identifier: Apache-2.0
"""Running done jobs again, by key and by task, and what is said of the others."""

from __future__ import annotations

import pytest

from penstock.errors import UsageError
from penstock.model.job import Edge, JobState
from penstock.model.views import FIRST_END, RerunJobs
from penstock.operate.actions import SLICE_JOBS
from penstock.operate.purge import purge_keys, purge_task
from penstock.operate.rerun import count_reruns, rerun
from penstock.operate.retry import retry_keys
from tests.contract.world import StoreWorld


def test_done_jobs_run_again_and_the_others_are_told_what_fits(world: StoreWorld) -> None:
    keys = ["good", "bad", "child", "held", "next", "nobody", "good"]

    counted = count_reruns(world.store, keys, None)
    unchanged = world.state("good")
    found = rerun(world.store, keys, None, fresh=False)

    assert (counted, unchanged) == (found, JobState.DONE)
    assert (found.rerun, found.unknown) == (1, ("nobody",))
    assert world.state("good") is JobState.QUEUED
    assert found.refused == {
        "bad": "Job 'bad' has failed: 'penstock queue retry bad' puts it back.",
        "child": "Job 'child' was skipped because of another one: it follows when that one is put "
        "back; 'penstock why child' names it.",
        "held": "Job 'held' is in_progress, it has not ended.",
        "next": "Job 'next' is queued, it has not ended: 'penstock why next' says what it waits "
        "for.",
    }
    again = rerun(world.store, ["good"], None, fresh=False)
    assert list(again.refused) == ["good"]


def test_all_done_jobs_of_a_task_run_again_over_slices(world: StoreWorld) -> None:
    count = 2 * SLICE_JOBS + 3
    world.add(*(world.job(f"k{n}", task="many") for n in range(count)))
    worker = world.new_worker(["many"])
    for job in world.take_all(worker, 500).values():
        world.ack(worker, job)

    assert count_reruns(world.store, (), "many") == RerunJobs(count)
    assert rerun(world.store, (), "many", fresh=True) == RerunJobs(count)
    assert rerun(world.store, (), "many", fresh=True) == RerunJobs(0)
    assert world.store.results("many", FIRST_END, 10).result().rows == ()
    assert world.state("good") is JobState.DONE


@pytest.mark.parametrize("task", ["schedule:watch", "dataset:prices"])
def test_units_and_slices_do_not_run_again_by_hand(world: StoreWorld, task: str) -> None:
    with pytest.raises(UsageError, match="is no task of yours"):
        rerun(world.store, (), task, fresh=False)


def test_named_failed_jobs_are_put_back_with_what_was_skipped(world: StoreWorld) -> None:
    found = retry_keys(world.store, ["bad", "good", "nobody"])

    assert (found.failed, found.skipped, found.unknown) == (1, 1, ("nobody",))
    assert found.refused == {
        "good": "Job 'good' is done: 'penstock queue rerun good' runs it again."
    }
    assert world.states("bad", "child") == [JobState.QUEUED, JobState.WAITING]


def test_named_jobs_are_forgotten_unless_somebody_needs_them(world: StoreWorld) -> None:
    world.add(world.job("later", after=[Edge("good"), Edge("next")]))
    keys = ["bad", "good", "next", "nobody"]

    counted = purge_keys(world.store, keys, really=False)
    there = world.store.job("bad").result()
    found = purge_keys(world.store, keys)

    assert there is not None
    assert (counted, found.purged, found.unknown) == (found, 1, ("nobody",))
    assert found.refused == {
        "good": "Job 'good' is kept: a job that has not ended waits for it, or its body or its "
        "build still runs.",
        "next": "Job 'next' is queued, it has not ended: 'penstock queue cancel next' ends it.",
    }
    assert world.store.job("bad").result() is None


def test_ended_jobs_of_a_task_are_forgotten_by_age(world: StoreWorld) -> None:
    world.clock.advance(10.0)
    border = world.clock.now_micros
    world.add("young")
    world.run(world.new_worker(), "young")

    old = purge_task(world.store, "work", border, really=False)
    found = purge_task(world.store, "work")

    assert (old.purged, found.purged, found.kept) == (3, 4, 0)
    assert world.store.job("held").result() is not None
