# SPDX-License-Identifier: Apache-2.0
"""Is a lease believed in no longer than the store keeps it?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from penstock.errors import StoreBusy, StoreUnavailable
from penstock.model.job import WorkerId
from penstock.model.lease import WorkerInfo
from penstock.stores.sqlite.in_process import InProcessStore
from penstock.stores.store_future import Reply
from penstock.supervisor.heartbeat import LeaseHeartbeat
from penstock.testing import ManualClock
from penstock.worker.heartbeat import (
    LOST_MONOTONIC,
    RENEWED_PAST_SECONDS,
    FallbackHeartbeat,
    HeartbeatThread,
    Overrun,
    margin,
)
from penstock.worker.slot_table import SlotTable
from tests.waiting import wait_until

TTL = 30.0
BEAT = 10.0
ONE, TWO = WorkerId("w-1"), WorkerId("w-2")


class SlowStore(InProcessStore):
    """Lets time pass, or fails, when it is asked for a beat."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self._manual = clock
        self.slow_seconds = 0.0
        self.error: Exception | None = None
        self.before: Callable[[], None] = lambda: None
        self.asked: list[list[WorkerId]] = []

    def beat(
        self, worker_ids: Sequence[WorkerId], ttl_seconds: float
    ) -> Reply[frozenset[WorkerId]]:
        self.asked.append(list(worker_ids))
        self._manual.advance(self.slow_seconds)
        self.before()
        if self.error is not None:
            return Reply.failed(self.error)
        return super().beat(worker_ids, ttl_seconds)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> SlowStore:
    store = SlowStore(clock)
    for worker in (ONE, TWO):
        store.register(WorkerInfo(id=worker, run_id="r", tasks=("t",)), TTL).result()
    return store


@pytest.fixture
def table() -> Iterator[SlotTable]:
    table = SlotTable.create(2)
    yield table
    table.close()


def thread(store: SlowStore, clock: ManualClock) -> HeartbeatThread:
    beat = HeartbeatThread(store, clock, TTL, BEAT)
    beat.adopt(ONE, clock.monotonic() + TTL)
    return beat


@pytest.mark.parametrize(("ttl", "expected"), [(1.0, 0.1), (10.0, 1.0), (30.0, 2.0), (3600.0, 2.0)])
def test_the_margin_is_a_tenth_and_at_most_two_seconds(ttl: float, expected: float) -> None:
    assert margin(ttl) == pytest.approx(expected)


def test_a_beat_prolongs_the_belief_from_the_moment_it_was_sent(
    store: SlowStore, clock: ManualClock
) -> None:
    beat = thread(store, clock)
    began = clock.monotonic()
    assert beat.believed_until() == began + TTL - 2
    clock.advance(10)
    store.slow_seconds = 5.0  # the answer takes long

    beat.run_once()

    assert beat.believed_until() == began + 10 + TTL - 2  # not + 15
    clock.advance(beat.believed_until() - clock.monotonic())
    assert store.beat([ONE], TTL).result() == {ONE}  # the store still keeps it then


@pytest.mark.parametrize("error", [StoreBusy("held"), StoreUnavailable("gone"), TimeoutError()])
def test_a_failed_beat_does_not_prolong_the_belief(
    error: Exception, store: SlowStore, clock: ManualClock
) -> None:
    beat = thread(store, clock)
    believed = beat.believed_until()
    store.error = error
    clock.advance(10)

    beat.run_once()

    assert beat.believed_until() == believed


def test_an_expired_worker_is_not_believed_in_again(store: SlowStore, clock: ManualClock) -> None:
    beat = thread(store, clock)
    clock.advance(TTL)

    beat.run_once()

    assert beat.believed_until() < clock.monotonic()


def test_a_worker_that_the_store_has_ended_is_not_believed_in_any_longer(
    store: SlowStore, clock: ManualClock, table: SlotTable
) -> None:
    beat = thread(store, clock)
    table.set_worker(TWO)
    table.set_lease_until(clock.monotonic() + TTL)
    for worker in (ONE, TWO):
        store.reap(worker, [], "somebody thought it dead", 3).result()

    beat.run_once()
    supervised(table, store, clock).run_once()

    assert beat.believed_until() < clock.monotonic()
    assert table.lease_until() < clock.monotonic()


def test_an_answer_about_an_old_name_does_not_prolong_the_new_one(
    store: SlowStore, clock: ManualClock
) -> None:
    beat = thread(store, clock)
    clock.advance(20)
    store.before = lambda: beat.adopt(TWO, clock.monotonic() - 15)  # registered meanwhile

    beat.run_once()

    assert beat.believed_until() == clock.monotonic() - 15 - 2


def test_a_beat_without_a_worker_asks_nobody(store: SlowStore, clock: ManualClock) -> None:
    HeartbeatThread(store, clock, TTL, BEAT).run_once()

    assert store.asked == []


def test_a_beat_thread_starts_and_stops(store: SlowStore, clock: ManualClock) -> None:
    beat = HeartbeatThread(store, clock, TTL, 0.001)
    beat.start()
    beat.stop()
    beat.stop()

    wait_until(lambda: not beat._thread.is_alive())


def test_the_tables_keeper_believes_what_the_supervisor_wrote(
    table: SlotTable, store: SlowStore, clock: ManualClock
) -> None:
    keeper = FallbackHeartbeat(table, store, clock, TTL)
    keeper.adopt(ONE, 100.0)
    assert table.snapshot().worker == ONE
    assert keeper.believed_until() == 98.0

    table.set_lease_until(150.0)

    assert keeper.believed_until() == 150.0


def test_a_worker_renews_its_own_lease_once_half_of_it_has_passed(
    table: SlotTable, store: SlowStore, clock: ManualClock
) -> None:
    keeper = FallbackHeartbeat(table, store, clock, TTL)
    keeper.run_once()  # it has no name yet
    keeper.adopt(ONE, clock.monotonic() + TTL)

    for _ in range(10):  # a supervisor that stands still, for five leases
        clock.advance(TTL / 2 - 0.1)
        asked = len(store.asked)
        keeper.run_once()
        assert len(store.asked) == asked
        clock.advance(0.2)
        keeper.run_once()
        assert len(store.asked) == asked + 1
        assert keeper.believed_until() == clock.monotonic() + TTL - margin(TTL)


def test_a_worker_renews_nothing_that_is_over_or_long_past_a_time_limit(
    table: SlotTable, store: SlowStore, clock: ManualClock
) -> None:
    keeper = FallbackHeartbeat(table, store, clock, TTL)
    keeper.adopt(ONE, clock.monotonic() + TTL)
    clock.advance(TTL)
    keeper.run_once()
    table.set_lease_until(LOST_MONOTONIC)
    keeper.run_once()
    keeper.adopt(TWO, clock.monotonic() + TTL)
    table.occupy(0, 1, 1, clock.monotonic() - RENEWED_PAST_SECONDS, 3)
    clock.advance(TTL * 0.6)

    keeper.run_once()

    assert store.asked == []


def test_a_worker_that_the_store_has_given_up_learns_it_from_its_own_beat(
    table: SlotTable, store: SlowStore, clock: ManualClock
) -> None:
    keeper = FallbackHeartbeat(table, store, clock, TTL)
    keeper.adopt(ONE, clock.monotonic() + TTL)
    store.retire(ONE).result()
    clock.advance(TTL * 0.6)

    keeper.run_once()

    assert keeper.believed_until() == LOST_MONOTONIC


def test_a_supervisor_that_stood_still_during_its_beat_takes_no_renewal_back(
    table: SlotTable, store: SlowStore, clock: ManualClock
) -> None:
    keeper = FallbackHeartbeat(table, store, clock, TTL)
    keeper.adopt(ONE, clock.monotonic() + TTL)

    def stand_still() -> None:
        store.before = lambda: None
        clock.advance(TTL * 0.6)
        keeper.run_once()

    store.before = stand_still
    supervised(table, store, clock).run_once()

    assert keeper.believed_until() == clock.monotonic() + TTL - margin(TTL)


def supervised(table: SlotTable | None, store: SlowStore, clock: ManualClock) -> LeaseHeartbeat:
    return LeaseHeartbeat(store, lambda: [None, table], clock, TTL, BEAT)


def test_the_supervisor_renews_what_its_tables_name(
    table: SlotTable, store: SlowStore, clock: ManualClock
) -> None:
    table.set_worker(ONE)
    store.slow_seconds = 3.0
    sent = clock.monotonic()

    assert supervised(table, store, clock).run_once() == 1

    assert table.lease_until() == sent + TTL - 2
    assert store.asked == [[ONE]]


def test_the_supervisor_renews_a_blocked_worker(
    table: SlotTable, store: SlowStore, clock: ManualClock
) -> None:
    """The loop's last turn plays no part: a C call that keeps the GIL loses no lease."""
    table.set_worker(ONE)
    table.turn(clock.monotonic())
    table.occupy(0, 1, 1, 0.0, 3)
    beat = supervised(table, store, clock)

    for _ in range(20):
        clock.advance(BEAT)
        assert beat.run_once() == 1

    assert table.lease_until() > clock.monotonic()


def test_the_supervisor_renews_nothing_long_past_a_time_limit(
    table: SlotTable, store: SlowStore, clock: ManualClock
) -> None:
    table.set_worker(ONE)
    table.occupy(0, 1, 1, clock.monotonic() + 5, 3)
    beat = supervised(table, store, clock)
    clock.advance(5 + RENEWED_PAST_SECONDS - 10)
    assert beat.run_once() == 1

    clock.advance(10.1)

    assert beat.run_once() == 0
    table.vacate(0)
    clock.advance(1)
    assert beat.run_once() == 1


def test_a_failed_beat_of_the_supervisor_changes_no_table(
    table: SlotTable, store: SlowStore, clock: ManualClock
) -> None:
    table.set_worker(ONE)
    table.set_lease_until(17.0)
    store.error = StoreBusy("held")

    assert supervised(table, store, clock).run_once() == 0

    assert table.lease_until() == 17.0


def test_a_worker_that_has_another_name_by_now_gets_no_old_deadline(
    table: SlotTable, store: SlowStore, clock: ManualClock
) -> None:
    table.set_worker(ONE)
    table.set_lease_until(17.0)
    store.before = lambda: table.set_worker(TWO)

    supervised(table, store, clock).run_once()

    assert table.lease_until() == 17.0


def test_tables_that_are_missing_or_closed_are_passed_over(
    store: SlowStore, clock: ManualClock
) -> None:
    closed = SlotTable.create(1)
    closed.set_worker(ONE)
    closed.close()

    assert supervised(closed, store, clock).run_once() == 0
    assert supervised(None, store, clock).run_once() == 0

    dying = SlotTable.create(1)
    dying.set_worker(ONE)
    store.before = dying.close
    assert supervised(dying, store, clock).run_once() == 1


def test_bodies_that_run_on_after_a_lease_are_timed_from_the_moment_they_were_seen() -> None:
    overrun = Overrun()

    assert overrun.seconds(10.0, 20.0, runs=True) == 0.0
    assert overrun.seconds(20.0, 20.0, runs=False) == 0.0
    assert overrun.seconds(20.5, 20.0, runs=True) == 0.0
    assert overrun.seconds(21.5, 20.0, runs=True) == 1.0
    assert overrun.seconds(21.6, 50.0, runs=True) == 0.0, "it has a new lease"
    assert overrun.seconds(60.0, LOST_MONOTONIC, runs=True) == 0.0, "it may not know yet"
    assert overrun.seconds(61.0, LOST_MONOTONIC, runs=True) == 1.0


def test_a_lease_that_cannot_be_renewed_is_told_once(
    store: SlowStore, clock: ManualClock, table: SlotTable, caplog: pytest.LogCaptureFixture
) -> None:
    table.set_worker(TWO)
    beats = [thread(store, clock), supervised(table, store, clock)]
    for error in (StoreUnavailable("gone"), StoreUnavailable("gone"), None, StoreUnavailable("x")):
        store.error = error
        for beat in beats:
            beat.run_once()

    assert caplog.text.count("The lease was not renewed: gone") == 1
    assert caplog.text.count("The lease is renewed again after ") == 1
    assert caplog.text.count("Leases were not renewed: gone") == 1
    assert caplog.text.count("Leases are renewed again after ") == 1
    assert caplog.text.count("renewed: x") == 2
