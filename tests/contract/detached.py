# SPDX-License-Identifier: Apache-2.0
"""What of a lease that is over while its body may still run?"""

from __future__ import annotations

from collections.abc import Callable

from penstock.model.job import AttemptError, ErrorCategory, JobState, LeasedJob, WorkerId
from penstock.model.lease import Verdict
from tests.contract.world import TTL_SECONDS, StoreWorld, ref

KEY = "host:a"
LATE = AttemptError(ErrorCategory.TIMEOUT, "TimeLimitError", "too long")

EndFromOutside = Callable[[StoreWorld, WorkerId, LeasedJob], object]
LetGo = Callable[[StoreWorld, WorkerId, LeasedJob], object]

#: Ways in which a lease ends before its body does.
ENDS: dict[str, EndFromOutside] = {
    "cancelled": lambda world, worker, job: world.store.cancel([job.key]).result(),
    "revoked": lambda world, worker, job: world.store.revoke(ref(job), "why").result(),
    "given up": lambda world, worker, job: world.store.fail_and_retry(
        worker, [world.failure(job, delay=3600, detached=True)]
    ).result(),
    "given up for good": lambda world, worker, job: world.store.fail_and_retry(
        worker, [world.failure(job, max_attempts=1, detached=True)]
    ).result(),
}


def _expire(world: StoreWorld, worker: WorkerId, job: LeasedJob) -> None:
    world.clock.advance(TTL_SECONDS + 1)


#: Ways in which a store learns that the body has ended, too.
LETS: dict[str, LetGo] = {
    "released": lambda world, worker, job: world.store.release(worker, [ref(job)]).result(),
    "acknowledged": lambda world, worker, job: world.ack(worker, job),
    "failed": lambda world, worker, job: world.fail(worker, job),
    "retired": lambda world, worker, job: world.store.retire(worker).result(),
    "reaped": lambda world, worker, job: world.store.reap(worker, [ref(job)], "x", 3).result(),
    "expired": _expire,
}


def _one_of_two(world: StoreWorld) -> tuple[WorkerId, LeasedJob]:
    """A lease of the first of two jobs for whose key there is one place."""
    world.caps[KEY] = 1
    world.add(world.job("a", limit_keys=[KEY], priority=1), world.job("b", limit_keys=[KEY]))
    worker = world.new_worker()
    taken = world.take_all(worker)
    assert list(taken) == ["a"]
    return worker, taken["a"]


def test_limit_keys_stay_held_until_the_body_has_ended(store_world: StoreWorld) -> None:
    for how, end in ENDS.items():
        for why, let_go in LETS.items():
            world, name = store_world, f"{how}, then {why}"
            key = f"host:{name}"
            world.caps[key] = 1
            first, second = f"{name} 1", f"{name} 2"
            world.add(
                world.job(first, limit_keys=[key], priority=1, task=name),
                world.job(second, limit_keys=[key], task=name),
            )
            worker, other = world.new_worker([name]), world.new_worker([name], ttl=10_000)
            job = world.take_all(worker)[first]

            end(world, worker, job)

            assert world.take_all(other) == {}, name
            assert world.store.inbox(worker).result().detached == [ref(job)], name
            assert world.store.check().result() == [], name

            let_go(world, worker, job)

            (taken,) = world.take_all(other)
            assert taken in (first, second), name
            assert world.store.inbox(worker).result().detached == [], name
            assert world.store.check().result() == [], name
            world.store.cancel([first, second]).result()
            world.store.retire(other).result()


def test_the_end_of_a_cancelled_body_changes_nothing_else(store_world: StoreWorld) -> None:
    worker, job = _one_of_two(store_world)
    store_world.store.cancel(["a"]).result()

    assert store_world.ack(worker, job) is Verdict.STALE

    assert store_world.state("a") is JobState.CANCELLED


def test_a_second_lease_of_a_job_counts_beside_one_that_is_detached(
    store_world: StoreWorld,
) -> None:
    store_world.caps[KEY] = 2
    names = ("a", "b", "c")
    store_world.add(*(store_world.job(name, limit_keys=[KEY]) for name in names))
    worker = store_world.new_worker()
    job = store_world.take(worker, 1)["a"]
    store_world.store.revoke(ref(job), "why").result()

    again = store_world.take_all(worker)

    assert list(again) == ["a"]
    assert again["a"].token > job.token
    store_world.store.release(worker, [ref(job)]).result()
    assert list(store_world.take_all(worker)) == ["b"]
    assert store_world.ack(worker, again["a"]) is Verdict.ACCEPTED
    assert list(store_world.take_all(worker)) == ["c"]


def test_a_job_that_is_detached_is_not_purged(store_world: StoreWorld) -> None:
    worker, job = _one_of_two(store_world)
    store_world.store.cancel(["a"]).result()
    store_world.clock.advance(1)

    assert store_world.purge(store_world.clock.now_micros) == 0

    store_world.store.release(worker, [ref(job)]).result()
    assert store_world.purge(store_world.clock.now_micros) == 1


def test_a_job_that_did_not_run_is_not_detached(store_world: StoreWorld) -> None:
    store_world.add("a")
    worker = store_world.new_worker()
    store_world.store.cancel(["a"]).result()

    assert store_world.store.inbox(worker).result().detached == []


def test_deaths_of_its_own_process_are_crashes_and_no_attempts(store_world: StoreWorld) -> None:
    store_world.add("a")
    worker = store_world.new_worker()
    died = AttemptError(ErrorCategory.CRASHED, "crashed", "killed by SIGSEGV")
    for crashes in (1, 2):
        job = store_world.take_one(worker)
        failure = store_world.failure(job, charge=False, max_crashes=2, error=died)
        assert store_world.store.fail_and_retry(worker, [failure]).result() == [Verdict.ACCEPTED]
        row = store_world.view("a")
        assert (row.crashes, row.attempts, row.deferred_since) == (crashes, 0, None)

    assert row.state is JobState.ERROR
    assert row.last_error == died
    assert [attempt.outcome for attempt in store_world.history("a")] == ["retry", "error"]


def test_an_attempt_for_which_its_worker_was_killed_is_charged(store_world: StoreWorld) -> None:
    store_world.add("late", "neighbour")
    worker = store_world.new_worker()
    jobs = store_world.take_all(worker)
    late = store_world.failure(jobs["late"], max_attempts=2, delay=5, error=LATE)

    store_world.store.reap(worker, [], "killed", 3, [late]).result()

    assert store_world.view("late").attempts == 1
    assert store_world.view("late").last_error == LATE
    assert store_world.view("neighbour").attempts == 0
    other = store_world.new_worker()
    assert list(store_world.take_all(other)) == ["neighbour"]
    store_world.clock.advance(6)
    job = store_world.take_one(other)
    last = store_world.failure(job, max_attempts=2, error=LATE)
    store_world.store.reap(other, [], "killed", 3, [last]).result()
    assert store_world.state("late") is JobState.ERROR


def test_a_late_verdict_on_somebody_elses_lease_changes_nothing(store_world: StoreWorld) -> None:
    store_world.add("a")
    worker = store_world.new_worker()
    job = store_world.take_one(worker)
    store_world.store.release(worker, [ref(job)]).result()
    holder = store_world.new_worker()
    store_world.take_one(holder)

    store_world.store.reap(worker, [], "killed", 3, [store_world.failure(job)]).result()

    row = store_world.view("a")
    assert (row.state, row.worker, row.attempts) == (JobState.IN_PROGRESS, holder, 0)
