# SPDX-License-Identifier: Apache-2.0
"""What may an operator do to jobs: cancel them, or retry what failed?"""

from __future__ import annotations

from itertools import pairwise

from penstock.model.job import Edge, JobState, finished
from penstock.model.lease import Verdict
from penstock.stores.protocol import CHORE_SLICE, SETTLE_SLICE
from tests.contract.world import TROUBLE, StoreWorld


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
    store_world.reap(worker, [store_world.take_one(worker)])

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
    store_world.reap(worker, [store_world.take_one(worker)])
    worker = store_world.new_worker()
    store_world.reap(worker, [store_world.take_one(worker, quarantine=True)], max_crashes=1)

    store_world.retry_failed()

    view = store_world.view("a")
    assert (view.state, view.suspect, view.crashes) == (JobState.QUEUED, False, 0)
    assert store_world.take_one(store_world.new_worker()).cell is None


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

    first = store_world.store.retry_failed(None, None).result()
    left = store_world.store.stats().result().states.get(JobState.ERROR, 0)
    while (last := store_world.store.settle().result()).more:
        continue

    assert first.failed_total == count - left
    assert last.failed_total == count
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


def test_jobs_that_are_put_back_together_wait_for_each_other(store_world: StoreWorld) -> None:
    """`c` and `d` hang on one failure for success and on `x`, skipped by the other, for its end."""
    store_world.add(
        *"pq",
        store_world.job("x", after=[Edge("q")]),
        store_world.job("y", after=[Edge("p")]),
        store_world.job("c", after=[Edge("p"), finished("x")]),
        store_world.job("d", after=[Edge("q"), finished("y")]),
    )
    worker = store_world.new_worker()
    store_world.run(worker, "p", JobState.ERROR)
    store_world.run(worker, "q", JobState.ERROR)

    store_world.retry_failed()

    assert store_world.states(*"xycd") == [JobState.WAITING] * 4
    assert [store_world.view(key).pending for key in "xycd"] == [1, 1, 2, 2]


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


def test_a_retry_in_the_midst_of_a_long_skip_puts_everything_back(store_world: StoreWorld) -> None:
    """The chain is longer than a slice, so most of it is not told of the failure yet."""
    keys = [f"link-{n}" for n in range(min(3 * SETTLE_SLICE, store_world.chain_max))]
    links = [store_world.job(key, after=[Edge(before)]) for before, key in pairwise(keys)]
    store_world.add(keys[0], *links)
    store_world.run(store_world.new_worker(), keys[0], JobState.ERROR)

    store_world.retry_failed()
    store_world.settle()

    states = store_world.store.stats().result().states
    assert (states[JobState.QUEUED], states[JobState.WAITING]) == (1, len(keys) - 1)


def test_a_retry_is_foreseen_without_changing_anything(store_world: StoreWorld) -> None:
    """Of eight jobs three failed; `g` hangs on a cancelled one as well, `h` on `g`."""
    store_world.add(store_world.job("a", task="x"), "b", "stopped")
    store_world.add(
        store_world.job("c", after=[Edge("a")]),
        store_world.job("d", after=[Edge("c"), Edge("b")]),
        store_world.job("g", after=[Edge("a"), Edge("stopped")]),
        store_world.job("h", after=[Edge("g")]),
    )
    worker = store_world.new_worker(tasks=["x", "work"])
    for key in "ab":
        store_world.run(worker, key, JobState.ERROR)
    store_world.cancel("stopped")
    store_world.settle()
    before = store_world.store.stats().result().states

    foreseen = [
        store_world.store.would_retry(task, most).result()
        for task, most in (("x", None), (None, None), (None, 0), ("y", None))
    ]

    assert [(x.failed, x.dependants) for x in foreseen] == [(1, 1), (2, 2), (2, 2), (0, 0)]
    assert store_world.store.stats().result().states == before
    assert store_world.retry_failed() == 4


def test_a_wide_retry_is_cut_into_slices_and_goes_on_by_itself(store_world: StoreWorld) -> None:
    """More dependants than any slice; `last` hangs on all of them. The caller dies after one call,
    and leases go on.
    """
    count = 3 * SETTLE_SLICE
    wide = [store_world.job(f"child-{n}", after=[Edge("a")]) for n in range(count)]
    store_world.add("a", *wide)
    last = [Edge(f"child-{n}") for n in range(count)]
    store_world.add(store_world.job("last", after=last))
    worker = store_world.new_worker()
    store_world.run(worker, "a", JobState.ERROR)
    store_world.settle()

    store_world.store.retry_failed(None, None).result()
    store_world.run(worker, "a")
    store_world.settle()
    children = store_world.take_all(worker, 500)
    ends = [store_world.end(job) for job in children.values()]

    assert len(children) == count
    store_world.store.ack(worker, ends[1:]).result()
    store_world.settle()
    assert (store_world.state("last"), store_world.view("last").pending) == (JobState.WAITING, 1)
    store_world.store.ack(worker, ends[:1]).result()
    assert store_world.state("last") is JobState.QUEUED


def test_a_job_that_fails_again_while_its_dependants_come_back_skips_them_all(
    store_world: StoreWorld,
) -> None:
    """Goal: nobody waits for ever, and nobody runs. Method: after one slice of the retry the job
    fails again; then all comes to rest, and another retry brings everything back.
    """
    keys = [f"link-{n}" for n in range(min(3 * SETTLE_SLICE, store_world.chain_max))]
    links = [store_world.job(key, after=[Edge(before)]) for before, key in pairwise(keys)]
    store_world.add(keys[0], *links)
    worker = store_world.new_worker()
    store_world.run(worker, keys[0], JobState.ERROR)
    store_world.settle()

    store_world.store.retry_failed(None, None).result()
    (job,) = store_world.take(worker).values()
    store_world.ack(worker, job, JobState.ERROR, error=TROUBLE)
    store_world.settle()

    states = store_world.store.stats().result().states
    assert (states[JobState.ERROR], states[JobState.SKIPPED]) == (1, len(keys) - 1)
    assert store_world.retry_failed() == len(keys)
    assert store_world.store.stats().result().states[JobState.WAITING] == len(keys) - 1


def test_nothing_is_forgotten_that_is_still_to_be_put_back(store_world: StoreWorld) -> None:
    keys = [f"link-{n}" for n in range(min(3 * SETTLE_SLICE, store_world.chain_max))]
    links = [store_world.job(key, after=[Edge(before)]) for before, key in pairwise(keys)]
    store_world.add(keys[0], *links)
    store_world.run(store_world.new_worker(), keys[0], JobState.ERROR)
    store_world.settle()
    store_world.clock.advance(1.0)

    store_world.store.retry_failed(None, None).result()

    assert store_world.purge(store_world.clock.now_micros) == 0
    states = store_world.store.stats().result().states
    assert (states[JobState.QUEUED], states[JobState.WAITING]) == (1, len(keys) - 1)
