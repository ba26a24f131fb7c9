# SPDX-License-Identifier: Apache-2.0
"""How does a job run alone that may have killed its worker?"""

from __future__ import annotations

from penstock.model.job import STEP, Edge, ErrorCategory, JobKind, JobState, LeasedJob, WorkerId
from penstock.model.lease import Verdict
from penstock.stores.protocol import LOSSES_BEFORE_SOLO, MAX_CRASHES_BY_EXPIRY
from tests.contract.world import StoreWorld, ref


def _lose(store_world: StoreWorld, times: int) -> None:
    """Let the only ready job be leased by workers that are never heard of again."""
    for _ in range(times):
        store_world.take_one(store_world.new_worker())
        store_world.expire()


def _suspect(store_world: StoreWorld, key: str = "a") -> None:
    """A job that was running when its worker died."""
    store_world.add(key)
    worker = store_world.new_worker()
    job = store_world.take_all(worker)[key]
    store_world.reap(worker, [job])


def _solo(store_world: StoreWorld) -> tuple[WorkerId, LeasedJob]:
    worker = store_world.new_worker()
    return worker, store_world.take_one(worker, solo=True)


def test_a_job_that_is_lost_too_often_becomes_a_suspect(store_world: StoreWorld) -> None:
    store_world.add("a")

    _lose(store_world, LOSSES_BEFORE_SOLO - 1)
    before = store_world.view("a")
    _lose(store_world, 1)

    assert not before.suspect
    view = store_world.view("a")
    assert (view.state, view.suspect, view.crashes) == (JobState.QUEUED, True, 0)
    assert store_world.suspects() == 1


def test_a_suspect_keeps_its_kind(store_world: StoreWorld) -> None:
    store_world.add(store_world.job("a", task=STEP))
    worker = store_world.new_worker((STEP,))
    store_world.reap(worker, [store_world.take_one(worker)])

    worker = store_world.new_worker((STEP,))
    assert store_world.take_one(worker, solo=True).kind is JobKind.STEP


def test_losses_count_in_a_row_only(store_world: StoreWorld) -> None:
    store_world.add("a")
    nearly = LOSSES_BEFORE_SOLO - 1

    _lose(store_world, nearly)
    worker = store_world.new_worker()
    store_world.fail(worker, store_world.take_one(worker), charge=False)
    _lose(store_world, nearly)
    worker = store_world.new_worker()
    store_world.give_back(worker, [store_world.take_one(worker)])
    _lose(store_world, nearly)
    worker = store_world.new_worker()
    store_world.take_one(worker)
    store_world.store.retire(worker).result()
    _lose(store_world, nearly)

    assert not store_world.view("a").suspect


def test_a_suspect_is_not_handed_out_with_others(store_world: StoreWorld) -> None:
    _suspect(store_world)
    store_world.add("b")

    batch = store_world.lease(store_world.new_worker())

    assert [job.key for job in batch.jobs] == ["b"]
    assert batch.suspects == 1


def test_a_solo_lease_hands_out_one_suspect_and_nothing_else(store_world: StoreWorld) -> None:
    store_world.add("c", "a", "b")
    worker = store_world.new_worker()
    jobs = store_world.take(worker)
    store_world.reap(worker, list(jobs.values()))
    store_world.add("ordinary")
    soloist = store_world.new_worker()

    batch = store_world.lease(soloist, 10, solo=True)

    (job,) = batch.jobs
    assert (job.key, job.solo, job.token) == ("c", True, 2)  # the lowest id
    assert store_world.suspects() == 2
    assert store_world.view("c").suspect is False


def test_a_solo_lease_without_suspects_hands_out_nothing(store_world: StoreWorld) -> None:
    store_world.add("ordinary")

    batch = store_world.lease(store_world.new_worker(), solo=True)

    assert (batch.jobs, batch.more) == ([], False)


def test_a_solo_lease_hands_out_known_tasks_only(store_world: StoreWorld) -> None:
    store_world.add(store_world.job("a", task="foreign"), "b")
    worker = store_world.new_worker(tasks=["work", "foreign"])
    jobs = store_world.take(worker)
    store_world.reap(worker, list(jobs.values()))

    job = store_world.take_one(store_world.new_worker(tasks=["work"]), solo=True)

    assert job.key == "b"


def test_a_suspect_that_ends_well_is_done(store_world: StoreWorld) -> None:
    _suspect(store_world)
    worker, job = _solo(store_world)

    assert store_world.ack(worker, job) is Verdict.ACCEPTED

    assert (store_world.state("a"), store_world.suspects()) == (JobState.DONE, 0)


def test_a_suspect_that_fails_by_itself_is_an_ordinary_job_again(store_world: StoreWorld) -> None:
    _suspect(store_world)
    worker, job = _solo(store_world)

    store_world.fail(worker, job)

    view = store_world.view("a")
    assert (view.state, view.suspect, view.attempts) == (JobState.QUEUED, False, 1)
    assert not store_world.take_one(store_world.new_worker()).solo


def test_a_suspect_that_is_released_or_revoked_stays_one(store_world: StoreWorld) -> None:
    _suspect(store_world)

    worker, job = _solo(store_world)
    store_world.give_back(worker, [job])
    released = store_world.view("a").suspect
    job = store_world.take_one(worker, solo=True)
    store_world.store.revoke(ref(job), "").result()
    revoked = store_world.view("a").suspect
    store_world.take_one(worker, solo=True)
    store_world.store.retire(worker).result()

    assert (released, revoked) == (True, True)
    assert store_world.view("a").suspect
    assert store_world.view("a").crashes == 0


def test_a_solo_lease_that_expires_counts_as_a_crash(store_world: StoreWorld) -> None:
    _suspect(store_world)
    worker, _ = _solo(store_world)

    store_world.expire()

    view = store_world.view("a")
    assert (view.state, view.suspect, view.crashes) == (JobState.QUEUED, True, 1)
    last = store_world.history("a")[-1]
    assert (last.outcome, last.worker) == ("crashed", worker)


def test_a_job_that_expires_alone_too_often_ends_as_crashed(store_world: StoreWorld) -> None:
    _suspect(store_world)

    for _ in range(MAX_CRASHES_BY_EXPIRY):
        _solo(store_world)
        store_world.expire()

    view = store_world.view("a")
    assert (view.state, view.crashes, view.attempts) == (
        JobState.ERROR,
        MAX_CRASHES_BY_EXPIRY,
        0,
    )
    assert view.last_error is not None
    assert (view.last_error.category, view.last_error.kind) == (ErrorCategory.CRASHED, "crashed")
    assert view.last_error.message == (
        f"the worker died {MAX_CRASHES_BY_EXPIRY} times while this job ran alone: its lease expired"
    )


def test_a_solo_job_that_was_reaped_is_charged_a_crash(store_world: StoreWorld) -> None:
    _suspect(store_world)
    worker, job = _solo(store_world)

    store_world.reap(worker, [job], max_crashes=2)

    view = store_world.view("a")
    assert (view.state, view.suspect, view.crashes) == (JobState.QUEUED, True, 1)
    assert store_world.outcomes("a") == ["lost", "crashed"]


def test_a_solo_job_that_had_not_started_is_not_charged(store_world: StoreWorld) -> None:
    _suspect(store_world)
    worker, _ = _solo(store_world)

    store_world.reap(worker, [], max_crashes=1)

    view = store_world.view("a")
    assert (view.state, view.suspect, view.crashes) == (JobState.QUEUED, True, 0)


def test_a_job_that_crashes_alone_too_often_ends_in_error(store_world: StoreWorld) -> None:
    _suspect(store_world)
    store_world.add(store_world.job("after", after=[Edge("a")]))

    for _ in range(2):
        worker, job = _solo(store_world)
        store_world.reap(worker, [job], cause="killed by signal 11", max_crashes=2)

    view = store_world.view("a")
    assert (view.state, view.crashes, view.attempts) == (JobState.ERROR, 2, 0)
    assert view.last_error is not None
    assert view.last_error.category is ErrorCategory.CRASHED
    assert view.last_error.kind == "crashed"
    assert view.last_error.message == (
        "the worker died 2 times while this job ran alone: killed by signal 11"
    )
    assert store_world.why("after") == "upstream failed: a"
    assert store_world.suspects() == 0
