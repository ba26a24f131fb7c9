# SPDX-License-Identifier: Apache-2.0
"""What happens together with an acknowledgement, and what does not happen without it?"""

from __future__ import annotations

from penstock.errors import EnqueueRefused
from penstock.model.job import BATCH_JOBS_MAX, Edge, JobState, LeasedJob, WorkerId, finished
from penstock.model.lease import (
    Effect,
    EnqueueJobs,
    Rearm,
    SetCursor,
    Verdict,
)
from tests.contract.world import TROUBLE, StoreWorld, refusal


def _leased(store_world: StoreWorld, key: str = "a") -> tuple[WorkerId, LeasedJob]:
    store_world.add(key)
    worker = store_world.new_worker()
    return worker, store_world.take_one(worker)


def test_jobs_are_accepted_with_the_end_of_their_maker(store_world: StoreWorld) -> None:
    worker, job = _leased(store_world)
    new = EnqueueJobs((store_world.job("b"), store_world.job("c", after=[Edge("b")])))

    assert store_world.store.job("b").result() is None
    store_world.ack(worker, job, effects=[new])

    assert store_world.states(*"abc") == [JobState.DONE, JobState.QUEUED, JobState.WAITING]


def test_new_jobs_may_wait_for_the_job_that_makes_them(store_world: StoreWorld) -> None:
    store_world.add("good", "bad")
    worker = store_world.new_worker()
    jobs = store_world.take(worker)
    for key, state in (("good", JobState.DONE), ("bad", JobState.ERROR)):
        new = EnqueueJobs(
            (
                store_world.job(f"after-{key}", after=[Edge(key)]),
                store_world.job(f"anyway-{key}", after=[finished(key)]),
            )
        )
        store_world.ack(worker, jobs[key], state, effects=[new])

    assert store_world.state("after-good") is JobState.QUEUED
    assert store_world.state("anyway-good") is JobState.QUEUED
    assert store_world.state("after-bad") is JobState.SKIPPED
    assert store_world.state("anyway-bad") is JobState.QUEUED


def test_new_jobs_are_idempotent_by_key(store_world: StoreWorld) -> None:
    store_world.add(store_world.job("b", payload='"old"', delay=60.0))
    worker, job = _leased(store_world)
    new = EnqueueJobs((store_world.job("b", payload='"new"'), store_world.job("c")))

    store_world.ack(worker, job, effects=[new])

    assert store_world.view("b").payload == '"old"'
    assert store_world.state("c") is JobState.QUEUED


def test_an_effect_that_cannot_be_applied_refuses_the_whole_call(store_world: StoreWorld) -> None:
    store_world.add("a", "b")
    worker = store_world.new_worker()
    jobs = store_world.take(worker)
    bad = EnqueueJobs((store_world.job("c"), store_world.job("d", after=[Edge("nowhere")])))
    ends = [
        store_world.end(jobs["a"], effects=[SetCursor("mark", "1")]),
        store_world.end(jobs["b"], effects=[SetCursor("mark", "2"), bad]),
    ]

    refusal(store_world.store.ack(worker, ends), EnqueueRefused)

    assert store_world.states("a", "b") == [JobState.IN_PROGRESS, JobState.IN_PROGRESS]
    assert store_world.store.job("c").result() is None
    assert store_world.store.cursor("mark").result() is None
    assert store_world.history("a") == []
    assert store_world.ack(worker, jobs["a"]) is Verdict.ACCEPTED


def test_an_acknowledgement_enqueues_at_most_a_batch_in_all(store_world: StoreWorld) -> None:
    worker, job = _leased(store_world)
    half = BATCH_JOBS_MAX // 2
    first = EnqueueJobs(tuple(store_world.job(f"x{n}") for n in range(half)))
    second = EnqueueJobs(tuple(store_world.job(f"y{n}") for n in range(half + 1)))
    end = store_world.end(job, effects=[first, second])

    refusal(store_world.store.ack(worker, [end]), EnqueueRefused)

    assert store_world.store.job("x0").result() is None
    assert store_world.state("a") is JobState.IN_PROGRESS


def test_an_acknowledgement_may_enqueue_a_whole_batch(store_world: StoreWorld) -> None:
    worker, job = _leased(store_world)
    jobs = EnqueueJobs(tuple(store_world.job(f"x{n}") for n in range(BATCH_JOBS_MAX)))

    store_world.ack(worker, job, effects=[jobs])

    states = store_world.store.stats().result().states
    assert (states[JobState.QUEUED], states[JobState.DONE]) == (BATCH_JOBS_MAX, 1)


def test_a_stale_end_has_no_effects(store_world: StoreWorld) -> None:
    worker, job = _leased(store_world)
    store_world.give_back(worker, [job])
    effects: list[Effect] = [
        EnqueueJobs((store_world.job("b"),)),
        SetCursor("mark", "1"),
    ]

    verdict = store_world.ack(worker, job, effects=effects)

    assert verdict is Verdict.STALE
    assert store_world.store.job("b").result() is None
    assert store_world.store.cursor("mark").result() is None


def test_a_duplicate_end_has_no_effects_again(store_world: StoreWorld) -> None:
    worker, job = _leased(store_world)
    store_world.ack(worker, job, effects=[SetCursor("mark", "1")])

    verdict = store_world.ack(worker, job, effects=[SetCursor("mark", "2")])

    assert verdict is Verdict.DUPLICATE
    assert store_world.store.cursor("mark").result() == "1"


def test_a_stale_end_with_bad_effects_is_stale_and_not_refused(store_world: StoreWorld) -> None:
    worker, job = _leased(store_world)
    store_world.give_back(worker, [job])
    bad = EnqueueJobs((store_world.job("b", after=[Edge("nowhere")]),))

    assert store_world.ack(worker, job, effects=[bad]) is Verdict.STALE


def test_a_cursor_is_replaced(store_world: StoreWorld) -> None:
    worker, job = _leased(store_world)

    before = store_world.store.cursor("mark").result()
    effects: list[Effect] = [SetCursor("mark", '{"at":1}'), SetCursor("mark", '{"at":2}')]
    store_world.ack(worker, job, effects=effects)

    assert before is None
    assert store_world.store.cursor("mark").result() == '{"at":2}'


def test_a_rearmed_job_is_queued_again_for_its_next_time(store_world: StoreWorld) -> None:
    worker, job = _leased(store_world, "schedule:x")
    at = store_world.clock.now_micros + 60_000_000

    verdict = store_world.ack(worker, job, result='"ran"', effects=[Rearm(at)])

    assert verdict is Verdict.ACCEPTED
    view = store_world.view("schedule:x")
    assert (view.state, view.available_at, view.worker) == (JobState.QUEUED, at, None)
    assert (view.result, view.last_error, view.finished_at) == ('"ran"', None, None)
    assert store_world.history("schedule:x") == []
    assert store_world.lease(worker).next_due_at == at
    late = store_world.new_worker(ttl=100.0)
    store_world.clock.advance(60.0)
    again = store_world.take_one(late)
    assert (again.key, again.token, again.due_at) == ("schedule:x", 2, at)


def test_a_rearmed_job_forgets_attempts_and_deferral(store_world: StoreWorld) -> None:
    worker, job = _leased(store_world)
    store_world.fail(worker, job, charge=True)
    store_world.fail(worker, store_world.take_one(worker), charge=False)
    at = store_world.clock.now_micros + 1

    store_world.ack(worker, store_world.take_one(worker), effects=[Rearm(at)])

    view = store_world.view("a")
    assert (view.attempts, view.deferred_since, view.crashes) == (0, None, 0)


def test_a_rearmed_job_forgets_its_crashes(store_world: StoreWorld) -> None:
    worker, job = _leased(store_world)
    store_world.reap(worker, [job])
    soloist = store_world.new_worker()
    store_world.reap(soloist, [store_world.take_one(soloist, quarantine=True)])
    soloist = store_world.new_worker()
    solo = store_world.take_one(soloist, quarantine=True)
    at = store_world.clock.now_micros + 1

    store_world.ack(soloist, solo, effects=[Rearm(at)])

    assert solo.crashes == 1
    view = store_world.view("a")
    assert (view.crashes, view.suspect) == (0, False)


def test_a_rearmed_job_whose_time_has_passed_is_ready(store_world: StoreWorld) -> None:
    worker, job = _leased(store_world)
    at = store_world.clock.now_micros + 1_000_000
    store_world.clock.advance(5.0)

    store_world.ack(worker, job, effects=[Rearm(at)])

    assert store_world.take_one(worker).due_at == at


def test_the_same_rearming_again_is_a_duplicate(store_world: StoreWorld) -> None:
    worker, job = _leased(store_world)
    at = store_world.clock.now_micros + 1_000_000
    effects: list[Effect] = [Rearm(at), SetCursor("mark", "1")]
    store_world.ack(worker, job, effects=effects)

    again: list[Effect] = [Rearm(at), SetCursor("mark", "2")]
    assert store_world.ack(worker, job, effects=again) is Verdict.DUPLICATE
    assert store_world.store.cursor("mark").result() == "1"
    assert store_world.view("a").available_at == at


def test_a_job_cannot_be_rearmed_for_a_time_that_is_not_later(store_world: StoreWorld) -> None:
    worker, job = _leased(store_world)
    end = store_world.end(job, effects=[Rearm(job.due_at)])

    refusal(store_world.store.ack(worker, [end]), EnqueueRefused)

    assert store_world.state("a") is JobState.IN_PROGRESS


def test_a_stale_rearming_is_stale_and_not_refused(store_world: StoreWorld) -> None:
    worker, job = _leased(store_world)
    store_world.give_back(worker, [job])

    assert store_world.ack(worker, job, effects=[Rearm(job.due_at)]) is Verdict.STALE


def test_dependants_of_a_rearmed_job_are_not_told(store_world: StoreWorld) -> None:
    store_world.add("a", store_world.job("b", after=[finished("a")]))
    worker = store_world.new_worker()
    job = store_world.take_one(worker)
    at = store_world.clock.now_micros + 1_000_000

    new = EnqueueJobs((store_world.job("c", after=[Edge("a")]),))
    store_world.ack(worker, job, effects=[new, Rearm(at)])
    store_world.settle()

    assert store_world.states(*"abc") == [JobState.QUEUED, JobState.WAITING, JobState.WAITING]
    store_world.clock.advance(1.0)
    store_world.run(worker, "a")
    assert store_world.states(*"abc") == [JobState.DONE, JobState.QUEUED, JobState.QUEUED]


def test_effects_ride_on_a_bad_end_as_well(store_world: StoreWorld) -> None:
    worker, job = _leased(store_world)

    store_world.ack(worker, job, JobState.ERROR, error=TROUBLE, effects=[SetCursor("seen", "true")])

    assert store_world.state("a") is JobState.ERROR
    assert store_world.store.cursor("seen").result() == "true"


def test_a_new_job_with_several_bad_parents_is_skipped_because_of_the_oldest(
    store_world: StoreWorld,
) -> None:
    store_world.add("z", "a", store_world.job("b", after=[Edge("a")]))
    worker = store_world.new_worker()
    taken = store_world.take_all(worker)
    store_world.ack(worker, taken["z"], JobState.ERROR, error=TROUBLE)
    store_world.add(store_world.job("c", after=[Edge("z")]))
    new = store_world.job("new", after=[Edge("c"), Edge("b")])  # b is skipped by this very end

    effects = [EnqueueJobs((new,))]
    store_world.ack(worker, taken["a"], JobState.ERROR, error=TROUBLE, effects=effects)

    assert store_world.state("new") is JobState.SKIPPED
    assert store_world.why("new") == "upstream skipped: b"
