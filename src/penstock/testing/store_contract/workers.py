# SPDX-License-Identifier: Apache-2.0
"""Who is alive, and what becomes of the jobs of the dead?"""

from __future__ import annotations

from penstock.errors import InternalError
from penstock.model.job import Edge, ErrorCategory, JobState, LeasedJob, WorkerId
from penstock.model.lease import Verdict, WorkerInfo
from penstock.stores.store import LOSSES_BEFORE_SOLO, MAX_CRASHES_BY_EXPIRY, SWEEP_SLICE
from penstock.testing.store_contract.world import TTL_SECONDS, StoreWorld, ref, refusal


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
    store_world.bury(worker, [job])


def _solo(store_world: StoreWorld) -> tuple[WorkerId, LeasedJob]:
    worker = store_world.new_worker()
    return worker, store_world.take_one(worker, solo=True)


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


def test_an_expired_worker_registers_anew_under_a_new_id(store_world: StoreWorld) -> None:
    store_world.add("a")
    old = store_world.new_worker()
    store_world.take_one(old)
    store_world.expire()

    new = store_world.new_worker()

    assert store_world.store.beat([old, new], 30.0).result() == {new}
    assert store_world.take_one(new).key == "a"


def test_a_job_that_is_lost_too_often_becomes_a_suspect(store_world: StoreWorld) -> None:
    store_world.add("a")

    _lose(store_world, LOSSES_BEFORE_SOLO - 1)
    before = store_world.view("a")
    _lose(store_world, 1)

    assert not before.suspect
    view = store_world.view("a")
    assert (view.state, view.suspect, view.crashes) == (JobState.QUEUED, True, 0)
    assert store_world.suspects() == 1


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
    store_world.bury(worker, list(jobs.values()))
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
    store_world.bury(worker, list(jobs.values()))

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


def test_a_burial_makes_started_jobs_suspect_and_the_others_ready(
    store_world: StoreWorld,
) -> None:
    store_world.add("ran", "waited")
    worker = store_world.new_worker()
    jobs = store_world.take(worker)

    count = store_world.bury(worker, [jobs["ran"]])

    assert count == 2
    ran, waited = store_world.view("ran"), store_world.view("waited")
    assert (ran.state, ran.suspect, ran.crashes) == (JobState.QUEUED, True, 0)
    assert (waited.state, waited.suspect) == (JobState.QUEUED, False)
    assert store_world.outcomes("ran") == ["lost"]
    assert store_world.outcomes("waited") == []
    assert store_world.ack(worker, jobs["ran"]) is Verdict.STALE
    assert store_world.store.workers().result() == []


def test_a_burial_ends_the_worker(store_world: StoreWorld) -> None:
    worker = store_world.new_worker()

    assert store_world.bury(worker) == 0

    assert store_world.store.beat([worker], 30.0).result() == frozenset()
    assert store_world.bury(worker) == 0
    assert store_world.bury(WorkerId("nobody")) == 0


def test_a_burial_ignores_leases_that_the_dead_no_longer_held(store_world: StoreWorld) -> None:
    store_world.add("a")
    worker = store_world.new_worker()
    old = store_world.take_one(worker)
    store_world.give_back(worker, [old])
    other = store_world.new_worker()
    job = store_world.take_one(other)

    store_world.bury(worker, [old, job])

    assert store_world.view("a").worker == other
    assert store_world.ack(other, job) is Verdict.ACCEPTED


def test_a_solo_job_that_was_buried_is_charged_a_crash(store_world: StoreWorld) -> None:
    _suspect(store_world)
    worker, job = _solo(store_world)

    store_world.bury(worker, [job], max_crashes=2)

    view = store_world.view("a")
    assert (view.state, view.suspect, view.crashes) == (JobState.QUEUED, True, 1)
    assert store_world.outcomes("a") == ["lost", "crashed"]


def test_a_solo_job_that_had_not_started_is_not_charged(store_world: StoreWorld) -> None:
    _suspect(store_world)
    worker, _ = _solo(store_world)

    store_world.bury(worker, [], max_crashes=1)

    view = store_world.view("a")
    assert (view.state, view.suspect, view.crashes) == (JobState.QUEUED, True, 0)


def test_a_job_that_crashes_alone_too_often_ends_in_error(store_world: StoreWorld) -> None:
    _suspect(store_world)
    store_world.add(store_world.job("after", after=[Edge("a")]))

    for _ in range(2):
        worker, job = _solo(store_world)
        store_world.bury(worker, [job], cause="killed by signal 11", max_crashes=2)

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


def test_more_jobs_than_one_slice_are_all_buried(store_world: StoreWorld) -> None:
    count = SWEEP_SLICE + 200
    store_world.add(*(f"job-{n}" for n in range(count)))
    worker = store_world.new_worker()
    store_world.take_all(worker, 600)

    buried = store_world.bury(worker)

    assert buried == count
    assert store_world.store.stats().result().states[JobState.QUEUED] == count


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
