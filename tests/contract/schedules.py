# SPDX-License-Identifier: Apache-2.0
"""How are units of schedules armed, ticked and retired?"""

from __future__ import annotations

from penstock.errors import EnqueueRefused
from penstock.model.job import Edge, JobKind, JobState, finished
from penstock.model.lease import SetCursor, Verdict
from penstock.model.schedule import ARM_UNITS_MAX, ArmReport
from tests.contract.unit_words import (
    APP,
    POLL,
    SECOND,
    arm,
    armed_and_leased,
    seen,
    tick,
    ticker,
    unit,
)
from tests.contract.world import StoreWorld, refusal

# New units


def test_a_new_unit_is_a_job_that_is_due_at_its_first_time(store_world: StoreWorld) -> None:
    plan = unit(store_world, "a", first=5, payload='{"repo":"a"}', limit_keys=["host:x"])

    assert arm(store_world, plan) == ArmReport(new=1)

    view = seen(store_world)
    assert (view.key, view.app, view.task, view.partition) == (plan.key, APP, POLL, "a")
    assert (view.timing, view.state) == ("every 10 s", JobState.QUEUED)
    assert view.due_at == view.available_at == plan.first_at
    assert (view.ticks, view.missed, view.failed, view.attempts) == (0, 0, 0, 0)
    assert (view.last_tick_at, view.retired_at, view.last_error) == (None, None, None)
    job = store_world.view(plan.key)
    assert (job.task, job.group, job.partition) == (POLL, "a", "a")
    assert job.kind is JobKind.TICK
    assert (job.payload, job.limit_keys) == ('{"repo":"a"}', ("host:x",))
    assert store_world.store.stats().result().next_due_at == plan.first_at


def test_a_unit_that_is_due_is_leased_by_who_knows_its_task(store_world: StoreWorld) -> None:
    arm(store_world, unit(store_world, "a"), unit(store_world, None, task="schedule:sum"))

    assert store_world.take(store_world.new_worker()) == {}
    taken = store_world.take(ticker(store_world, POLL, "schedule:sum"))

    assert set(taken) == {"schedule:poll:a", "schedule:sum"}
    assert taken["schedule:sum"].group == "schedule:sum"
    assert taken["schedule:sum"].partition is None


def test_a_unit_is_not_leased_before_its_time(store_world: StoreWorld) -> None:
    plan = unit(store_world, first=5)
    arm(store_world, plan)
    worker = ticker(store_world)

    batch = store_world.lease(worker)
    assert (batch.jobs, batch.next_due_at) == ([], plan.first_at)

    store_world.clock.advance(5)
    assert store_world.take_one(worker).due_at == plan.first_at


def test_arming_no_units_changes_nothing(store_world: StoreWorld) -> None:
    assert arm(store_world) == ArmReport()
    assert store_world.store.retire_units([]).result() == 0
    assert store_world.store.units(None, "", 10).result() == []
    assert store_world.store.unit("schedule:x").result() is None


def test_of_two_plans_for_one_key_the_first_counts(store_world: StoreWorld) -> None:
    first, second = unit(store_world, payload="1"), unit(store_world, payload="2", timing="x")

    assert arm(store_world, first, second) == ArmReport(new=1)

    assert seen(store_world).timing == "every 10 s"
    assert store_world.view("schedule:poll:a").payload == "1"


def test_too_many_units_are_refused(store_world: StoreWorld) -> None:
    plans = [unit(store_world, f"{n:04}") for n in range(ARM_UNITS_MAX + 1)]

    refusal(store_world.store.arm(APP, plans), EnqueueRefused)
    refusal(store_world.store.retire_units([plan.key for plan in plans]), EnqueueRefused)
    assert store_world.store.units(None, "", 10).result() == []

    assert arm(store_world, *plans[:-1]) == ArmReport(new=ARM_UNITS_MAX)
    assert arm(store_world, *plans[:-1]) == ArmReport(kept=ARM_UNITS_MAX)


def test_a_key_of_an_ordinary_job_cannot_be_armed(store_world: StoreWorld) -> None:
    store_world.add("schedule:poll:b")

    plans = [unit(store_world, "a"), unit(store_world, "b")]
    error = refusal(store_world.store.arm(APP, plans), EnqueueRefused)

    assert "schedule:poll:b" in str(error)
    assert store_world.store.unit("schedule:poll:a").result() is None
    assert store_world.store.unit("schedule:poll:b").result() is None
    assert store_world.store.retire_units(["schedule:poll:b"]).result() == 0
    assert store_world.state("schedule:poll:b") is JobState.QUEUED


def test_no_job_can_wait_for_a_unit(store_world: StoreWorld) -> None:
    arm(store_world, unit(store_world))

    for edge in (Edge("schedule:poll:a"), finished("schedule:poll:a")):
        job = store_world.job("later", after=[edge])
        error = refusal(store_world.store.enqueue([job]), EnqueueRefused)
        assert "never ends" in str(error)


# Known units


def test_a_known_unit_stays_where_it_is(store_world: StoreWorld) -> None:
    arm(store_world, unit(store_world, first=5))
    before = seen(store_world)
    store_world.clock.advance(3)

    assert arm(store_world, unit(store_world, first=9)) == ArmReport(kept=1)

    assert seen(store_world) == before


def test_payload_partition_group_and_limit_keys_follow_the_plan(store_world: StoreWorld) -> None:
    worker = ticker(store_world)
    for first in (0, 5):  # ready, and delayed
        arm(store_world, unit(store_world, str(first), first=first, limit_keys=["host:a"]))
    changed = [
        unit(store_world, str(first), first=99, payload="[1]", group="g", limit_keys=["host:b"])
        for first in (0, 5)
    ]

    assert arm(store_world, *changed) == ArmReport(kept=2)

    store_world.clock.advance(5)
    for job in store_world.take_all(worker).values():
        assert (job.group, job.payload) == ("g", "[1]")
        assert store_world.view(job.key).limit_keys == ("host:b",)
    assert store_world.store.holders(10).result() == {"host:b": 2}
    assert set(store_world.store.stats().result().groups) == {"g"}


def test_a_unit_that_runs_follows_the_plan_with_the_next_arming(store_world: StoreWorld) -> None:
    worker, job = armed_and_leased(store_world, limit_keys=["host:a"])
    changed = unit(store_world, payload="[1]", group="g", limit_keys=["host:b"])

    assert arm(store_world, changed) == ArmReport(kept=1)
    view = store_world.view(job.key)
    assert (view.payload, view.group, view.state) == ("{}", "a", JobState.IN_PROGRESS)
    assert tick(store_world, worker, job) is Verdict.ACCEPTED
    assert store_world.store.holders(10).result() == {}

    assert arm(store_world, changed) == ArmReport(kept=1)
    view = store_world.view(job.key)
    assert (view.payload, view.group, view.limit_keys) == ("[1]", "g", ("host:b",))
    assert seen(store_world).due_at == job.due_at + 10 * SECOND


def test_another_timing_makes_it_due_at_its_first_time(store_world: StoreWorld) -> None:
    arm(store_world, unit(store_world, "ready"), unit(store_world, "later", first=5000))
    plans = [unit(store_world, x, timing="every 2 s", first=7) for x in ("ready", "later")]

    assert arm(store_world, *plans) == ArmReport(retimed=2)

    for name in ("ready", "later"):
        view = seen(store_world, name)
        assert (view.timing, view.due_at, view.available_at) == (
            "every 2 s",
            *[plans[0].first_at] * 2,
        )
    worker = ticker(store_world)
    assert store_world.take(worker) == {}
    store_world.clock.advance(7)
    assert len(store_world.take_all(worker)) == 2


def test_another_timing_may_make_it_ready_at_once(store_world: StoreWorld) -> None:
    arm(store_world, unit(store_world, first=5000))
    worker = ticker(store_world)
    assert store_world.take(worker) == {}

    arm(store_world, unit(store_world, timing="every 2 s"))

    assert set(store_world.take(worker)) == {"schedule:poll:a"}


def test_of_a_unit_that_runs_another_timing_is_only_noted(store_world: StoreWorld) -> None:
    worker, job = armed_and_leased(store_world)

    plan = unit(store_world, timing="every 2 s", first=99)
    assert arm(store_world, plan) == ArmReport(retimed=1)
    assert arm(store_world, plan) == ArmReport(kept=1)

    view = seen(store_world)
    assert (view.timing, view.due_at, view.state) == ("every 2 s", job.due_at, JobState.IN_PROGRESS)
    assert tick(store_world, worker, job, every=2) is Verdict.ACCEPTED
    assert seen(store_world).due_at == job.due_at + 2 * SECOND


def test_a_failed_tick_waits_on_though_it_is_armed_again(store_world: StoreWorld) -> None:
    worker, job = armed_and_leased(store_world)
    store_world.fail(worker, job, delay=30)
    before = seen(store_world)

    assert arm(store_world, unit(store_world, first=1)) == ArmReport(kept=1)

    assert seen(store_world) == before
    assert before.available_at > before.due_at


def test_another_timing_forgets_failed_tries(store_world: StoreWorld) -> None:
    worker, job = armed_and_leased(store_world)
    store_world.fail(worker, job, delay=30)

    arm(store_world, unit(store_world, timing="every 2 s", first=1))

    view = seen(store_world)
    assert (view.attempts, view.last_error, view.failed) == (0, None, 1)
    assert view.available_at == view.due_at == store_world.clock.now_micros + SECOND


def test_a_suspect_keeps_its_turn(store_world: StoreWorld) -> None:
    worker, job = armed_and_leased(store_world)
    store_world.reap(worker, [job])

    plan = unit(store_world, timing="every 2 s", first=50, payload="[1]", group="g")
    assert arm(store_world, plan) == ArmReport(retimed=1)

    soloist = ticker(store_world)
    solo = store_world.take_one(soloist, quarantine=True)
    assert (solo.due_at, solo.payload, solo.group) == (job.due_at, "[1]", "g")
    assert tick(store_world, soloist, solo) is Verdict.ACCEPTED


def test_a_unit_that_ended_is_queued_again(store_world: StoreWorld) -> None:
    worker, job = armed_and_leased(store_world)
    store_world.fail(worker, job, give_up=True)
    assert seen(store_world).state is JobState.ERROR

    plan = unit(store_world, first=5, payload="[1]", group="g")
    assert arm(store_world, plan) == ArmReport(revived=1)

    view = seen(store_world)
    assert (view.state, view.due_at, view.attempts) == (JobState.QUEUED, plan.first_at, 0)
    assert (view.last_error, view.failed) == (None, 1)
    assert store_world.view(plan.key).finished_at is None
    store_world.clock.advance(5)
    again = store_world.take_one(worker)
    assert (again.payload, again.group, again.token) == ("[1]", "g", job.token + 1)
    assert store_world.outcomes(plan.key) == ["error"]


def test_whatever_its_end_a_unit_is_queued_again(store_world: StoreWorld) -> None:
    worker = ticker(store_world)
    for state in (JobState.DONE, JobState.SKIPPED, JobState.ERROR, JobState.CANCELLED):
        plan = unit(store_world, str(state))
        arm(store_world, plan)
        job = store_world.take_one(worker)
        if state is JobState.CANCELLED:
            store_world.cancel(plan.key)
            store_world.give_back(worker, [job])
        else:
            store_world.ack(worker, job, state)

        assert arm(store_world, plan) == ArmReport(revived=1)

        store_world.clock.advance(0.001)
        again = store_world.take_one(worker)
        assert (again.due_at > job.due_at) is (state is JobState.DONE)
        assert tick(store_world, worker, again) is Verdict.ACCEPTED


def test_a_unit_goes_to_the_app_that_arms_it(store_world: StoreWorld) -> None:
    arm(store_world, unit(store_world))

    assert arm(store_world, unit(store_world), app="other") == ArmReport(kept=1)

    assert seen(store_world).app == "other"
    assert store_world.store.units(APP, "", 10).result() == []


# Reading


def test_units_are_read_by_app_and_key_in_pages(store_world: StoreWorld) -> None:
    arm(store_world, *[unit(store_world, x) for x in ("b", "a", "ä", "B", "c/d")])
    arm(store_world, unit(store_world, "z"), app="other")
    store = store_world.store

    first = store.units(APP, "", 2).result()
    rest = store.units(APP, first[-1].key, 10).result()

    names = [view.key.removeprefix("schedule:poll:") for view in (*first, *rest)]
    assert names == ["B", "a", "b", "c/d", "ä"]
    assert len(first) == 2
    assert len(store.units(None, "", 10).result()) == 6
    assert store.units("nobody", "", 10).result() == []


def test_cursors_are_read_many_at_once(store_world: StoreWorld) -> None:
    worker, job = armed_and_leased(store_world)
    tick(store_world, worker, job, effects=[SetCursor("a", "[1]"), SetCursor('"é', "null")])

    assert store_world.store.cursors([]).result() == {}
    names = ["a", '"é', "b", "a"]
    assert store_world.store.cursors(names).result() == {"a": "[1]", '"é': "null"}


def test_units_are_counted_apart_from_jobs(store_world: StoreWorld) -> None:
    worker, _ = armed_and_leased(store_world)
    arm(store_world, unit(store_world, "b", first=5))
    store_world.add(store_world.job("late", delay=7.0))

    stats = store_world.store.stats().result()
    left = store_world.store.outlook(worker, "run-1").result()

    counts = {JobState.QUEUED: 1, JobState.IN_PROGRESS: 1}
    assert stats.schedules == {POLL: counts}
    assert stats.units == 2
    assert stats.tasks == {"work": {JobState.QUEUED: 1}}
    assert stats.states == dict.fromkeys(JobState, 0) | {JobState.QUEUED: 1}
    assert stats.delayed == 1
    assert left.open_by_task[POLL] == counts
    assert left.ended_in_run == {}
