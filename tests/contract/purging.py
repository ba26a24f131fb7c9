# SPDX-License-Identifier: Apache-2.0
"""Which old jobs does a store forget, and which must it keep?"""

from __future__ import annotations

from penstock.model.job import Edge, JobState, finished
from penstock.model.lease import Verdict
from penstock.model.views import FIRST_END
from penstock.stores.protocol import CHORE_SLICE, PURGE_EDGES
from tests.contract.world import StoreWorld, ref


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

    first, _ = store_world.store.purge(store_world.clock.now_micros, FIRST_END).result()
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


def test_a_failure_that_is_forgotten_still_forbids_its_dependants(store_world: StoreWorld) -> None:
    """`c` needs `a` and `b`; both failed; `b` is purged, `a` is retried: `c` must not run."""
    store_world.add(*"ab")
    worker = store_world.new_worker()
    taken = store_world.take(worker)
    store_world.fail(worker, taken["b"], max_attempts=1)
    store_world.clock.advance(1.0)
    border = store_world.clock.now_micros
    store_world.fail(worker, taken["a"], max_attempts=1)
    store_world.add(store_world.job("c", after=[Edge("a"), Edge("b")]))
    store_world.add(store_world.job("d", after=[Edge("c")]))

    assert store_world.purge(border) == 1
    store_world.retry_failed()
    store_world.settle()
    store_world.run(worker, "a")

    assert store_world.states("c", "d") == [JobState.SKIPPED, JobState.SKIPPED]
    assert store_world.why("c") == "upstream failed: b"
    assert store_world.take_all(worker) == {}


def test_a_purge_is_foreseen_without_changing_anything(store_world: StoreWorld) -> None:
    store_world.add(*"abc", store_world.job("d", after=[Edge("a"), Edge("c")]))
    worker = store_world.new_worker()
    store_world.run(worker, "a")
    store_world.run(worker, "b")
    store_world.clock.advance(1.0)
    border = store_world.clock.now_micros

    foreseen = store_world.store.would_purge(border).result()

    assert store_world.states("a", "b") == [JobState.DONE, JobState.DONE]
    assert (foreseen, store_world.purge(border)) == (1, 1)


def test_a_job_with_very_many_dependants_is_forgotten_as_others_are(
    store_world: StoreWorld,
) -> None:
    """Its edges go slice by slice; its dependants stay skipped whoever else is retried."""
    count = PURGE_EDGES + CHORE_SLICE
    store_world.add("wide", "other")
    worker = store_world.new_worker()
    jobs = store_world.take(worker)
    store_world.fail(worker, jobs["wide"], max_attempts=1)
    store_world.clock.advance(1.0)
    border = store_world.clock.now_micros
    store_world.fail(worker, jobs["other"], max_attempts=1)
    both = [Edge("other"), Edge("wide")]
    store_world.add(*(store_world.job(f"child-{n}", after=both) for n in range(count)))
    foreseen = store_world.store.would_purge(border).result()

    purged = store_world.purge(border)
    store_world.retry_failed()

    assert (foreseen, purged) == (1, 1)
    states = store_world.store.stats().result().states
    assert (states[JobState.SKIPPED], states[JobState.QUEUED]) == (count, 1)
    assert store_world.why(f"child-{count - 1}") == "upstream failed: wide"


def test_a_job_with_very_many_dependants_is_kept_for_the_one_that_has_not_ended(
    store_world: StoreWorld,
) -> None:
    count = PURGE_EDGES + CHORE_SLICE
    store_world.add("wide", "other")
    worker = store_world.new_worker()
    store_world.run(worker, "wide", JobState.ERROR)
    children = [store_world.job(f"child-{n}", after=[Edge("wide")]) for n in range(count)]
    store_world.add(*children)
    store_world.add(store_world.job("last", after=[finished("wide"), Edge("other")]))
    store_world.clock.advance(1.0)
    border = store_world.clock.now_micros

    foreseen = store_world.store.would_purge(border).result()

    assert (foreseen, store_world.purge(border)) == (count, count)
    assert store_world.state("wide") is JobState.ERROR
