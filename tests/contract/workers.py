# SPDX-License-Identifier: Apache-2.0
"""Who is alive, and what becomes of the jobs of the dead?"""

from __future__ import annotations

import pytest

from penstock.errors import InternalError
from penstock.model.job import JobState, WorkerId
from penstock.model.lease import Verdict, WorkerInfo
from penstock.stores.protocol import LOSSES_BEFORE_SUSPECT, SWEEP_SLICE
from tests.contract.world import TTL_SECONDS, StoreWorld, refusal


def test_an_id_registers_once(store_world: StoreWorld) -> None:
    worker = store_world.new_worker()
    again = WorkerInfo(id=worker, run_id="run-2", tasks=())

    refusal(store_world.store.register(again, 5.0), InternalError)

    assert store_world.store.workers().result()[0].run_id == "run-1"


def test_a_beat_keeps_a_worker_alive(store_world: StoreWorld) -> None:
    store_world.add("a")
    worker = store_world.new_worker()
    job = store_world.take_one(worker)

    for _ in range(5):
        store_world.clock.advance(TTL_SECONDS - 1)
        alive = store_world.store.beat([worker], TTL_SECONDS).result()
        assert alive == {worker}
    store_world.settle()

    assert store_world.ack(worker, job) is Verdict.ACCEPTED


def test_a_beat_names_the_living_and_revives_nobody(store_world: StoreWorld) -> None:
    dead = store_world.new_worker(ttl=10.0)
    alive = store_world.new_worker(ttl=20.0)
    store_world.clock.advance(10.0)

    first = store_world.store.beat([dead, alive, WorkerId("nobody")], 30.0).result()
    second = store_world.store.beat([dead], 30.0).result()

    assert first == {alive}
    assert second == frozenset()


def test_a_beat_never_shortens_a_lease(store_world: StoreWorld) -> None:
    worker = store_world.new_worker(ttl=60.0)
    store_world.store.beat([worker], 1.0).result()

    store_world.clock.advance(59.0)

    assert store_world.store.beat([worker], 1.0).result() == {worker}


def test_a_jump_of_the_wall_clock_ends_no_lease(store_world: StoreWorld) -> None:
    if store_world.leases_by_wall_clock:
        pytest.skip("leases live by the server's clock, whatever the clocks of its clients do")
    store_world.add("a")
    worker = store_world.new_worker()
    job = store_world.take_one(worker)

    store_world.clock.jump(1_000_000.0)
    store_world.settle()

    assert store_world.ack(worker, job) is Verdict.ACCEPTED


def test_jobs_of_an_expired_worker_are_ready_again_under_a_new_token(
    store_world: StoreWorld,
) -> None:
    store_world.add("a")
    worker = store_world.new_worker()
    store_world.take_one(worker)
    store_world.clock.advance(TTL_SECONDS)
    other = store_world.new_worker()

    job = store_world.take_one(other)

    assert (job.key, job.token, job.attempts, job.crashes) == ("a", 2, 0, 0)
    (attempt,) = store_world.history("a")
    assert (attempt.token, attempt.worker, attempt.outcome) == (1, worker, "lost")


def test_a_lost_lease_leaves_the_token_until_the_next_lease(store_world: StoreWorld) -> None:
    store_world.add("a")
    store_world.take_one(store_world.new_worker())

    store_world.expire()

    view = store_world.view("a")
    assert (view.state, view.token, view.worker) == (JobState.QUEUED, 1, None)


def test_more_lost_jobs_than_one_slice_are_all_taken_back(store_world: StoreWorld) -> None:
    count = SWEEP_SLICE + 200
    store_world.add(*(f"job-{n}" for n in range(count)))
    assert len(store_world.take_all(store_world.new_worker(), 600)) == count
    store_world.clock.advance(TTL_SECONDS)

    taken = store_world.take_all(store_world.new_worker(), 600)

    assert len(taken) == count


def test_calls_that_find_nothing_for_themselves_take_back_what_all_dead_workers_held(
    store_world: StoreWorld,
) -> None:
    """A page of dead workers that hold nothing hides nobody behind it."""
    for _ in range(40):
        store_world.new_worker()
    keys = [f"job-{n}" for n in range(20)]
    store_world.add(*keys)
    for _ in keys:
        store_world.take_one(store_world.new_worker())

    store_world.expire()

    assert store_world.states(*keys) == [JobState.QUEUED] * 20


def test_an_expired_worker_registers_anew_under_a_new_id(store_world: StoreWorld) -> None:
    store_world.add("a")
    old = store_world.new_worker()
    store_world.take_one(old)
    store_world.expire()

    new = store_world.new_worker()

    assert store_world.store.beat([old, new], 30.0).result() == {new}
    assert store_world.take_one(new).key == "a"


def test_reaping_makes_started_jobs_suspect_and_the_others_ready(
    store_world: StoreWorld,
) -> None:
    store_world.add("ran", "waited")
    worker = store_world.new_worker()
    jobs = store_world.take(worker)

    count = store_world.reap(worker, [jobs["ran"]])

    assert count == 2
    ran, waited = store_world.view("ran"), store_world.view("waited")
    assert (ran.state, ran.suspect, ran.crashes) == (JobState.QUEUED, True, 0)
    assert (waited.state, waited.suspect) == (JobState.QUEUED, False)
    assert store_world.outcomes("ran") == ["lost"]
    assert store_world.outcomes("waited") == []
    assert store_world.ack(worker, jobs["ran"]) is Verdict.STALE
    assert store_world.store.workers().result() == []


def test_reaping_ends_the_worker(store_world: StoreWorld) -> None:
    worker = store_world.new_worker()

    assert store_world.reap(worker) == 0

    assert store_world.store.beat([worker], 30.0).result() == frozenset()
    assert store_world.reap(worker) == 0
    assert store_world.reap(WorkerId("nobody")) == 0


def test_reaping_ignores_leases_that_the_dead_no_longer_held(store_world: StoreWorld) -> None:
    store_world.add("a")
    worker = store_world.new_worker()
    old = store_world.take_one(worker)
    store_world.give_back(worker, [old])
    other = store_world.new_worker()
    job = store_world.take_one(other)

    store_world.reap(worker, [old, job])

    assert store_world.view("a").worker == other
    assert store_world.ack(other, job) is Verdict.ACCEPTED


def test_more_jobs_than_one_slice_are_all_reaped(store_world: StoreWorld) -> None:
    count = SWEEP_SLICE + 200
    store_world.add(*(f"job-{n}" for n in range(count)))
    worker = store_world.new_worker()
    store_world.take_all(worker, 600)

    reaped = store_world.reap(worker)

    assert reaped == count
    assert store_world.store.stats().result().states[JobState.QUEUED] == count


def test_workers_that_are_known_to_be_gone_lose_their_leases_at_once(
    store_world: StoreWorld,
) -> None:
    """Their process is gone, and whoever would have reported it: nobody saw what ran."""
    store_world.add("a", "b")
    gone, other = store_world.new_worker(), store_world.new_worker()
    lost = store_world.take_one(gone)
    kept = store_world.take_one(other)

    expired = store_world.store.expire([gone, WorkerId("nobody")]).result()

    assert expired == 1
    assert store_world.store.beat([gone, other], 30.0).result() == {other}
    again = store_world.take_one(other)
    assert (again.key, again.token, again.cell) == (lost.key, 2, None)
    assert store_world.outcomes(lost.key) == ["lost"]
    assert store_world.ack(other, kept) is Verdict.ACCEPTED
    assert store_world.store.expire([gone]).result() == 0


def test_a_retired_worker_gives_everything_back(store_world: StoreWorld) -> None:
    store_world.add("a", "b")
    worker = store_world.new_worker()
    store_world.take(worker)

    progress = store_world.store.retire(worker).result()

    assert (progress.count, progress.more) == (2, False)
    assert store_world.states("a", "b") == [JobState.QUEUED, JobState.QUEUED]
    assert store_world.history("a") == []
    assert store_world.store.workers().result() == []
    assert store_world.store.beat([worker], 30.0).result() == frozenset()
    assert store_world.store.retire(worker).result().count == 0


def test_workers_are_listed_with_what_they_published(store_world: StoreWorld) -> None:
    now = store_world.clock.now_micros
    first = store_world.new_worker(ttl=10.0)
    second = store_world.new_worker(ttl=60.0, run_id="run-2")
    store_world.clock.advance(10.0)

    store_world.store.publish(second, '{"slots":4}').result()
    store_world.store.publish(WorkerId("nobody"), "{}").result()

    views = store_world.store.workers().result()
    assert [view.id for view in views] == [first, second]
    assert [view.alive for view in views] == [False, True]
    assert [view.run_id for view in views] == ["run-1", "run-2"]
    assert (views[0].host, views[0].pid, views[0].started_at) == ("here", 42, now)
    assert (views[0].status, views[0].status_at) == (None, None)
    assert (views[1].status, views[1].status_at) == ('{"slots":4}', now + 10_000_000)


def test_a_job_that_was_never_seen_to_run_when_its_workers_died_runs_alone_in_the_end(
    store_world: StoreWorld,
) -> None:
    """It may kill its worker after its body has ended, when no slot shows it any more."""
    store_world.add("a")

    for _ in range(LOSSES_BEFORE_SUSPECT):
        worker = store_world.new_worker()
        store_world.take_one(worker)
        store_world.reap(worker)
    view = store_world.view("a")
    for _ in range(LOSSES_BEFORE_SUSPECT):
        worker = store_world.new_worker()
        store_world.take_one(worker, quarantine=True)
        store_world.reap(worker)

    assert (view.suspect, view.crashes) == (True, 0)
    assert (store_world.view("a").suspect, store_world.view("a").crashes) == (True, 1)


def test_what_is_left_of_a_lease_is_told(store_world: StoreWorld) -> None:
    store_world.new_worker(ttl=60.0)
    store_world.clock.advance(12.0)

    (view,) = store_world.store.workers().result()

    assert view.alive
    assert 47.0 <= view.lease_seconds <= 48.0
