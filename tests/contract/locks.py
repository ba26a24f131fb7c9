# SPDX-License-Identifier: Apache-2.0
"""Who may build a dataset, and what becomes of whoever loses that?"""

from __future__ import annotations

from penstock.model.plan import LocksTaken, PlanState
from tests.contract.dataset_words import (
    TTL,
    draft,
    running,
    state_of,
    take_locks,
)
from tests.contract.world import StoreWorld


def _holders(world: StoreWorld) -> dict[str, str]:
    return {lock.name: lock.run_id for lock in world.store.locks().result()}


def test_locks_are_taken_and_told(store_world: StoreWorld) -> None:
    now = store_world.clock.now_micros

    taken = take_locks(store_world, "b", "a", "b")

    assert taken == LocksTaken(taken=True)
    first, second = store_world.store.locks().result()
    assert (first.name, first.run_id, first.mark, first.token) == ("a", "run-1", "mark of run-1", 1)
    assert (first.taken_at, first.alive, second.name) == (now, True, "b")


def test_all_are_taken_or_none(store_world: StoreWorld) -> None:
    take_locks(store_world, "b", "d")

    taken = take_locks(store_world, "a", "b", "c", "d", run="run-2")

    assert not taken.taken
    assert [(lock.name, lock.run_id) for lock in taken.held] == [("b", "run-1"), ("d", "run-1")]
    assert taken.left == ()
    assert _holders(store_world) == {"b": "run-1", "d": "run-1"}


def test_a_run_may_take_what_it_has(store_world: StoreWorld) -> None:
    running(store_world)

    assert take_locks(store_world, "lock of p", "more") == LocksTaken(taken=True)
    assert state_of(store_world) is PlanState.RUNNING
    assert set(_holders(store_world)) == {"lock of p", "more"}


def test_a_lock_that_was_not_renewed_is_free(store_world: StoreWorld) -> None:
    take_locks(store_world)
    store_world.clock.advance(TTL - 1)
    early = take_locks(store_world, run="run-2")
    store_world.clock.advance(2)
    (lock,) = store_world.store.locks().result()

    late = take_locks(store_world, run="run-2")

    assert (early.taken, lock.alive, late.taken) == (False, False, True)
    assert _holders(store_world) == {"prices": "run-2"}


def test_a_beat_renews_all_locks_of_a_run(store_world: StoreWorld) -> None:
    take_locks(store_world, "a", "b")
    take_locks(store_world, "c", run="run-3")
    store_world.clock.advance(TTL - 1)

    assert store_world.store.beat_locks("run-1", TTL).result()
    store_world.clock.advance(2)

    alive = {lock.name: lock.alive for lock in store_world.store.locks().result()}
    assert alive == {"a": True, "b": True, "c": False}
    assert not take_locks(store_world, "a", run="run-2").taken


def test_a_beat_never_shortens(store_world: StoreWorld) -> None:
    take_locks(store_world, ttl=1_000.0)
    store_world.store.beat_locks("run-1", 1.0).result()
    store_world.clock.advance(500.0)

    assert not take_locks(store_world, run="run-2").taken


def test_a_run_that_lost_a_lock_learns_it_from_its_beat(store_world: StoreWorld) -> None:
    store = store_world.store
    take_locks(store_world, "a", "b")
    store_world.clock.advance(TTL + 1)
    unharmed = store.beat_locks("run-1", TTL).result()  # late, but nobody took one
    store_world.clock.advance(TTL + 1)

    take_locks(store_world, "b", run="run-2")

    assert unharmed
    assert not store.beat_locks("run-1", TTL).result()
    assert not store.beat_locks("never seen", TTL).result()
    assert _holders(store_world) == {"b": "run-2"}


def test_locks_of_a_process_that_is_certainly_gone_are_free(store_world: StoreWorld) -> None:
    take_locks(store_world)

    other = take_locks(store_world, run="run-2", gone=["mark of run-9"])
    taken = take_locks(store_world, run="run-2", gone=["mark of run-9", "mark of run-1"])

    assert (other.taken, taken.taken) == (False, True)


def test_open_plans_of_whoever_loses_a_lock_are_left(store_world: StoreWorld) -> None:
    store = store_world.store
    running(store_world, "old", "done", "given-up")
    store.abandon_plan("given-up").result()
    draft(store_world, "draft")
    running(store_world, "foreign", run="run-3")

    taken = take_locks(store_world, "lock of old", run="run-2", gone=["mark of run-1"])

    assert taken.left == ("done", "draft", "old")
    assert state_of(store_world, "old") is PlanState.LEFT
    assert state_of(store_world, "draft") is PlanState.LEFT
    assert state_of(store_world, "given-up") is PlanState.ABANDONED
    assert state_of(store_world, "foreign") is PlanState.RUNNING
    again = take_locks(store_world, "lock of old", run="run-4", gone=["mark of run-2"])
    assert again.left == ()


def test_asking_in_vain_leaves_no_plan(store_world: StoreWorld) -> None:
    running(store_world)

    assert take_locks(store_world, "lock of p", run="run-2").left == ()
    assert state_of(store_world) is PlanState.RUNNING


def test_tokens_grow_with_every_taking(store_world: StoreWorld) -> None:
    tokens = []
    for run in ("run-1", "run-2", "run-2"):
        take_locks(store_world, run=run)
        tokens += [lock.token for lock in store_world.store.locks().result()]
        if run == "run-1":
            store_world.store.release_locks(run, ["prices"]).result()

    assert tokens == [1, 2, 3]


def test_locks_are_released_by_their_run_only(store_world: StoreWorld) -> None:
    take_locks(store_world, "a", "b")

    store_world.store.release_locks("run-2", ["a", "b"]).result()
    store_world.store.release_locks("run-1", ["a", "unknown"]).result()

    assert _holders(store_world) == {"b": "run-1"}
    assert take_locks(store_world, "a", run="run-2").taken


def test_a_plan_is_left_when_its_run_gives_its_last_lock_back(store_world: StoreWorld) -> None:
    running(store_world)
    take_locks(store_world, "more")

    store_world.store.release_locks("run-1", ["more"]).result()
    before = state_of(store_world)
    store_world.store.release_locks("run-1", ["lock of p"]).result()

    assert (before, state_of(store_world)) == (PlanState.RUNNING, PlanState.LEFT)


def test_nothing_is_taken_where_nothing_is_asked_for(store_world: StoreWorld) -> None:
    assert store_world.store.take_locks([], "run-1", "m", TTL, []).result().taken
    assert store_world.store.locks().result() == []


def test_a_restored_store_has_no_locks_and_its_plans_are_left(store_world: StoreWorld) -> None:
    running(store_world)
    draft(store_world, "draft")
    store_world.store.abandon_plan("draft").result()

    store_world.store.void_leases(1_000).result()

    assert store_world.store.locks().result() == []
    assert not store_world.store.beat_locks("run-1", TTL).result()
    assert state_of(store_world) is PlanState.LEFT
    assert state_of(store_world, "draft") is PlanState.ABANDONED
    take_locks(store_world, "lock of p")
    (lock,) = store_world.store.locks().result()
    assert lock.token > 1_000
