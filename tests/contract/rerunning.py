# SPDX-License-Identifier: Apache-2.0
"""Named jobs again: failed ones are put back, done ones run once more, ended ones are forgotten."""

from __future__ import annotations

import pytest

from penstock.errors import KeyOfSeveralApps
from penstock.model.job import Edge, Job, JobState, LeasedJob, NewJob, finished
from penstock.model.lease import Verdict
from penstock.model.views import FIRST_END, EndMark, UpstreamRow
from penstock.stores.protocol import CHORE_SLICE
from tests.contract.apps import be
from tests.contract.call_words import answer, balance, begin, calls, intent
from tests.contract.world import StoreWorld


def retry(world: StoreWorld, *keys: str) -> frozenset[str]:
    """Put named jobs back to the end; the keys of those that were."""
    found: frozenset[str] = frozenset()
    for _ in range(50):
        step = world.store.retry(keys).result()
        found |= step.keys
        if not step.more:
            return found
    raise AssertionError("a retry that never ends")


def rerun(world: StoreWorld, *keys: str, fresh: bool = False) -> frozenset[str]:
    found: frozenset[str] = frozenset()
    for _ in range(50):
        step = world.store.rerun(keys, fresh=fresh).result()
        found |= step.keys
        if not step.more:
            return found
    raise AssertionError("a rerun that never ends")


def purge(world: StoreWorld, *jobs: Job) -> int:
    ends, count = [EndMark(job.finished_at or 0, job.id) for job in jobs], 0
    for _ in range(50):
        step = world.store.purge_jobs(ends).result()
        count += step.count
        if not step.more:
            return count
    raise AssertionError("a purge that never ends")


def done(world: StoreWorld, key: str, result: str | None = None) -> LeasedJob:
    """Run a job to its end; what was leased."""
    worker = world.new_worker()
    taken = world.take_all(worker)
    job = taken.pop(key)
    world.give_back(worker, taken.values())
    assert world.ack(worker, job, result=result) is Verdict.ACCEPTED
    return job


def results(world: StoreWorld) -> dict[str, str | None]:
    return {
        row.key: row.result for row in world.store.results("work", FIRST_END, 100).result().rows
    }


# retry


def test_a_retry_of_keys_puts_back_these_and_what_was_skipped_because_of_them(
    store_world: StoreWorld,
) -> None:
    for parent, child in (("a", "after-a"), ("b", "after-b")):
        store_world.add(parent, store_world.job(child, after=[Edge(parent)]))
    worker = store_world.new_worker()
    for key in "ab":
        store_world.run(worker, key, JobState.ERROR)

    before = store_world.store.settle().result()
    step = store_world.store.retry(["a", "a", "nobody"]).result()
    after = store_world.store.settle().result()

    assert (step.keys, step.more) == (frozenset("a"), False)
    assert after.failed_total - before.failed_total == 1
    assert after.dependants_total - before.dependants_total == 1
    assert store_world.states("a", "after-a", "b", "after-b") == [
        JobState.QUEUED,
        JobState.WAITING,
        JobState.ERROR,
        JobState.SKIPPED,
    ]


def test_a_retry_of_keys_leaves_alone_what_has_not_failed_or_is_of_a_plan(
    store_world: StoreWorld,
) -> None:
    worker = store_world.new_worker()
    store_world.add(*"abc", store_world.job("built", plan_id="p"))
    store_world.run(worker, "a")
    store_world.run(worker, "b", JobState.SKIPPED)
    store_world.run(worker, "built", JobState.ERROR)

    assert retry(store_world, *"abc", "built") == frozenset()
    assert retry(store_world) == frozenset()
    assert store_world.states(*"abc", "built") == [
        JobState.DONE,
        JobState.SKIPPED,
        JobState.QUEUED,
        JobState.ERROR,
    ]


# rerun


def test_a_done_job_runs_again_from_its_first_attempt_and_keeps_its_result(
    store_world: StoreWorld,
) -> None:
    store_world.add("a")
    worker = store_world.new_worker()
    store_world.fail(worker, store_world.take_one(worker), max_attempts=3)
    store_world.clock.advance(3600.0)
    first = done(store_world, "a", "1")
    store_world.clock.advance(1.0)

    assert rerun(store_world, "a") == {"a"}

    view = store_world.view("a")
    assert (view.state, view.attempts, view.result) == (JobState.QUEUED, 0, "1")
    assert (view.finished_at, view.available_at) == (None, store_world.clock.now_micros)
    assert results(store_world) == {}
    worker = store_world.new_worker()
    again = store_world.take_one(worker)
    assert (again.token > first.token, again.attempts, again.due_at) == (True, 0, first.due_at)
    assert store_world.view("a").result == "1"
    store_world.ack(worker, again, result=None)
    assert store_world.view("a").result is None
    assert results(store_world) == {"a": None}
    assert store_world.outcomes("a") == ["retry", "done", "done"]
    assert store_world.store.stats().result().states[JobState.DONE] == 1


@pytest.mark.parametrize("end", ["failed", "refused", "cancelled", "skipped", "crashed"])
def test_what_a_job_returned_last_is_kept_when_it_ends_badly(
    store_world: StoreWorld, end: str
) -> None:
    store_world.add("a")
    done(store_world, "a", "1")
    rerun(store_world, "a")
    worker = store_world.new_worker()
    job = store_world.take_one(worker)
    if end == "failed":
        store_world.fail(worker, job, give_up=True)
    elif end == "cancelled":
        store_world.cancel("a")
    elif end == "crashed":
        store_world.reap(worker, [job])
        worker = store_world.new_worker()
        alone = store_world.take_one(worker, quarantine=True)
        store_world.reap(worker, [alone], max_crashes=1)
    else:
        store_world.ack(worker, job, JobState.ERROR if end == "refused" else JobState.SKIPPED)

    view = store_world.view("a")
    assert view.state.ended
    assert view.state is not JobState.DONE
    assert view.result == "1"
    assert results(store_world) == {}


def test_a_rerun_leaves_dependants_alone_and_they_read_the_last_result(
    store_world: StoreWorld,
) -> None:
    store_world.add("a", "other", store_world.job("ran", after=[Edge("a")]))
    store_world.add(store_world.job("waits", after=[Edge("a"), Edge("other")]))
    done(store_world, "a", "1")
    done(store_world, "ran")

    rerun(store_world, "a")

    assert store_world.states("ran", "waits") == [JobState.DONE, JobState.WAITING]
    assert store_world.view("waits").pending == 1
    done(store_world, "other", "2")
    assert store_world.state("waits") is JobState.QUEUED
    upstream = store_world.store.upstream(store_world.view("waits").id).result()
    assert upstream == [
        UpstreamRow("a", "work", JobState.QUEUED, "1"),
        UpstreamRow("other", "work", JobState.DONE, "2"),
    ]
    store_world.run(store_world.new_worker(), "a", JobState.ERROR)
    assert store_world.states("ran", "waits") == [JobState.DONE, JobState.QUEUED]
    retry(store_world, "a")
    assert store_world.states("ran", "waits") == [JobState.DONE, JobState.QUEUED]


def test_what_is_enqueued_after_a_job_that_runs_again_waits_for_it(store_world: StoreWorld) -> None:
    store_world.add("a")
    done(store_world, "a")
    rerun(store_world, "a")
    store_world.add(store_world.job("late", after=[Edge("a")]))

    waits = store_world.state("late")
    done(store_world, "a")

    assert (waits, store_world.state("late")) == (JobState.WAITING, JobState.QUEUED)


def test_a_parent_runs_again_only_after_all_of_its_dependants_were_told(
    store_world: StoreWorld,
) -> None:
    children = [f"child-{n}" for n in range(3 * CHORE_SLICE)]
    store_world.add("a", *(store_world.job(key, after=[Edge("a")]) for key in children))
    done(store_world, "a")

    assert rerun(store_world, "a") == {"a"}

    queued = store_world.store.stats().result().states[JobState.QUEUED]
    assert queued == len(children) + 1


def test_only_plain_jobs_that_are_done_run_again(store_world: StoreWorld) -> None:
    worker = store_world.new_worker()
    store_world.add(*"abc", store_world.job("built", plan_id="p"))
    store_world.add(store_world.job("tick", task="schedule:watch"))
    store_world.run(worker, "a", JobState.SKIPPED)
    store_world.run(worker, "b", JobState.ERROR)
    store_world.run(worker, "built")
    store_world.run(store_world.new_worker(["schedule:watch"]), "tick")
    keys = (*"abc", "built", "tick", "nobody")
    before = [store_world.view(key) for key in keys[:-1]]

    assert rerun(store_world, *keys) == frozenset()
    assert rerun(store_world, *keys, fresh=True) == frozenset()
    assert [store_world.view(key) for key in keys[:-1]] == before


def test_a_job_that_runs_again_does_not_run_once_more_meanwhile(store_world: StoreWorld) -> None:
    store_world.add("a")
    done(store_world, "a")

    once = rerun(store_world, "a")
    queued = rerun(store_world, "a")
    worker = store_world.new_worker()
    job = store_world.take_one(worker)
    held = rerun(store_world, "a", fresh=True)

    assert (once, queued, held) == (frozenset("a"), frozenset(), frozenset())
    assert store_world.ack(worker, job) is Verdict.ACCEPTED


def test_a_limit_key_counts_a_job_that_runs_again(store_world: StoreWorld) -> None:
    store_world.add(*(store_world.job(key, limit_keys=("host:h",)) for key in "ab"))
    store_world.store.set_cap("host:h", 1).result()
    done(store_world, "a")
    done(store_world, "b")
    rerun(store_world, *"ab")

    worker = store_world.new_worker()
    assert len(store_world.take_all(worker)) == 1


def test_a_job_of_before_a_restore_runs_again_with_a_greater_token(store_world: StoreWorld) -> None:
    store_world.add("a")
    done(store_world, "a")
    store_world.store.void_leases(900).result()
    rerun(store_world, "a")

    assert store_world.take_one(store_world.new_worker()).token > 900


# what they have bought


def _bought(world: StoreWorld, key: str = "a") -> LeasedJob:
    world.add(key)
    worker = world.new_worker()
    job = world.take(worker)[key]
    begin(world, intent(job))
    world.store.answered([answer(job)]).result()
    world.ack(worker, job)
    return job


def test_answers_are_there_when_a_job_runs_again(store_world: StoreWorld) -> None:
    job = _bought(store_world)

    rerun(store_world, "a")

    assert store_world.store.answer_of(answer(job).key).result() is not None


def test_a_fresh_rerun_forgets_answers_and_what_was_spent_stays_spent(
    store_world: StoreWorld,
) -> None:
    job, other = _bought(store_world), _bought(store_world, "b")
    spent = balance(store_world)
    store_world.clock.advance(1.0)

    assert rerun(store_world, "a", "nobody", fresh=True) == {"a"}

    assert calls(store_world, job) == []
    assert store_world.store.answer_of(answer(job).key).result() is None
    assert len(calls(store_world, other)) == 1
    assert balance(store_world) == spent
    again = store_world.take_one(store_world.new_worker())
    assert again.due_at > job.due_at  # so that its calls have other idempotency keys


# purge


def test_named_jobs_that_have_ended_are_forgotten(store_world: StoreWorld) -> None:
    jobs = [_bought(store_world, key) for key in "ab"]
    a, b = (store_world.view(key) for key in "ab")

    would = store_world.store.would_purge_jobs([EndMark(a.finished_at or 0, a.id)]).result()
    count = purge(store_world, a)

    assert (would, count, purge(store_world, a)) == (1, 1, 0)
    assert store_world.store.job("a").result() is None
    assert store_world.view("b") == b
    assert [len(calls(store_world, job)) for job in jobs] == [0, 1]


def test_what_an_unfinished_job_waits_for_is_not_forgotten_by_name(store_world: StoreWorld) -> None:
    after = [finished("a"), Edge("other")]
    store_world.add("a", "other", store_world.job("waits", after=after))
    done(store_world, "a")
    a = store_world.view("a")

    assert store_world.store.would_purge_jobs([EndMark(a.finished_at or 0, a.id)]).result() == 0
    assert purge(store_world, a) == 0
    assert store_world.view("a") == a


def test_a_job_that_has_run_again_is_not_forgotten_by_its_old_end(store_world: StoreWorld) -> None:
    store_world.add(*"ab")
    done(store_world, "a")
    done(store_world, "b")  # at the same moment, with a higher id
    a = store_world.view("a")
    rerun(store_world, "a")

    queued = purge(store_world, a)
    store_world.clock.advance(1.0)
    done(store_world, "a")

    assert (queued, purge(store_world, a)) == (0, 0)
    assert store_world.states(*"ab") == [JobState.DONE, JobState.DONE]


def test_a_named_job_with_very_many_dependants_is_forgotten_in_slices(
    store_world: StoreWorld,
) -> None:
    count = 1_200
    store_world.add("a", *(store_world.job(f"c{n}", after=[Edge("a")]) for n in range(count)))
    store_world.run(store_world.new_worker(), "a", JobState.ERROR)
    store_world.settle()

    assert purge(store_world, store_world.view("a")) == 1
    assert store_world.store.stats().result().states[JobState.SKIPPED] == count


# apps


def test_named_jobs_of_another_app_are_left_alone(store_world: StoreWorld) -> None:
    def job(key: str) -> NewJob:
        return store_world.job(key)

    for app in ("one", "two"):
        be(store_world, app)
        store_world.add(job("done"), job("failed"))
        worker = store_world.new_worker()
        store_world.run(worker, "done")
        store_world.run(worker, "failed", JobState.ERROR)
    there = store_world.view("done")
    be(store_world, "one")

    assert rerun(store_world, "done") == {"done"}
    assert retry(store_world, "failed") == {"failed"}
    assert purge(store_world, there) == 0
    be(store_world, "two")
    assert store_world.states("done", "failed") == [JobState.DONE, JobState.ERROR]


def test_a_key_of_several_apps_is_refused_unless_one_is_named(store_world: StoreWorld) -> None:
    for app in ("one", "two"):
        be(store_world, app)
        store_world.add("a")
        store_world.run(store_world.new_worker(), "a")
    be(store_world, None)

    with pytest.raises(KeyOfSeveralApps):
        store_world.store.rerun(["a"]).result()
    assert store_world.store.rerun(["a"], "two").result().keys == {"a"}
    assert store_world.store.rerun(["a"], "three").result().keys == frozenset()
