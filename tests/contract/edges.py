# SPDX-License-Identifier: Apache-2.0
"""What do dependants learn when a job ends?"""

from __future__ import annotations

from itertools import pairwise

from penstock.model.job import Edge, JobState, finished
from penstock.stores.protocol import SETTLE_SLICE
from tests.contract.world import StoreWorld

CHAIN_LENGTH = 5_000  # deeper than any stack of calls


def test_the_last_dependency_that_is_done_releases_its_dependant(store_world: StoreWorld) -> None:
    store_world.add("a", "b", store_world.job("c", after=[Edge("a"), Edge("b")]))
    worker = store_world.new_worker()

    store_world.run(worker, "a")
    half = store_world.view("c")
    store_world.run(worker, "b")
    whole = store_world.view("c")

    assert (half.state, half.pending) == (JobState.WAITING, 1)
    assert (whole.state, whole.pending) == (JobState.QUEUED, 0)
    assert list(store_world.take(worker)) == ["c"]


def test_a_waiting_job_is_not_handed_out(store_world: StoreWorld) -> None:
    store_world.add("a", store_world.job("b", after=[Edge("a")], priority=10))

    assert list(store_world.take_all(store_world.new_worker())) == ["a"]


def test_a_success_edge_skips_when_its_parent_did_not_end_well(store_world: StoreWorld) -> None:
    worker = store_world.new_worker()
    store_world.add("bad", "left", "stopped")
    for key in ("bad", "left", "stopped"):
        store_world.add(store_world.job(f"after-{key}", after=[Edge(key)]))

    store_world.run(worker, "bad", JobState.ERROR)
    store_world.run(worker, "left", JobState.SKIPPED)
    store_world.cancel("stopped")

    assert store_world.why("after-bad") == "upstream failed: bad"
    assert store_world.why("after-left") == "upstream skipped: left"
    assert store_world.why("after-stopped") == "upstream failed: stopped"
    for key in ("bad", "left", "stopped"):
        view = store_world.view(f"after-{key}")
        assert (view.state, view.pending, view.token) == (JobState.SKIPPED, 0, 0)
        assert view.finished_at == store_world.clock.now_micros
        assert store_world.history(f"after-{key}") == []


def test_a_finished_edge_is_satisfied_by_every_end(store_world: StoreWorld) -> None:
    worker = store_world.new_worker()
    store_world.add(*"abcd", store_world.job("e", after=[finished(key) for key in "abcd"]))

    store_world.run(worker, "a", JobState.DONE)
    store_world.run(worker, "b", JobState.SKIPPED)
    store_world.run(worker, "c", JobState.ERROR)
    before = store_world.view("e")
    store_world.cancel("d")

    assert (before.state, before.pending) == (JobState.WAITING, 1)
    assert store_world.state("e") is JobState.QUEUED


def test_one_bad_dependency_is_enough(store_world: StoreWorld) -> None:
    store_world.add(*"ab", store_world.job("c", after=[Edge("a"), Edge("b"), finished("b")]))
    worker = store_world.new_worker()

    store_world.run(worker, "a", JobState.ERROR)
    store_world.run(worker, "b")

    assert store_world.state("c") is JobState.SKIPPED
    assert store_world.why("c") == "upstream failed: a"


def test_the_dependency_that_ended_badly_first_is_named(store_world: StoreWorld) -> None:
    """First in time, not in the order of ids; a later end changes nothing."""
    store_world.add(*"ab", store_world.job("c", after=[Edge("a"), Edge("b")]))
    worker = store_world.new_worker()
    jobs = store_world.take(worker)

    store_world.store.ack(worker, [store_world.end(jobs["b"], JobState.ERROR)]).result()
    store_world.store.ack(worker, [store_world.end(jobs["a"], JobState.ERROR)]).result()

    assert store_world.why("c") == "upstream failed: b"


def test_of_dependencies_that_ended_badly_in_one_call_one_is_named(
    store_world: StoreWorld,
) -> None:
    """Either may be: `d` hears of `b`, which is skipped because of `a`, and of `c` in one call.

    What may be put back does not depend on which one it is.
    """
    store_world.add(
        store_world.job("a", task="x"),
        store_world.job("b", task="x", after=[Edge("a")]),
        store_world.job("c", task="y"),
        store_world.job("d", task="x", after=[Edge("b"), Edge("c")]),
    )
    worker = store_world.new_worker(tasks=["x", "y"])
    ends = [store_world.end(x, JobState.ERROR) for x in store_world.take(worker).values()]

    store_world.store.ack(worker, ends).result()
    store_world.settle()
    why = store_world.why("d")
    store_world.retry_failed("x")
    half, why_half = store_world.states(*"bd"), store_world.why("d")
    store_world.retry_failed("y")

    assert why in ("upstream skipped: b", "upstream failed: c")
    assert (half, why_half) == ([JobState.WAITING, JobState.SKIPPED], "upstream failed: c")
    assert store_world.states(*"bd") == [JobState.WAITING, JobState.WAITING]


def test_a_retried_attempt_tells_nobody(store_world: StoreWorld) -> None:
    store_world.add("a", store_world.job("b", after=[finished("a")]))
    worker = store_world.new_worker()

    store_world.fail(worker, store_world.take_one(worker))

    assert store_world.state("b") is JobState.WAITING


def test_attempts_that_are_used_up_tell_dependants(store_world: StoreWorld) -> None:
    store_world.add(
        "a",
        store_world.job("b", after=[Edge("a")]),
        store_world.job("c", after=[finished("a")]),
    )
    worker = store_world.new_worker()

    store_world.fail(worker, store_world.take_one(worker), max_attempts=1)

    assert store_world.states("b", "c") == [JobState.SKIPPED, JobState.QUEUED]


def test_a_skip_is_passed_on(store_world: StoreWorld) -> None:
    store_world.add(
        "a",
        store_world.job("b", after=[Edge("a")]),
        store_world.job("c", after=[Edge("b")]),
        store_world.job("d", after=[finished("c")]),
    )

    store_world.run(store_world.new_worker(), "a", JobState.ERROR)
    store_world.settle()

    assert store_world.states(*"bcd") == [JobState.SKIPPED, JobState.SKIPPED, JobState.QUEUED]
    assert store_world.why("b") == "upstream failed: a"
    assert store_world.why("c") == "upstream skipped: b"


def test_a_dependant_of_two_branches_is_skipped_once(store_world: StoreWorld) -> None:
    store_world.add(
        "a",
        store_world.job("b", after=[Edge("a")]),
        store_world.job("c", after=[Edge("a")]),
        store_world.job("d", after=[Edge("b"), Edge("c")]),
    )

    store_world.run(store_world.new_worker(), "a", JobState.ERROR)
    store_world.settle()

    assert store_world.store.stats().result().states[JobState.SKIPPED] == 3
    assert store_world.why("d") in ("upstream skipped: b", "upstream skipped: c")


def test_two_ends_in_one_call_release_their_dependant_once(store_world: StoreWorld) -> None:
    store_world.add(*"ab", store_world.job("c", after=[Edge("a"), Edge("b")]))
    worker = store_world.new_worker()
    ends = [store_world.end(job) for job in store_world.take(worker).values()]

    store_world.store.ack(worker, ends).result()

    assert (store_world.state("c"), store_world.view("c").pending) == (JobState.QUEUED, 0)


def test_a_dependant_that_was_cancelled_is_not_released(store_world: StoreWorld) -> None:
    store_world.add("a", store_world.job("b", after=[Edge("a")]))
    store_world.cancel("b")

    store_world.run(store_world.new_worker(), "a")

    assert (store_world.state("b"), store_world.view("b").pending) == (JobState.CANCELLED, 0)


def test_a_deep_chain_is_skipped_to_its_end_by_repeated_leases(store_world: StoreWorld) -> None:
    """Goal: whatever touches many rows is cut, and nothing recurses. Method: fail the first of a
    chain longer than any stack and let lease calls go on until they promise no more.
    """
    keys = [f"link-{n}" for n in range(min(CHAIN_LENGTH, store_world.chain_max))]
    links = [store_world.job(key, after=[Edge(before)]) for before, key in pairwise(keys)]
    store_world.add(keys[0], *links)

    store_world.run(store_world.new_worker(), keys[0], JobState.ERROR)
    store_world.settle()

    states = store_world.store.stats().result().states
    assert (states[JobState.ERROR], states[JobState.SKIPPED]) == (1, len(keys) - 1)
    assert states[JobState.WAITING] == 0
    assert store_world.why(keys[-1]) == f"upstream skipped: {keys[-2]}"


def test_a_deep_chain_is_put_back_to_its_end_when_its_head_is_retried(
    store_world: StoreWorld,
) -> None:
    keys = [f"link-{n}" for n in range(min(CHAIN_LENGTH, store_world.chain_max))]
    links = [store_world.job(key, after=[Edge(before)]) for before, key in pairwise(keys)]
    store_world.add(keys[0], *links)
    store_world.run(store_world.new_worker(), keys[0], JobState.ERROR)
    store_world.settle()

    store_world.retry_failed()
    store_world.settle()

    states = store_world.store.stats().result().states
    assert (states[JobState.QUEUED], states[JobState.WAITING]) == (1, len(keys) - 1)


def test_more_dependants_than_one_slice_are_all_released(store_world: StoreWorld) -> None:
    count = 2 * SETTLE_SLICE + 100
    store_world.add("a", *(store_world.job(f"child-{n}", after=[Edge("a")]) for n in range(count)))
    worker = store_world.new_worker()

    store_world.run(worker, "a")
    taken = store_world.take_all(worker, 500)

    assert len(taken) == count


def test_a_barrier_behind_many_jobs_opens_when_the_last_has_ended(
    store_world: StoreWorld,
) -> None:
    keys = [f"part-{n}" for n in range(300)]
    store_world.add(*keys, store_world.job("barrier", after=[finished(key) for key in keys]))
    worker = store_world.new_worker()
    jobs = list(store_world.take_all(worker).values())
    ends = [
        store_world.end(job, JobState.ERROR if n % 7 == 0 else JobState.DONE)
        for n, job in enumerate(jobs)
    ]

    store_world.store.ack(worker, ends[:-1]).result()
    store_world.settle()
    before = store_world.view("barrier")
    store_world.store.ack(worker, ends[-1:]).result()

    assert (before.state, before.pending) == (JobState.WAITING, 1)
    assert store_world.state("barrier") is JobState.QUEUED
