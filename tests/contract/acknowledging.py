# SPDX-License-Identifier: Apache-2.0
"""How does a lease end, and whose end counts?"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock.model.job import AttemptError, ErrorCategory, JobId, JobState
from penstock.model.lease import JobRef, Verdict
from tests.contract.world import TROUBLE, TTL_SECONDS, StoreWorld, ref


def test_an_accepted_end_is_kept_with_its_history(store_world: StoreWorld) -> None:
    store_world.add("a")
    worker = store_world.new_worker()
    job = store_world.take_one(worker)
    store_world.clock.advance(2.0)
    now = store_world.clock.now_micros

    verdict = store_world.ack(worker, job, result='{"rows":3}')

    assert verdict is Verdict.ACCEPTED
    view = store_world.view("a")
    assert (view.state, view.result, view.worker) == (JobState.DONE, '{"rows":3}', None)
    assert (view.token, view.last_error) == (1, None)
    assert (view.started_at, view.finished_at) == (now - 1, now)
    (attempt,) = store_world.history("a")
    assert (attempt.token, attempt.worker, attempt.outcome) == (1, worker, "done")
    assert (attempt.started_at, attempt.ended_at, attempt.error) == (now - 1, now, None)


def test_a_job_may_end_as_skipped_or_in_error(store_world: StoreWorld) -> None:
    store_world.add("a", "b")
    worker = store_world.new_worker()
    jobs = store_world.take(worker)
    nothing = AttemptError(ErrorCategory.OWN, "Skip", "nothing to do")

    store_world.ack(worker, jobs["a"], JobState.SKIPPED, error=nothing)
    store_world.ack(worker, jobs["b"], JobState.ERROR, error=TROUBLE)

    assert store_world.states("a", "b") == [JobState.SKIPPED, JobState.ERROR]
    assert store_world.view("a").last_error == nothing
    assert store_world.view("b").last_error == TROUBLE
    assert store_world.outcomes("a") == ["skipped"]
    assert store_world.outcomes("b") == ["error"]
    assert store_world.history("b")[0].error == TROUBLE


def test_the_same_end_again_is_a_duplicate_and_changes_nothing(store_world: StoreWorld) -> None:
    store_world.add("a")
    worker = store_world.new_worker()
    job = store_world.take_one(worker)
    store_world.ack(worker, job, result="1")
    before = store_world.view("a")
    store_world.clock.advance(1.0)

    verdict = store_world.ack(worker, job, JobState.ERROR, result="2", error=TROUBLE)

    assert verdict is Verdict.DUPLICATE
    assert store_world.view("a") == before
    assert store_world.outcomes("a") == ["done"]


def test_the_same_end_again_is_a_duplicate_after_its_worker_is_gone(
    store_world: StoreWorld,
) -> None:
    store_world.add("a")
    worker = store_world.new_worker()
    job = store_world.take_one(worker)
    store_world.ack(worker, job)
    store_world.clock.advance(TTL_SECONDS)

    assert store_world.ack(worker, job) is Verdict.DUPLICATE


def test_the_same_end_twice_in_one_call_counts_once(store_world: StoreWorld) -> None:
    store_world.add("a")
    worker = store_world.new_worker()
    end = store_world.end(store_world.take_one(worker))

    verdicts = store_world.store.ack(worker, [end, end]).result()

    assert verdicts == [Verdict.ACCEPTED, Verdict.DUPLICATE]
    assert store_world.store.stats().result().states[JobState.DONE] == 1


def test_each_end_of_a_call_has_its_own_verdict(store_world: StoreWorld) -> None:
    store_world.add(*"abc")
    worker, other = store_world.new_worker(), store_world.new_worker()
    first = store_world.take(worker)
    store_world.give_back(worker, [first["b"]])
    store_world.take_one(other)
    store_world.ack(worker, first["c"])
    ends = [store_world.end(job) for job in first.values()]

    verdicts = store_world.store.ack(worker, ends).result()

    assert dict(zip(first, verdicts, strict=True)) == {
        "a": Verdict.ACCEPTED,
        "b": Verdict.STALE,
        "c": Verdict.DUPLICATE,
    }
    assert store_world.states(*"abc") == [JobState.DONE, JobState.IN_PROGRESS, JobState.DONE]


def test_an_end_under_an_old_token_is_stale(store_world: StoreWorld) -> None:
    store_world.add("a")
    worker = store_world.new_worker()
    old = store_world.take_one(worker)
    store_world.give_back(worker, [old])
    new = store_world.take_one(worker)

    stale = store_world.ack(worker, old, result='"old"')

    assert stale is Verdict.STALE
    assert store_world.state("a") is JobState.IN_PROGRESS
    assert store_world.ack(worker, new, result='"new"') is Verdict.ACCEPTED
    assert store_world.view("a").result == '"new"'


def test_an_end_by_another_worker_is_stale(store_world: StoreWorld) -> None:
    store_world.add("a")
    worker, other = store_world.new_worker(), store_world.new_worker()
    job = store_world.take_one(worker)

    assert store_world.ack(other, job) is Verdict.STALE
    assert store_world.fail(other, job) is Verdict.STALE
    assert store_world.give_back(other, [job]) == 0
    assert store_world.view("a").worker == worker


def test_an_end_of_an_unknown_job_is_stale(store_world: StoreWorld) -> None:
    store_world.add("a")
    worker = store_world.new_worker()
    job = store_world.take_one(worker)
    store_world.ack(worker, job)
    store_world.clock.advance(1.0)
    store_world.purge(store_world.clock.now_micros)

    assert store_world.ack(worker, job) is Verdict.STALE
    assert store_world.fail(worker, job) is Verdict.STALE
    assert store_world.give_back(worker, [job]) == 0


def test_an_expired_worker_ends_nothing_although_nobody_took_its_jobs_back(
    store_world: StoreWorld,
) -> None:
    store_world.add(*"abc")
    worker = store_world.new_worker()
    jobs = store_world.take(worker)
    store_world.clock.advance(TTL_SECONDS)

    assert store_world.ack(worker, jobs["a"]) is Verdict.STALE
    assert store_world.fail(worker, jobs["b"]) is Verdict.STALE
    assert store_world.give_back(worker, [jobs["c"]]) == 0

    other = store_world.new_worker()
    assert sorted(store_world.take_all(other)) == ["a", "b", "c"]


def test_an_end_after_the_lease_went_to_somebody_else_is_stale(store_world: StoreWorld) -> None:
    store_world.add("a")
    slow = store_world.new_worker()
    lost = store_world.take_one(slow)
    store_world.expire()
    quick = store_world.new_worker()
    job = store_world.take_one(quick)

    assert store_world.ack(slow, lost, result='"slow"') is Verdict.STALE
    assert store_world.ack(quick, job, result='"quick"') is Verdict.ACCEPTED
    assert store_world.ack(slow, lost, result='"slow"') is Verdict.STALE
    assert store_world.view("a").result == '"quick"'


def test_an_end_is_stale_when_the_job_crashed_meanwhile(store_world: StoreWorld) -> None:
    """The store ended the job itself; the holder's result was not kept, and it must learn that."""
    store_world.add("a")
    worker = store_world.new_worker()
    store_world.reap(worker, [store_world.take_one(worker)])
    soloist = store_world.new_worker()
    job = store_world.take_one(soloist, quarantine=True)
    store_world.reap(soloist, [job], max_crashes=1)

    assert store_world.state("a") is JobState.ERROR
    assert store_world.ack(soloist, job) is Verdict.STALE


def test_a_failed_attempt_is_tried_again_after_its_delay(store_world: StoreWorld) -> None:
    store_world.add("a")
    worker = store_world.new_worker(ttl=100.0)
    job = store_world.take_one(worker)
    now = store_world.clock.now_micros

    verdict = store_world.fail(worker, job, delay=10.0)

    assert verdict is Verdict.ACCEPTED
    view = store_world.view("a")
    assert (view.state, view.worker, view.attempts) == (JobState.QUEUED, None, 1)
    assert (view.available_at, view.last_error) == (now + 10_000_000, TROUBLE)
    (attempt,) = store_world.history("a")
    assert (attempt.outcome, attempt.error, attempt.token) == ("retry", TROUBLE, 1)
    assert store_world.lease(worker).next_due_at == now + 10_000_000
    store_world.clock.advance(10.0)
    again = store_world.take_one(worker)
    assert (again.token, again.attempts) == (2, 1)


@pytest.mark.parametrize("is_last", [False, True])
def test_the_last_error_has_its_traceback_and_the_history_has_none(
    store_world: StoreWorld, is_last: bool
) -> None:
    store_world.add("a")
    worker = store_world.new_worker()
    error = replace(TROUBLE, traceback="E\n  a.py:1 in f")

    failure = store_world.failure(store_world.take_one(worker), error=error, give_up=is_last)
    store_world.store.fail_and_retry(worker, [failure]).result()

    assert store_world.view("a").last_error == error
    assert [attempt.error for attempt in store_world.history("a")] == [TROUBLE]
    if is_last:
        store_world.store.retry_failed(None, None).result()
        assert [attempt.error for attempt in store_world.history("a")] == [TROUBLE]


def test_a_failed_attempt_without_delay_is_ready_at_once(store_world: StoreWorld) -> None:
    store_world.add("a")
    worker = store_world.new_worker()

    store_world.fail(worker, store_world.take_one(worker), delay=0.0)

    assert store_world.take_one(worker).token == 2


def test_a_job_ends_in_error_when_its_attempts_are_used_up(store_world: StoreWorld) -> None:
    store_world.add("a")
    worker = store_world.new_worker()

    for _ in range(3):
        store_world.fail(worker, store_world.take_one(worker), max_attempts=3)

    view = store_world.view("a")
    assert (view.state, view.attempts, view.last_error) == (JobState.ERROR, 3, TROUBLE)
    assert view.finished_at == store_world.clock.now_micros
    assert store_world.outcomes("a") == ["retry", "retry", "error"]


def test_giving_up_ends_a_job_whatever_its_attempts(store_world: StoreWorld) -> None:
    store_world.add("a")
    worker = store_world.new_worker()

    store_world.fail(worker, store_world.take_one(worker), charge=False, give_up=True)

    view = store_world.view("a")
    assert (view.state, view.attempts) == (JobState.ERROR, 0)


def test_an_uncharged_failure_remembers_since_when_it_waits(store_world: StoreWorld) -> None:
    store_world.add("a")
    worker = store_world.new_worker()
    first = store_world.clock.now_micros

    store_world.fail(worker, store_world.take_one(worker), charge=False)
    store_world.clock.advance(5.0)
    again = store_world.take_one(worker)
    store_world.fail(worker, again, charge=False)

    view = store_world.view("a")
    assert (view.attempts, view.deferred_since) == (0, first)
    assert again.deferred_since == first


def test_uncharged_failures_never_use_up_the_attempts(store_world: StoreWorld) -> None:
    store_world.add("a")
    worker = store_world.new_worker()

    for _ in range(5):
        store_world.fail(worker, store_world.take_one(worker), charge=False, max_attempts=1)

    assert (store_world.state("a"), store_world.view("a").attempts) == (JobState.QUEUED, 0)
    assert store_world.outcomes("a") == ["retry"] * 5


def test_a_charged_failure_forgets_the_deferral(store_world: StoreWorld) -> None:
    store_world.add("a")
    worker = store_world.new_worker()
    store_world.fail(worker, store_world.take_one(worker), charge=False)

    store_world.fail(worker, store_world.take_one(worker), charge=True)

    view = store_world.view("a")
    assert (view.attempts, view.deferred_since) == (1, None)


def test_a_good_end_forgets_deferral_and_error(store_world: StoreWorld) -> None:
    store_world.add("a")
    worker = store_world.new_worker()
    store_world.fail(worker, store_world.take_one(worker), charge=False)

    store_world.ack(worker, store_world.take_one(worker))

    view = store_world.view("a")
    assert (view.state, view.deferred_since, view.last_error) == (JobState.DONE, None, None)
    assert store_world.outcomes("a") == ["retry", "done"]


def test_the_same_failure_again_is_a_duplicate_and_charges_once(store_world: StoreWorld) -> None:
    store_world.add("a", "b")
    worker = store_world.new_worker()
    jobs = store_world.take(worker)
    store_world.fail(worker, jobs["a"])
    store_world.fail(worker, jobs["b"], give_up=True)

    assert store_world.fail(worker, jobs["a"]) is Verdict.DUPLICATE
    assert store_world.fail(worker, jobs["b"]) is Verdict.DUPLICATE
    assert store_world.view("a").attempts == 1
    assert store_world.outcomes("a") == ["retry"]


def test_a_failure_under_an_old_token_is_stale(store_world: StoreWorld) -> None:
    store_world.add("a")
    worker = store_world.new_worker()
    old = store_world.take_one(worker)
    store_world.give_back(worker, [old])
    store_world.take_one(worker)

    assert store_world.fail(worker, old) is Verdict.STALE
    assert store_world.view("a").attempts == 0


def test_each_failure_of_a_call_has_its_own_verdict(store_world: StoreWorld) -> None:
    store_world.add("a", "b")
    worker = store_world.new_worker()
    jobs = store_world.take(worker)
    store_world.cancel("a")
    failures = [store_world.failure(jobs[key]) for key in "ab"]

    verdicts = store_world.store.fail_and_retry(worker, failures).result()

    assert verdicts == [Verdict.STALE, Verdict.ACCEPTED]


def test_a_released_job_is_ready_at_once_uncharged_and_without_history(
    store_world: StoreWorld,
) -> None:
    store_world.add("a", "b")
    worker = store_world.new_worker()
    jobs = store_world.take(worker)

    count = store_world.give_back(worker, jobs.values())

    assert count == 2
    view = store_world.view("a")
    assert (view.state, view.worker, view.attempts) == (JobState.QUEUED, None, 0)
    assert store_world.history("a") == []
    assert sorted(store_world.take(store_world.new_worker())) == ["a", "b"]


def test_a_job_is_released_once(store_world: StoreWorld) -> None:
    store_world.add("a")
    worker = store_world.new_worker()
    job = store_world.take_one(worker)

    assert store_world.store.release(worker, [ref(job), ref(job)]).result() == 1
    assert store_world.give_back(worker, [job]) == 0
    assert store_world.store.release(worker, [JobRef(JobId(999), 1)]).result() == 0


def test_a_revoked_lease_is_fenced_and_its_job_ready_again(store_world: StoreWorld) -> None:
    store_world.add("a")
    worker, other = store_world.new_worker(), store_world.new_worker()
    job = store_world.take_one(worker)

    verdict = store_world.store.revoke(ref(job), "too slow").result()

    assert verdict is Verdict.ACCEPTED
    assert (store_world.state("a"), store_world.view("a").attempts) == (JobState.QUEUED, 0)
    assert store_world.ack(worker, job) is Verdict.STALE
    (attempt,) = store_world.history("a")
    assert (attempt.outcome, attempt.worker) == ("revoked", worker)
    assert attempt.error is not None
    assert attempt.error.message == "too slow"
    assert store_world.take_one(other).token == 2


def test_only_the_present_lease_can_be_revoked(store_world: StoreWorld) -> None:
    store_world.add("a")
    worker = store_world.new_worker()
    old = store_world.take_one(worker)
    store_world.give_back(worker, [old])

    queued = store_world.store.revoke(ref(old), "").result()
    new = store_world.take_one(worker)
    outdated = store_world.store.revoke(ref(old), "").result()
    unknown = store_world.store.revoke(JobRef(JobId(999), 1), "").result()

    assert (queued, outdated, unknown) == (Verdict.STALE, Verdict.STALE, Verdict.STALE)
    assert store_world.ack(worker, new) is Verdict.ACCEPTED
    assert store_world.store.revoke(ref(new), "").result() is Verdict.STALE
