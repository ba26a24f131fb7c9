# SPDX-License-Identifier: Apache-2.0
"""What may an operator do to jobs: cancel, retry what failed, purge what is old?"""

from __future__ import annotations

from penstock.model.job import Edge, JobId, JobState, finished
from penstock.model.lease import Verdict
from penstock.stores.store import CHORE_SLICE
from penstock.testing.store_contract.world import StoreWorld, ref


def test_jobs_that_have_not_ended_can_be_cancelled(store_world: StoreWorld) -> None:
    store_world.add("leased")
    worker = store_world.new_worker()
    job = store_world.take_one(worker)
    store_world.add(
        "queued",
        store_world.job("delayed", delay=60.0),
        store_world.job("waiting", after=[Edge("queued")]),
    )

    cancelled = store_world.cancel("leased", "waiting", "queued", "delayed", "unknown")

    assert cancelled == {"leased", "waiting", "queued", "delayed"}
    for key in cancelled:
        view = store_world.view(key)
        assert (view.state, view.worker, view.pending) == (JobState.CANCELLED, None, 0)
        assert view.finished_at == store_world.clock.now_micros
    assert store_world.outcomes("leased") == ["cancelled"]
    assert store_world.outcomes("queued") == []
    assert store_world.ack(worker, job) is Verdict.STALE
    assert store_world.fail(worker, job) is Verdict.STALE
    assert store_world.give_back(worker, [job]) == 0
    assert store_world.take_all(worker) == {}


def test_a_suspect_can_be_cancelled(store_world: StoreWorld) -> None:
    store_world.add("a")
    worker = store_world.new_worker()
    store_world.bury(worker, [store_world.take_one(worker)])

    assert store_world.cancel("a") == {"a"}

    assert (store_world.state("a"), store_world.suspects()) == (JobState.CANCELLED, 0)


def test_a_job_that_has_ended_cannot_be_cancelled(store_world: StoreWorld) -> None:
    store_world.add("a")
    store_world.run(store_world.new_worker(), "a")

    assert store_world.cancel("a") == frozenset()
    assert store_world.state("a") is JobState.DONE


def test_a_cancelled_job_takes_its_dependants_along(store_world: StoreWorld) -> None:
    store_world.add(
        "a",
        store_world.job("b", after=[Edge("a")]),
        store_world.job("c", after=[Edge("b")]),
        store_world.job("d", after=[finished("a")]),
    )

    cancelled = store_world.cancel("a")
    store_world.settle()

    assert cancelled == {"a"}
    assert store_world.states(*"bcd") == [JobState.SKIPPED, JobState.SKIPPED, JobState.QUEUED]
    assert store_world.why("b") == "upstream failed: a"


def test_a_parent_and_its_child_can_be_cancelled_together(store_world: StoreWorld) -> None:
    """Whatever the order of the keys: the operator named both."""
    for parent, child in (("a", "b"), ("c", "d")):
        store_world.add(parent, store_world.job(child, after=[Edge(parent)]))

    first = store_world.cancel("a", "b")
    second = store_world.cancel("d", "c")

    assert first == {"a", "b"}
    assert second == {"c", "d"}
    assert store_world.states(*"abcd") == [JobState.CANCELLED] * 4


def test_a_failed_job_can_be_retried_and_starts_afresh(store_world: StoreWorld) -> None:
    store_world.add("a")
    worker = store_world.new_worker()
    for _ in range(3):
        store_world.fail(worker, store_world.take_one(worker), max_attempts=3)
    store_world.clock.advance(1.0)

    count = store_world.retry_failed()

    assert count == 1
    view = store_world.view("a")
    assert (view.state, view.attempts, view.crashes) == (JobState.QUEUED, 0, 0)
    assert (view.finished_at, view.available_at) == (None, store_world.clock.now_micros)
    job = store_world.take_one(worker)
    assert (job.token, job.attempts) == (4, 0)
    assert store_world.ack(worker, job) is Verdict.ACCEPTED
    assert store_world.outcomes("a") == ["retry", "retry", "error", "done"]


def test_a_job_that_crashed_can_be_retried_with_others(store_world: StoreWorld) -> None:
    store_world.add("a")
    worker = store_world.new_worker()
    store_world.bury(worker, [store_world.take_one(worker)])
    worker = store_world.new_worker()
    store_world.bury(worker, [store_world.take_one(worker, solo=True)], max_crashes=1)

    store_world.retry_failed()

    view = store_world.view("a")
    assert (view.state, view.suspect, view.crashes) == (JobState.QUEUED, False, 0)
    assert not store_world.take_one(store_world.new_worker()).solo


def test_only_failed_jobs_are_retried(store_world: StoreWorld) -> None:
    worker = store_world.new_worker()
    store_world.add(*"abcd")
    store_world.run(worker, "a")
    store_world.run(worker, "b", JobState.SKIPPED)
    store_world.cancel("c")

    assert store_world.retry_failed() == 0
    assert store_world.states(*"abcd") == [
        JobState.DONE,
        JobState.SKIPPED,
        JobState.CANCELLED,
        JobState.QUEUED,
    ]


def test_a_retry_can_be_limited_to_a_task_and_to_few_attempts(store_world: StoreWorld) -> None:
    worker = store_world.new_worker(tasks=["x", "y"])
    store_world.add(
        store_world.job("x-little", task="x"),
        store_world.job("x-much", task="x"),
        store_world.job("y-little", task="y"),
    )
    for key, times in (("x-little", 1), ("x-much", 3), ("y-little", 1)):
        for _ in range(times):
            jobs = store_world.take(worker)
            job = jobs.pop(key)
            store_world.give_back(worker, jobs.values())
            store_world.fail(worker, job, max_attempts=times)

    count = store_world.retry_failed("x", 1)

    assert count == 1
    assert store_world.states("x-little", "x-much", "y-little") == [
        JobState.QUEUED,
        JobState.ERROR,
        JobState.ERROR,
    ]


def test_more_failed_jobs_than_one_slice_are_all_retried(store_world: StoreWorld) -> None:
    count = CHORE_SLICE + 50
    store_world.add(*(f"job-{n}" for n in range(count)))
    worker = store_world.new_worker()
    jobs = store_world.take_all(worker, 500).values()
    failures = [store_world.failure(job, max_attempts=1) for job in jobs]
    store_world.store.fail_and_retry(worker, failures).result()

    first, after = store_world.store.retry_failed(None, None, JobId(0)).result()
    second, _ = store_world.store.retry_failed(None, None, after).result()

    assert (first.count, first.more) == (CHORE_SLICE, True)
    assert (second.count, second.more) == (50, False)
    assert store_world.store.stats().result().states[JobState.QUEUED] == count


def test_what_was_skipped_because_of_a_failure_is_put_back(store_world: StoreWorld) -> None:
    store_world.add(
        "a",
        store_world.job("b", after=[Edge("a")]),
        store_world.job("c", after=[Edge("b")]),
    )
    worker = store_world.new_worker()
    store_world.run(worker, "a", JobState.ERROR)
    store_world.settle()

    store_world.retry_failed()
    store_world.settle()

    for key in "bc":
        view = store_world.view(key)
        assert (view.state, view.pending, view.last_error) == (JobState.WAITING, 1, None)
        assert view.finished_at is None
    for key in "abc":
        store_world.run(worker, key)
    assert store_world.states(*"abc") == [JobState.DONE] * 3


def test_what_was_skipped_for_another_reason_stays_skipped(store_world: StoreWorld) -> None:
    worker = store_world.new_worker()
    store_world.add("bad", "left", "stopped", store_world.job("self", after=[Edge("bad")]))
    store_world.add(
        store_world.job("after-left", after=[Edge("left")]),
        store_world.job("after-stopped", after=[Edge("stopped")]),
    )
    store_world.run(worker, "left", JobState.SKIPPED)
    store_world.cancel("stopped")
    store_world.run(worker, "bad", JobState.ERROR)

    store_world.retry_failed()

    assert store_world.states("self", "after-left", "after-stopped", "left") == [
        JobState.WAITING,
        JobState.SKIPPED,
        JobState.SKIPPED,
        JobState.SKIPPED,
    ]


def test_a_dependant_that_another_failure_forbids_does_not_wait_for_ever(
    store_world: StoreWorld,
) -> None:
    """`c` needs `a` and `b`; both failed; only `a` is retried, then `b` as well."""
    store_world.add(
        store_world.job("a", task="x"),
        store_world.job("b", task="y"),
        store_world.job("c", task="x", after=[Edge("a"), Edge("b")]),
    )
    worker = store_world.new_worker(tasks=["x", "y"])
    store_world.run(worker, "a", JobState.ERROR)
    store_world.run(worker, "b", JobState.ERROR)

    store_world.retry_failed("x")
    half = store_world.view("c")
    why = store_world.why("c")
    store_world.retry_failed("y")
    whole = store_world.view("c")

    assert (half.state, why) == (JobState.SKIPPED, "upstream failed: b")
    assert (whole.state, whole.pending) == (JobState.WAITING, 2)
    for key in "abc":
        store_world.run(worker, key)
    assert store_world.state("c") is JobState.DONE


def test_a_diamond_is_put_back_whole(store_world: StoreWorld) -> None:
    """`e` hangs on two branches of different length below one failure."""
    store_world.add(
        "a",
        store_world.job("b", after=[Edge("a")]),
        store_world.job("c", after=[Edge("a")]),
        store_world.job("d", after=[Edge("c")]),
        store_world.job("e", after=[Edge("b"), Edge("d")]),
    )
    worker = store_world.new_worker()
    store_world.run(worker, "a", JobState.ERROR)
    store_world.settle()

    store_world.retry_failed()
    store_world.settle()

    assert store_world.states(*"bcde") == [JobState.WAITING] * 4
    assert store_world.view("e").pending == 2
    for key in "abcde":
        store_world.run(worker, key)
    assert store_world.state("e") is JobState.DONE


def test_dependencies_that_were_met_stay_met_when_a_dependant_is_put_back(
    store_world: StoreWorld,
) -> None:
    store_world.add(*"ab", store_world.job("c", after=[Edge("a"), Edge("b")]))
    worker = store_world.new_worker()
    store_world.run(worker, "a")
    store_world.run(worker, "b", JobState.ERROR)

    store_world.retry_failed()

    assert (store_world.state("c"), store_world.view("c").pending) == (JobState.WAITING, 1)
    store_world.run(worker, "b")
    assert store_world.state("c") is JobState.QUEUED


def test_a_dependency_that_ended_while_its_dependant_was_skipped_counts(
    store_world: StoreWorld,
) -> None:
    store_world.add(*"ab", store_world.job("c", after=[Edge("a"), Edge("b")]))
    worker = store_world.new_worker()
    store_world.run(worker, "a", JobState.ERROR)
    store_world.run(worker, "b")

    store_world.retry_failed()

    assert store_world.view("c").pending == 1
    store_world.run(worker, "a")
    assert store_world.state("c") is JobState.QUEUED


def test_a_retry_does_not_stop_a_dependant_that_was_released(store_world: StoreWorld) -> None:
    store_world.add("a", store_world.job("b", after=[finished("a")]))
    worker = store_world.new_worker()
    store_world.run(worker, "a", JobState.ERROR)

    store_world.retry_failed()

    assert store_world.states("a", "b") == [JobState.QUEUED, JobState.QUEUED]
    store_world.run(worker, "a")
    assert store_world.state("b") is JobState.QUEUED


def test_old_jobs_are_purged_with_their_history(store_world: StoreWorld) -> None:
    store_world.add("old", "new")
    worker = store_world.new_worker()
    store_world.run(worker, "old")
    store_world.clock.advance(10.0)
    border = store_world.clock.now_micros
    store_world.run(worker, "new")

    count = store_world.purge(border)

    assert count == 1
    assert store_world.store.job("old").result() is None
    assert store_world.history("old") == []
    assert store_world.state("new") is JobState.DONE
    assert store_world.store.stats().result().states[JobState.DONE] == 1


def test_jobs_of_every_end_are_purged_and_others_are_not(store_world: StoreWorld) -> None:
    worker = store_world.new_worker()
    store_world.add(*"abcd")
    store_world.run(worker, "a")
    store_world.run(worker, "b", JobState.SKIPPED)
    store_world.run(worker, "c", JobState.ERROR)
    store_world.cancel("d")
    store_world.add("leased")
    leased = store_world.take_one(worker)
    store_world.add("e", store_world.job("f", after=[Edge("e")]), store_world.job("g", delay=9.0))
    store_world.clock.advance(1.0)

    count = store_world.purge(store_world.clock.now_micros)

    assert count == 4
    assert [store_world.store.job(key).result() for key in "abcd"] == [None] * 4
    assert store_world.states("leased", *"efg") == [
        JobState.IN_PROGRESS,
        JobState.QUEUED,
        JobState.WAITING,
        JobState.QUEUED,
    ]
    assert store_world.ack(worker, leased) is Verdict.ACCEPTED


def test_a_job_that_an_unfinished_job_hangs_on_is_kept(store_world: StoreWorld) -> None:
    store_world.add(*"ab", store_world.job("c", after=[Edge("a"), Edge("b")]))
    worker = store_world.new_worker()
    store_world.run(worker, "a")
    store_world.clock.advance(1.0)

    kept = store_world.purge(store_world.clock.now_micros)
    store_world.run(worker, "b")
    store_world.run(worker, "c")
    store_world.clock.advance(1.0)
    purged = store_world.purge(store_world.clock.now_micros)

    assert (kept, purged) == (0, 3)


def test_kept_jobs_do_not_hide_others_from_the_purge(store_world: StoreWorld) -> None:
    count = CHORE_SLICE + 10
    kept = [f"kept-{n}" for n in range(count)]
    store_world.add("never", *kept)
    store_world.add(store_world.job("waits", after=[Edge("never"), *(Edge(key) for key in kept)]))
    worker = store_world.new_worker()
    jobs = store_world.take_all(worker, 500)
    store_world.give_back(worker, [jobs.pop("never")])
    store_world.store.ack(worker, [store_world.end(job) for job in jobs.values()]).result()
    store_world.clock.advance(1.0)
    store_world.add("old")
    store_world.run(worker, "old")
    store_world.clock.advance(1.0)

    assert store_world.purge(store_world.clock.now_micros) == 1
    assert store_world.store.job("old").result() is None
    assert store_world.state("kept-0") is JobState.DONE


def test_more_old_jobs_than_one_slice_are_all_purged(store_world: StoreWorld) -> None:
    count = CHORE_SLICE + 50
    store_world.add(*(f"job-{n}" for n in range(count)))
    worker = store_world.new_worker()
    jobs = store_world.take_all(worker, 500).values()
    store_world.store.ack(worker, [store_world.end(job) for job in jobs]).result()
    store_world.clock.advance(1.0)

    first = store_world.store.purge(store_world.clock.now_micros).result()
    rest = store_world.purge(store_world.clock.now_micros)

    assert (first.count, first.more) == (CHORE_SLICE, True)
    assert rest == 50
    stats = store_world.store.stats().result()
    assert (stats.tasks, stats.groups, stats.groups_total) == ({}, {}, 0)


def test_a_purged_key_may_be_used_again(store_world: StoreWorld) -> None:
    store_world.add("a")
    worker = store_world.new_worker()
    old = store_world.take_one(worker)
    store_world.ack(worker, old)
    store_world.clock.advance(1.0)
    store_world.purge(store_world.clock.now_micros)

    report = store_world.add("a")

    assert report.created == {"a"}
    new = store_world.take_one(worker)
    assert new.key == "a"
    assert store_world.ack(worker, old) is Verdict.STALE
    assert store_world.ack(worker, new) is Verdict.ACCEPTED


def test_no_two_leases_have_the_same_name(store_world: StoreWorld) -> None:
    """Goal: id and token fence a lease for ever, also when a store gives an id again. Method: purge
    a job of many leases first, then the one with the highest id, and then look at new ones.
    """
    worker = store_world.new_worker()
    seen = []
    store_world.add("low", "top")
    for _ in range(5):
        job = store_world.take_one(worker)
        seen.append(ref(job))
        store_world.give_back(worker, [job])
    for key in ("low", "top"):
        store_world.run(worker, key)
        store_world.clock.advance(1.0)
        store_world.purge(store_world.clock.now_micros)

    store_world.add("new", "newer")
    for _ in range(5):
        jobs = store_world.take(worker).values()
        seen += [ref(job) for job in jobs]
        store_world.give_back(worker, jobs)

    assert len(seen) == len(set(seen)) == 15


def test_a_dependant_outlives_the_purge_of_what_it_was_skipped_by(
    store_world: StoreWorld,
) -> None:
    store_world.add("a", store_world.job("b", after=[Edge("a")]))
    worker = store_world.new_worker()
    job = store_world.take_one(worker)
    store_world.fail(worker, job, max_attempts=1)
    store_world.clock.advance(1.0)

    store_world.purge(store_world.clock.now_micros)

    assert store_world.store.job("a").result() is None
    assert store_world.store.job("b").result() is None
    assert store_world.retry_failed() == 0
