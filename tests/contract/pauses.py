# SPDX-License-Identifier: Apache-2.0
"""How does an operator pause schedules, and units of them?"""

from __future__ import annotations

from penstock.model.job import JobId, JobState
from penstock.model.lease import SetCursor, Verdict
from penstock.model.schedule import ArmReport
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
from tests.contract.world import StoreWorld

A = "schedule:poll:a"
NO_JOB = JobId(0)


def _pause(world: StoreWorld, name: str) -> bool:
    return world.store.pause_units(name).result()


def _resume(world: StoreWorld, name: str) -> bool:
    return world.store.resume_units(name).result()


def test_a_paused_unit_does_not_tick_and_others_do(store_world: StoreWorld) -> None:
    arm(store_world, unit(store_world, "a"), unit(store_world, "a:b"), unit(store_world, "b"))

    assert _pause(store_world, A)
    assert not _pause(store_world, A)

    worker = ticker(store_world)
    assert set(store_world.take(worker)) == {"schedule:poll:a:b", "schedule:poll:b"}
    store_world.clock.advance(100)
    assert store_world.take(worker) == {}
    view = seen(store_world)
    assert (view.state, view.paused_by) == (JobState.WAITING, A)
    assert view.paused_at == store_world.clock.now_micros - 100 * SECOND
    assert seen(store_world, "b").paused_by is None


def test_a_resumed_unit_ticks_for_the_occurrence_that_it_had_waited_for(
    store_world: StoreWorld,
) -> None:
    worker, job = armed_and_leased(store_world)
    tick(store_world, worker, job)
    _pause(store_world, A)
    store_world.clock.advance(35)  # three occurrences: at 10, 20 and 30 s
    assert store_world.take(worker) == {}

    assert _resume(store_world, A)
    assert not _resume(store_world, A)

    again = store_world.take_one(worker)
    assert again.due_at == job.due_at + 10 * SECOND
    assert tick(store_world, worker, again, missed=2) is Verdict.ACCEPTED
    view = seen(store_world)
    assert (view.ticks, view.missed, view.paused_by, view.paused_at) == (2, 2, None, None)


def test_a_unit_that_is_resumed_before_it_is_due_waits_on(store_world: StoreWorld) -> None:
    plan = unit(store_world, first=5)
    arm(store_world, plan)
    _pause(store_world, A)
    worker = ticker(store_world)
    assert store_world.take(worker) == {}

    _resume(store_world, A)

    assert store_world.lease(worker).next_due_at == plan.first_at
    store_world.clock.advance(5)
    assert store_world.take_one(worker).due_at == plan.first_at


def test_a_failed_tick_that_is_paused_and_resumed_keeps_its_tries(store_world: StoreWorld) -> None:
    worker, job = armed_and_leased(store_world)
    store_world.fail(worker, job, delay=60)
    assert seen(store_world).is_failing
    _pause(store_world, A)
    assert not seen(store_world).is_failing
    store_world.clock.advance(30)
    _resume(store_world, A)

    assert store_world.take(worker) == {}
    store_world.clock.advance(30)
    again = store_world.take_one(worker)
    assert (again.attempts, again.due_at) == (1, job.due_at)


def test_a_paused_schedule_holds_all_its_units_and_those_to_come(store_world: StoreWorld) -> None:
    arm(store_world, unit(store_world, "a"), unit(store_world, None, task="schedule:poller"))
    _pause(store_world, POLL)

    assert arm(store_world, unit(store_world, "b")) == ArmReport(new=1)

    worker = ticker(store_world, POLL, "schedule:poller")
    assert set(store_world.take(worker)) == {"schedule:poller"}
    views = store_world.store.units(None, "", 10).result()
    assert [view.paused_by for view in views] == [POLL, POLL, None]
    _resume(store_world, POLL)
    assert set(store_world.take(worker)) == {A, "schedule:poll:b"}


def test_a_unit_that_is_paused_twice_is_resumed_twice(store_world: StoreWorld) -> None:
    arm(store_world, unit(store_world, "a"), unit(store_world, "b"))
    _pause(store_world, A)
    _pause(store_world, POLL)
    worker = ticker(store_world)
    assert store_world.take(worker) == {}
    assert seen(store_world).paused_by == POLL

    _resume(store_world, POLL)

    assert set(store_world.take(worker)) == {"schedule:poll:b"}
    assert seen(store_world).paused_by == A
    _resume(store_world, A)
    assert set(store_world.take(worker)) == {A}


def test_a_tick_that_is_leased_goes_on_and_the_next_waits(store_world: StoreWorld) -> None:
    worker, job = armed_and_leased(store_world)
    _pause(store_world, A)

    assert tick(store_world, worker, job, effects=[SetCursor(A, "5")]) is Verdict.ACCEPTED

    assert (seen(store_world).ticks, seen(store_world).state) == (1, JobState.QUEUED)
    store_world.clock.advance(10)
    assert store_world.take(worker) == {}
    assert seen(store_world).state is JobState.WAITING


def test_a_paused_unit_gives_its_limit_keys_and_its_place_to_others(
    store_world: StoreWorld,
) -> None:
    plans = [unit(store_world, name, group="g", limit_keys=["host:x"]) for name in "ab"]
    arm(store_world, *plans)
    store_world.store.set_cap("host:x", 1).result()
    _pause(store_world, A)
    worker = ticker(store_world)

    taken = set(store_world.take(worker)) | set(store_world.take(worker))

    assert taken == {"schedule:poll:b"}
    assert store_world.store.holders(10).result() == {"host:x": 1}


def test_a_suspect_that_is_paused_waits_and_is_tried_again_when_it_is_resumed(
    store_world: StoreWorld,
) -> None:
    worker, job = armed_and_leased(store_world)
    _pause(store_world, A)
    store_world.reap(worker, [job])
    worker = ticker(store_world)

    assert store_world.lease(worker, quarantine=True).jobs == []

    batch = store_world.lease(worker)
    assert (batch.jobs, batch.suspects) == ([], 0)
    _resume(store_world, A)
    assert store_world.take_one(worker).crashes == job.crashes


def test_a_pause_outlives_arming_retiring_and_purging(store_world: StoreWorld) -> None:
    worker, job = armed_and_leased(store_world)
    tick(store_world, worker, job)
    _pause(store_world, A)
    store_world.clock.advance(10)
    assert store_world.take(worker) == {}

    assert arm(store_world, unit(store_world)) == ArmReport(kept=1)
    assert arm(store_world, unit(store_world, timing="every 20 s")) == ArmReport(retimed=1)
    assert store_world.take(worker) == {}
    store_world.store.retire_units([A]).result()
    assert arm(store_world, unit(store_world)) == ArmReport(revived=1)
    assert store_world.take(worker) == {}
    store_world.store.retire_units([A]).result()
    store_world.clock.advance(1)
    assert store_world.purge(store_world.clock.now_micros) == 1
    assert arm(store_world, unit(store_world)) == ArmReport(new=1)
    assert store_world.take(worker) == {}

    assert _resume(store_world, A)
    assert set(store_world.take(worker)) == {A}


def test_a_paused_unit_can_be_cancelled(store_world: StoreWorld) -> None:
    arm(store_world, unit(store_world))
    _pause(store_world, A)
    worker = ticker(store_world)
    assert store_world.take(worker) == {}

    assert store_world.cancel(A) == {A}

    assert seen(store_world).state is JobState.CANCELLED


def test_a_pause_is_of_one_app_and_goes_with_its_name(store_world: StoreWorld) -> None:
    store = store_world.store
    for app in ("one", "two"):
        store.sign_on(app, None, NO_JOB).result()
        arm(store_world, unit(store_world), app=app)
    _pause(store_world, A)  # of two
    names = {view.app: view.paused_by for view in store.units(None, "", 10).result()}
    assert names == {"one": None, "two": A}

    store.rename_app("two", "three", NO_JOB).result()
    store.look_as("three").result()
    arm(store_world, unit(store_world), app="three")

    names = {view.app: view.paused_by for view in store.units(None, "", 10).result()}
    assert names == {"one": None, "three": A}


def test_pauses_move_to_the_app_that_another_becomes(store_world: StoreWorld) -> None:
    store = store_world.store
    store.sign_on("one", None, NO_JOB).result()
    store.sign_on(APP, None, NO_JOB).result()
    arm(store_world, unit(store_world))
    _pause(store_world, A)

    after, more = NO_JOB, True
    while more:
        moved = store.rename_app(APP, "one", after).result()
        after, more = moved.last, moved.more

    store.look_as("one").result()
    view = seen(store_world)
    assert (view.app, view.paused_by) == ("one", A)


def test_what_is_paused_is_told_by_name(store_world: StoreWorld) -> None:
    arm(store_world, unit(store_world))
    assert store_world.store.stats().result().paused_schedules == ()

    _pause(store_world, POLL)
    _pause(store_world, A)
    assert store_world.store.stats().result().paused_schedules == (POLL, A)

    worker = ticker(store_world)
    assert store_world.take(worker) == {}
    stats = store_world.store.stats().result()
    assert (stats.schedules, stats.units) == ({POLL: {JobState.WAITING: 1}}, 1)
    _resume(store_world, POLL)
    assert store_world.store.stats().result().paused_schedules == (A,)


def test_what_is_paused_is_nothing_to_wait_for(store_world: StoreWorld) -> None:
    arm(store_world, unit(store_world))
    _pause(store_world, A)
    worker = ticker(store_world)
    store_world.lease(worker)

    batch = store_world.lease(worker)

    assert (batch.jobs, batch.more, batch.next_due_at) == ([], False, None)
