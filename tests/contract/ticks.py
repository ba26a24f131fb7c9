# SPDX-License-Identifier: Apache-2.0
"""How do ticks of units end, and when does a unit tick no more?"""

from __future__ import annotations

from penstock.errors import EnqueueRefused
from penstock.model.job import Edge, JobState
from penstock.model.lease import EnqueueJobs, Rearm, SetCursor, Verdict
from penstock.model.schedule import FAILED_TICKS_KEPT, ArmReport
from tests.contract.unit_words import (
    POLL,
    SECOND,
    arm,
    armed_and_leased,
    seen,
    tick,
    ticker,
    unit,
)
from tests.contract.world import StoreWorld, ref, refusal

# Ticks


def test_a_tick_rearms_its_unit_and_is_counted(store_world: StoreWorld) -> None:
    worker, job = armed_and_leased(store_world)
    store_world.clock.advance(1)

    assert tick(store_world, worker, job, missed=3) is Verdict.ACCEPTED

    view = seen(store_world)
    assert (view.ticks, view.missed, view.failed) == (1, 3, 0)
    assert view.last_tick_at == store_world.clock.now_micros
    assert view.due_at == view.available_at == job.due_at + 10 * SECOND
    assert (view.state, store_world.history(job.key)) == (JobState.QUEUED, [])
    store_world.clock.advance(9)
    assert tick(store_world, worker, store_world.take_one(worker), missed=2) is Verdict.ACCEPTED
    assert (seen(store_world).ticks, seen(store_world).missed) == (2, 5)


def test_a_tick_twice_is_counted_once(store_world: StoreWorld) -> None:
    worker, job = armed_and_leased(store_world)
    end = store_world.end(job, effects=[Rearm(job.due_at + SECOND, 1), SetCursor("c", "1")])

    first, second = store_world.store.ack(worker, [end, end]).result()
    (third,) = store_world.store.ack(worker, [end]).result()

    assert (first, second, third) == (Verdict.ACCEPTED, Verdict.DUPLICATE, Verdict.DUPLICATE)
    assert (seen(store_world).ticks, seen(store_world).missed) == (1, 1)


def test_cursor_jobs_and_rearming_are_one(store_world: StoreWorld) -> None:
    worker, job = armed_and_leased(store_world)
    bad = EnqueueJobs((store_world.job("new"), store_world.job("b", after=[Edge("nobody")])))

    end = store_world.end(job, effects=[SetCursor(job.key, "7"), bad, Rearm(job.due_at + 1)])
    refusal(store_world.store.ack(worker, [end]), EnqueueRefused)

    assert store_world.store.cursors([job.key]).result() == {}
    assert store_world.store.job("new").result() is None
    assert (seen(store_world).ticks, seen(store_world).state) == (0, JobState.IN_PROGRESS)
    good = EnqueueJobs((store_world.job("new"),))
    tick(store_world, worker, job, effects=[SetCursor(job.key, "7"), good])
    assert store_world.store.cursors([job.key, "nobody"]).result() == {job.key: "7"}
    assert store_world.state("new") is JobState.QUEUED
    assert seen(store_world).ticks == 1


def test_a_stale_tick_changes_nothing(store_world: StoreWorld) -> None:
    arm(store_world, unit(store_world))
    worker = store_world.new_worker((POLL,))
    job = store_world.take_one(worker)
    store_world.expire()

    assert tick(store_world, worker, job, effects=[SetCursor("c", "1")]) is Verdict.STALE

    assert seen(store_world).ticks == 0
    assert store_world.store.cursor("c").result() is None
    other = ticker(store_world)
    again = store_world.take_one(other)
    assert (again.due_at, again.token) == (job.due_at, job.token + 1)
    assert tick(store_world, other, again) is Verdict.ACCEPTED


def test_a_failed_tick_is_tried_again_as_the_same_occurrence(store_world: StoreWorld) -> None:
    worker, job = armed_and_leased(store_world)

    store_world.fail(worker, job, delay=30)
    store_world.clock.advance(30)
    again = store_world.take_one(worker)
    store_world.fail(worker, again, delay=30, charge=False)

    view = seen(store_world)
    assert again.due_at == view.due_at == job.due_at
    assert view.available_at == store_world.clock.now_micros + 30 * SECOND
    assert (view.failed, view.attempts, view.ticks) == (2, 1, 0)
    assert view.deferred_since is not None
    assert view.last_error is not None
    store_world.clock.advance(30)
    tick(store_world, worker, store_world.take_one(worker), every=100, missed=5)
    view = seen(store_world)
    assert (view.failed, view.attempts, view.ticks, view.missed) == (2, 0, 1, 5)
    assert (view.deferred_since, view.last_error) == (None, None)


def test_the_newest_failures_of_a_unit_are_kept(store_world: StoreWorld) -> None:
    worker, job = armed_and_leased(store_world)
    store_world.add("plain")
    plain = store_world.new_worker(ttl=100_000)
    for _ in range(FAILED_TICKS_KEPT + 5):
        store_world.fail(worker, job, max_attempts=10**6)
        job = store_world.take_one(worker)
        store_world.fail(plain, store_world.take_one(plain), max_attempts=10**6)

    tokens = [attempt.token for attempt in store_world.history(job.key)]

    assert tokens == list(range(6, FAILED_TICKS_KEPT + 6))
    assert seen(store_world).failed == FAILED_TICKS_KEPT + 5
    assert len(store_world.history("plain")) == FAILED_TICKS_KEPT + 5


def test_history_is_bounded_whoever_writes_it(store_world: StoreWorld) -> None:
    arm(store_world, unit(store_world))
    for _ in range(FAILED_TICKS_KEPT + 2):
        worker = ticker(store_world)
        job = store_world.take_one(worker)
        store_world.store.revoke(ref(job), "no").result()
        job = store_world.take_one(worker)
        store_world.store.void_leases(0).result()

    assert len(store_world.history(job.key)) == FAILED_TICKS_KEPT
    assert seen(store_world).failed == 0


def test_a_unit_never_ticks_twice_at_one_time(store_world: StoreWorld) -> None:
    worker, job = armed_and_leased(store_world)
    tick(store_world, worker, job, every=0.000_001)

    for timing in ("every 2 s", "every 3 s"):
        plan = unit(store_world, timing=timing, first=-5)
        arm(store_world, plan)
        assert seen(store_world).due_at == job.due_at + 1

    store_world.cancel(job.key)
    assert arm(store_world, unit(store_world, first=-5)) == ArmReport(revived=1)
    assert seen(store_world).due_at == job.due_at + 1


# Clocks that are set back

DAY = 86_400.0  # seconds


def test_an_interval_goes_on_after_the_clock_was_set_back_in_a_tick(
    store_world: StoreWorld,
) -> None:
    worker, job = armed_and_leased(store_world)
    store_world.clock.jump(-DAY)

    assert tick(store_world, worker, job, period=10) is Verdict.ACCEPTED

    view = seen(store_world)
    assert view.due_at == job.due_at + 1  # no occurrence comes twice
    assert view.available_at == store_world.clock.now_micros + 10 * SECOND
    store_world.clock.advance(10)
    again = store_world.take_one(worker)
    assert tick(store_world, worker, again, period=10) is Verdict.ACCEPTED
    assert seen(store_world).available_at == store_world.clock.now_micros + 10 * SECOND


def test_an_interval_goes_by_the_clock_of_the_store_if_a_worker_is_ahead(
    store_world: StoreWorld,
) -> None:
    worker, job = armed_and_leased(store_world)

    assert tick(store_world, worker, job, every=DAY, period=10) is Verdict.ACCEPTED

    view = seen(store_world)
    assert view.due_at == view.available_at == store_world.clock.now_micros + 10 * SECOND


def test_an_interval_that_waits_goes_on_after_the_clock_was_set_back(
    store_world: StoreWorld,
) -> None:
    worker, job = armed_and_leased(store_world)
    tick(store_world, worker, job, period=10)
    store_world.clock.jump(-DAY)

    assert arm(store_world, unit(store_world, period=10)) == ArmReport(kept=1)

    view = seen(store_world)
    assert view.due_at == job.due_at + 10 * SECOND
    assert view.available_at == store_world.clock.now_micros + 10 * SECOND
    assert arm(store_world, unit(store_world, period=10)) == ArmReport(kept=1)
    assert seen(store_world) == view
    store_world.clock.advance(10)
    assert store_world.take_one(worker).due_at == view.due_at


def test_a_failed_try_of_an_interval_does_not_wait_for_a_clock_that_was_set_back(
    store_world: StoreWorld,
) -> None:
    worker, job = armed_and_leased(store_world)
    store_world.fail(worker, job, delay=300)
    arm(store_world, unit(store_world, period=10))
    assert seen(store_world).available_at == store_world.clock.now_micros + 300 * SECOND

    store_world.clock.jump(-DAY)
    arm(store_world, unit(store_world, period=10))

    assert seen(store_world).available_at == store_world.clock.now_micros + 900 * SECOND


def test_cron_goes_by_the_clock_that_was_set_back(store_world: StoreWorld) -> None:
    worker, job = armed_and_leased(store_world)
    store_world.clock.jump(-DAY)
    tick(store_world, worker, job)

    arm(store_world, unit(store_world))

    assert seen(store_world).available_at == seen(store_world).due_at == job.due_at + 10 * SECOND


def test_an_interval_that_ended_begins_again_after_the_clock_was_set_back(
    store_world: StoreWorld,
) -> None:
    worker, job = armed_and_leased(store_world)
    tick(store_world, worker, job, period=10)
    store_world.cancel(job.key)
    store_world.clock.jump(-DAY)

    assert arm(store_world, unit(store_world, first=1, period=10)) == ArmReport(revived=1)

    view = seen(store_world)
    assert view.due_at == job.due_at + 1
    assert view.available_at == store_world.clock.now_micros + 10 * SECOND


def test_a_first_tick_by_a_clock_that_is_ahead_is_within_a_period(store_world: StoreWorld) -> None:
    arm(
        store_world,
        unit(store_world, first=DAY, period=10),
        unit(store_world, "b", first=14.9, period=10),
    )

    assert seen(store_world).due_at == store_world.clock.now_micros + 10 * SECOND
    assert seen(store_world, "b").due_at == store_world.clock.now_micros + round(14.9 * SECOND)


# Early ticks


def test_a_unit_that_waits_ticks_at_once_and_then_by_its_timing(store_world: StoreWorld) -> None:
    arm(store_world, unit(store_world, "a", first=500), unit(store_world, "b", first=500))
    worker = ticker(store_world)
    store_world.clock.advance(1)

    early = store_world.store.tick_units(["schedule:poll:a", "schedule:nobody"]).result()

    assert early == {"schedule:poll:a"}
    job = store_world.take_one(worker)
    assert job.key == "schedule:poll:a"
    assert job.due_at == store_world.clock.now_micros
    assert tick(store_world, worker, job) is Verdict.ACCEPTED
    assert seen(store_world, "a").due_at == job.due_at + 10 * SECOND
    assert store_world.store.check().result() == []


def test_a_failed_tick_that_waits_is_tried_at_once(store_world: StoreWorld) -> None:
    worker, job = armed_and_leased(store_world)
    store_world.fail(worker, job, delay=300, charge=True)

    assert store_world.store.tick_units([job.key]).result() == {job.key}

    again = store_world.take_one(worker)
    assert (again.due_at, again.attempts) == (job.due_at, 1)


def test_no_early_tick_overlaps_one_that_runs_or_wakes_what_is_retired(
    store_world: StoreWorld,
) -> None:
    worker, job = armed_and_leased(store_world)
    arm(store_world, unit(store_world, "b", first=500))
    store_world.store.retire_units(["schedule:poll:b"]).result()

    keys = [job.key, "schedule:poll:b"]
    assert store_world.store.tick_units(keys).result() == frozenset()

    assert store_world.take(worker) == {}
    assert store_world.store.check().result() == []


def test_a_cursor_that_is_forgotten_begins_anew(store_world: StoreWorld) -> None:
    worker, job = armed_and_leased(store_world)
    tick(store_world, worker, job, effects=[SetCursor(job.key, "5"), SetCursor("other", "6")])

    assert store_world.store.forget_cursors([job.key, "nobody"]).result() == 1

    assert store_world.store.cursors([job.key, "other"]).result() == {"other": "6"}
    assert store_world.store.forget_cursors([job.key]).result() == 0


# Retiring


def test_a_retired_unit_ticks_no_more(store_world: StoreWorld) -> None:
    arm(store_world, unit(store_world, "a"), unit(store_world, "b"), unit(store_world, "c"))
    keys = ["schedule:poll:a", "schedule:poll:b", "schedule:poll:b", "schedule:nobody"]

    assert store_world.store.retire_units(keys).result() == 2
    store_world.clock.advance(1)
    assert store_world.store.retire_units(keys).result() == 0

    view = seen(store_world)
    assert view.state is JobState.CANCELLED
    assert view.retired_at == store_world.clock.now_micros - SECOND
    assert set(store_world.take(ticker(store_world))) == {"schedule:poll:c"}


def test_retiring_a_unit_that_runs_fences_it(store_world: StoreWorld) -> None:
    worker, job = armed_and_leased(store_world, limit_keys=["host:x"])

    assert store_world.store.retire_units([job.key]).result() == 1

    assert len(store_world.store.inbox(worker).result().detached) == 1
    assert tick(store_world, worker, job, effects=[SetCursor("c", "1")]) is Verdict.STALE
    assert store_world.store.cursor("c").result() is None
    assert store_world.store.holders(10).result() == {}
    assert (seen(store_world).ticks, seen(store_world).state) == (0, JobState.CANCELLED)


def test_no_retry_puts_a_retired_unit_back(store_world: StoreWorld) -> None:
    worker, job = armed_and_leased(store_world)
    store_world.fail(worker, job, give_up=True)

    assert store_world.store.retire_units([job.key]).result() == 1

    assert seen(store_world).state is JobState.CANCELLED
    assert store_world.retry_failed() == 0
    assert store_world.outcomes(job.key) == ["error"]


def test_a_retry_puts_a_failed_unit_back_for_its_occurrence(store_world: StoreWorld) -> None:
    worker, job = armed_and_leased(store_world)
    store_world.fail(worker, job, give_up=True)

    assert store_world.retry_failed() == 1

    again = store_world.take_one(worker)
    assert again.due_at == job.due_at
    assert tick(store_world, worker, again) is Verdict.ACCEPTED


def test_a_retired_unit_comes_back_with_cursor_and_counters(store_world: StoreWorld) -> None:
    worker, job = armed_and_leased(store_world)
    tick(store_world, worker, job, missed=2, effects=[SetCursor(job.key, "5")])
    store_world.store.retire_units([job.key]).result()
    store_world.clock.advance(100)

    assert arm(store_world, unit(store_world, first=1)) == ArmReport(revived=1)

    view = seen(store_world)
    assert (view.ticks, view.missed, view.retired_at) == (1, 2, None)
    assert view.due_at == job.due_at + 10 * SECOND  # it goes on where it was
    assert store_world.store.cursors([job.key]).result() == {job.key: "5"}


def test_purge_forgets_units_that_ended_and_no_other(store_world: StoreWorld) -> None:
    worker, job = armed_and_leased(store_world, partition="a")
    tick(store_world, worker, job, effects=[SetCursor(job.key, "5")])
    arm(store_world, unit(store_world, "b"))
    store_world.store.retire_units([job.key]).result()
    store_world.clock.advance(1)

    assert store_world.purge(store_world.clock.now_micros) == 1

    assert store_world.store.unit(job.key).result() is None
    assert [view.partition for view in store_world.store.units(None, "", 10).result()] == ["b"]
    assert arm(store_world, unit(store_world, "a")) == ArmReport(new=1)
    assert (seen(store_world, "a").ticks, seen(store_world, "a").missed) == (0, 0)
    assert store_world.store.cursors([job.key]).result() == {job.key: "5"}


# Deaths


def test_a_unit_whose_worker_died_ticks_for_the_same_occurrence(store_world: StoreWorld) -> None:
    worker, job = armed_and_leased(store_world)
    store_world.reap(worker, [job])
    other = ticker(store_world)
    assert store_world.take(other) == {}

    solo = store_world.take_one(other, quarantine=True)

    assert solo.due_at == job.due_at
    assert tick(store_world, other, solo) is Verdict.ACCEPTED
    assert seen(store_world).ticks == 1


def test_a_unit_that_kills_ends_and_is_armed_again(store_world: StoreWorld) -> None:
    worker, job = armed_and_leased(store_world)
    store_world.reap(worker, [job])
    for _ in range(3):
        worker = ticker(store_world)
        store_world.reap(worker, [store_world.take_one(worker, quarantine=True)])
    assert seen(store_world).state is JobState.ERROR

    assert arm(store_world, unit(store_world)) == ArmReport(revived=1)

    worker = ticker(store_world)
    again = store_world.take_one(worker)
    assert (again.crashes, again.cell) == (0, None)
    assert tick(store_world, worker, again) is Verdict.ACCEPTED


def test_after_a_restore_units_go_on(store_world: StoreWorld) -> None:
    worker, job = armed_and_leased(store_world)

    assert store_world.store.void_leases(1000).result() == 1

    assert tick(store_world, worker, job) is Verdict.STALE
    again = store_world.take_one(ticker(store_world))
    assert again.due_at == job.due_at
    assert again.token > 1000
