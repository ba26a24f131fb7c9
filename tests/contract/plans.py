# SPDX-License-Identifier: Apache-2.0
"""How does a plan begin, go on and end, and what becomes of its jobs?"""

from __future__ import annotations

import msgspec

from penstock.model.job import Edge, JobId, JobState, NewJob, finished
from penstock.model.lease import CommitLevel, Verdict
from penstock.model.plan import PlanState
from penstock.stores.protocol import CHORE_SLICE
from tests.contract.dataset_words import (
    builder,
    draft,
    plan_job,
    run_ends,
    running,
    stage,
    state_of,
    submit,
    take_locks,
    tidy,
    write,
)
from tests.contract.world import StoreWorld

UNHAPPY = (JobState.SKIPPED, JobState.ERROR, JobState.CANCELLED)
FIRST = JobId(0)


def _start(plan: str = "p") -> Edge:
    return Edge(f"build:{plan}:start")


def _two_levels(world: StoreWorld) -> list[NewJob]:
    return [
        plan_job(world, "a", after=[_start()]),
        plan_job(world, "b", after=[_start()]),
        plan_job(world, "c", level=1, after=[Edge("build:p:a")]),
        plan_job(
            world, "end", level=None, task="dataset:@step#root", after=[finished("build:p:c")]
        ),
    ]


def test_a_plan_is_kept_as_a_draft(store_world: StoreWorld) -> None:
    take_locks(store_world)
    now = store_world.clock.now_micros

    row = draft(store_world)

    kept = store_world.store.plan("p").result()
    assert kept == msgspec.structs.replace(row, created_at=now)
    assert not store_world.store.add_plan(msgspec.structs.replace(row, app="other")).result()
    assert store_world.store.plan("p").result() == kept
    assert store_world.store.plan("q").result() is None


def test_open_plans_are_found_by_digest_the_newest_first(store_world: StoreWorld) -> None:
    store = store_world.store
    running(store_world, "p1", "p2", "p3")
    draft(store_world, "p4", digest="other")
    store.abandon_plan("p2").result()

    assert [plan.id for plan in store.open_plans("d").result()] == ["p3", "p1"]
    assert [plan.id for plan in store.open_plans().result()] == ["p4", "p3", "p1"]
    assert store.open_plans("unknown").result() == []


def test_no_job_of_a_draft_may_run(store_world: StoreWorld) -> None:
    take_locks(store_world)
    draft(store_world)
    submit(store_world, *_two_levels(store_world))

    assert store_world.take_all(builder(store_world)) == {}


def test_a_plan_that_begins_lets_its_first_jobs_go(store_world: StoreWorld) -> None:
    take_locks(store_world)
    draft(store_world)
    submit(store_world, *_two_levels(store_world))
    store_world.clock.advance(1.0)
    now = store_world.clock.now_micros

    begun = store_world.store.begin_plan("p", "run-1").result()
    store_world.settle()

    plan = store_world.store.plan("p").result()
    assert begun
    assert plan is not None
    assert (plan.state, plan.begun_at, plan.ended_at) == (PlanState.RUNNING, now, None)
    start = store_world.view("build:p:start")
    assert (start.state, start.finished_at, start.worker) == (JobState.DONE, now, None)
    assert store_world.history("build:p:start") == []
    assert sorted(store_world.take_all(builder(store_world))) == ["build:p:a", "build:p:b"]


def test_only_a_draft_of_the_same_run_begins(store_world: StoreWorld) -> None:
    store = store_world.store
    running(store_world)
    draft(store_world, "q")
    submit(store_world, plan="q")

    assert not store.begin_plan("p", "run-1").result()
    assert not store.begin_plan("q", "run-2").result()
    assert not store.begin_plan("unknown", "run-1").result()
    assert state_of(store_world, "q") is PlanState.DRAFT
    assert store_world.state("build:q:start") is JobState.QUEUED


def test_a_plan_without_a_start_job_begins_as_well(store_world: StoreWorld) -> None:
    take_locks(store_world)
    draft(store_world)
    store_world.add(store_world.job("build:p:start"))  # of another task: none of ours

    assert store_world.store.begin_plan("p", "run-1").result()
    assert store_world.state("build:p:start") is JobState.QUEUED


def test_very_many_first_jobs_are_let_go(store_world: StoreWorld) -> None:
    take_locks(store_world)
    draft(store_world)
    many = CHORE_SLICE + 200
    submit(store_world, *(plan_job(store_world, f"{n}", after=[_start()]) for n in range(many)))

    store_world.store.begin_plan("p", "run-1").result()
    store_world.settle()

    (level,) = store_world.store.plan_states("p").result()
    assert level.states == {"queued": many}


def test_a_plan_that_was_left_is_adopted(store_world: StoreWorld) -> None:
    store = store_world.store
    running(store_world)
    running_one = store.adopt_plan("p", "run-2").result()
    take_locks(store_world, "lock of p", run="run-2", gone=["mark of run-1"])

    adopted = store.adopt_plan("p", "run-2").result()

    plan = store.plan("p").result()
    assert (running_one, adopted) == (False, True)
    assert plan is not None
    assert (plan.state, plan.run_id) == (PlanState.RUNNING, "run-2")
    assert write(store_world, stage(1)) is Verdict.ACCEPTED
    assert not store.adopt_plan("unknown", "run-2").result()


def test_a_draft_that_was_left_neither_begins_nor_is_adopted(store_world: StoreWorld) -> None:
    store = store_world.store
    take_locks(store_world)
    draft(store_world)
    take_locks(store_world, run="run-2", gone=["mark of run-1"])

    assert not store.begin_plan("p", "run-1").result()
    assert not store.adopt_plan("p", "run-2").result()
    assert state_of(store_world) is PlanState.LEFT


def test_the_end_of_a_plan_frees_the_locks_of_its_run(store_world: StoreWorld) -> None:
    store = store_world.store
    running(store_world)
    running(store_world, "other", run="run-2")
    take_locks(store_world, "more")
    store_world.clock.advance(1.0)
    now = store_world.clock.now_micros

    store.end_plan("p").result()

    plan = store.plan("p").result()
    assert plan is not None
    assert (plan.state, plan.ended_at) == (PlanState.ENDED, now)
    assert [lock.name for lock in store.locks().result()] == ["lock of other"]
    store_world.clock.advance(1.0)
    store.end_plan("p").result()
    assert store.plan("p").result() == plan


def test_locks_stay_while_their_run_has_another_plan(store_world: StoreWorld) -> None:
    running(store_world, "p", "q")

    store_world.store.end_plan("p").result()

    assert len(store_world.store.locks().result()) == 2
    assert state_of(store_world, "q") is PlanState.RUNNING


def test_only_a_running_plan_ends(store_world: StoreWorld) -> None:
    running(store_world)
    take_locks(store_world, "lock of p", run="run-2", gone=["mark of run-1"])

    store_world.store.end_plan("p").result()

    assert state_of(store_world) is PlanState.LEFT
    assert len(store_world.store.locks().result()) == 1


def test_an_abandoned_plan_stays_so_and_its_run_keeps_its_locks(store_world: StoreWorld) -> None:
    store = store_world.store
    running(store_world)

    store.abandon_plan("p").result()

    assert state_of(store_world) is PlanState.ABANDONED
    assert not store.adopt_plan("p", "run-1").result()
    assert not store.begin_plan("p", "run-1").result()
    store.end_plan("p").result()
    assert state_of(store_world) is PlanState.ABANDONED
    assert len(store.locks().result()) == 1
    running(store_world, "q")
    store.end_plan("q").result()
    store.abandon_plan("q").result()
    assert state_of(store_world, "q") is PlanState.ENDED


def test_open_jobs_of_a_plan_are_cancelled(store_world: StoreWorld) -> None:
    running(store_world, "p", "q")
    submit(store_world, *_two_levels(store_world))
    store_world.add(
        plan_job(store_world, "free", task="work"),
        plan_job(store_world, "a", plan="q"),
        plan_job(store_world, "held", task="work"),
        "stranger",
    )
    worker = builder(store_world)
    jobs = store_world.take_all(worker)
    store_world.ack(worker, jobs["build:p:free"])

    progress = store_world.store.cancel_plan("p").result()
    store_world.settle()

    assert (progress.count, progress.more) == (6, False)
    cancelled = [f"build:p:{name}" for name in ("start", "a", "b", "c", "end", "held")]
    assert set(store_world.states(*cancelled)) == {JobState.CANCELLED}
    assert store_world.state("build:p:free") is JobState.DONE
    assert store_world.state("build:q:a") is JobState.IN_PROGRESS
    assert store_world.outcomes("build:p:held") == ["cancelled"]
    assert store_world.ack(worker, jobs["build:p:held"]) is Verdict.STALE
    assert store_world.store.cancel_plan("p").result().count == 0


def test_a_large_plan_is_cancelled_in_slices(store_world: StoreWorld) -> None:
    running(store_world)
    many = CHORE_SLICE + 100
    chain = [plan_job(store_world, "0")]
    chain += [
        plan_job(store_world, f"{n}", after=[Edge(f"build:p:{n - 1}")]) for n in range(1, many)
    ]
    store_world.add(*chain)

    first = store_world.store.cancel_plan("p").result()
    second = store_world.store.cancel_plan("p").result()

    assert (first.count, first.more) == (CHORE_SLICE, True)
    assert (second.count, second.more) == (100, False)
    (level,) = store_world.store.plan_states("p").result()
    assert level.states == {"cancelled": many}


def test_states_are_counted_by_level_without_steps(store_world: StoreWorld) -> None:
    running(store_world)
    store_world.add(
        plan_job(store_world, "a"),
        plan_job(store_world, "b"),
        plan_job(store_world, "c", level=1, after=[Edge("build:p:a")]),
        plan_job(store_world, "d", level=1, after=[Edge("build:p:b")]),
        plan_job(store_world, "end", level=None, after=[finished("build:p:c")]),
        plan_job(store_world, "a", plan="other"),
    )
    run_ends(store_world, builder(store_world), a=JobState.ERROR, b=JobState.DONE)
    write(store_world, CommitLevel("p", 0))

    first, second = store_world.store.plan_states("p").result()

    assert (first.level, first.states, first.committed) == (0, {"done": 1, "error": 1}, True)
    assert (second.level, second.states) == (1, {"queued": 1, "skipped": 1})
    assert not second.committed
    assert store_world.store.plan_states("unknown").result() == []


def test_jobs_of_a_plan_are_found_by_state(store_world: StoreWorld) -> None:
    running(store_world)
    store_world.add(
        plan_job(store_world, "a"),
        plan_job(store_world, "b"),
        plan_job(store_world, "c", level=1, after=[Edge("build:p:a")]),
        plan_job(store_world, "d", level=1, after=[Edge("build:p:b")]),
        plan_job(store_world, "x", plan="other"),
    )
    worker = builder(store_world)
    run_ends(store_world, worker, a=JobState.ERROR, b=JobState.DONE)
    store_world.cancel("build:other:x")

    def keys(*states: JobState, after: JobId = FIRST, limit: int = 9) -> list[str]:
        found = store_world.store.plan_jobs("p", states, after, limit).result()
        return [job.key.removeprefix("build:p:") for job in found]

    assert keys(*UNHAPPY) == ["a", "c"]
    assert keys(*UNHAPPY, limit=1) == ["a"]
    assert keys(*UNHAPPY, after=store_world.view("build:p:a").id) == ["c"]
    assert keys(JobState.SKIPPED) == ["c"]
    assert keys(JobState.QUEUED, JobState.WAITING) == ["d"]
    assert keys(JobState.DONE, JobState.ERROR) == ["a", "b"]
    assert keys(*JobState) == ["a", "b", "c", "d"]
    assert keys() == []
    (skipped,) = store_world.store.plan_jobs("p", [JobState.SKIPPED], FIRST, 9).result()
    assert skipped.last_error is not None
    assert skipped.last_error.message == "upstream failed: build:p:a"


def test_a_retry_leaves_jobs_of_plans_alone(store_world: StoreWorld) -> None:
    running(store_world)
    store_world.add(plan_job(store_world, "a", task="work"), "b")
    worker = builder(store_world)
    for job in store_world.take_all(worker).values():
        store_world.ack(worker, job, JobState.ERROR)

    would = store_world.store.would_retry(None, None).result()
    store_world.retry_failed()

    assert would.failed == 1
    assert store_world.states("build:p:a", "b") == [JobState.ERROR, JobState.QUEUED]


def test_a_purge_keeps_jobs_of_open_plans(store_world: StoreWorld) -> None:
    running(store_world)
    store_world.add(plan_job(store_world, "a", task="work"), "b")
    worker = builder(store_world)
    for job in store_world.take_all(worker).values():
        store_world.ack(worker, job)
    store_world.clock.advance(1.0)
    now = store_world.clock.now_micros

    would = store_world.store.would_purge(now).result()
    kept = store_world.purge(now)
    store_world.store.end_plan("p").result()
    then = store_world.purge(now)

    assert (would, kept, then) == (1, 1, 1)
    assert store_world.store.job("build:p:a").result() is None


def test_a_purge_keeps_a_job_of_an_open_plan_that_very_many_waited_for(
    store_world: StoreWorld,
) -> None:
    running(store_world)
    store_world.add(
        plan_job(store_world, "root", task="work"),
        *(plan_job(store_world, f"{n}", after=[Edge("build:p:root")]) for n in range(600)),
    )
    worker = builder(store_world)
    store_world.ack(worker, store_world.take_one(worker), JobState.ERROR)
    store_world.settle()
    store_world.clock.advance(1.0)
    now = store_world.clock.now_micros

    assert store_world.purge(now) == 0
    assert store_world.state("build:p:root") is JobState.ERROR
    store_world.store.abandon_plan("p").result()
    assert store_world.purge(now) == 601


def test_a_purge_forgets_old_plans_that_nothing_is_left_of(store_world: StoreWorld) -> None:
    store = store_world.store
    running(store_world, "old", "staged", "busy", "open")
    write(store_world, stage(1, plan="old"), CommitLevel("old", 0))
    write(store_world, stage(2, plan="staged"))
    store_world.add(plan_job(store_world, "a", plan="busy"))
    for plan in ("old", "staged", "busy"):
        store.abandon_plan(plan).result()
    running(store_world, "young", run="run-2")
    store_world.clock.advance(1.0)
    now = store_world.clock.now_micros
    store_world.clock.advance(1.0)
    store.end_plan("young").result()

    def left() -> list[str]:
        names = ("old", "staged", "busy", "open", "young")
        return [name for name in names if store.plan(name).result() is not None]

    store_world.purge(now)
    before = left()
    tidy(store_world)
    store_world.purge(now)

    assert before == ["old", "staged", "busy", "open", "young"]
    assert left() == ["busy", "open", "young"]
    assert [row.at for row in store.manifests("prices", 0, 9, 9).result().rows] == [1]
