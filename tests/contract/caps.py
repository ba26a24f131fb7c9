# SPDX-License-Identifier: Apache-2.0
"""Who sets a cap, and who is told why a job waits?"""

from __future__ import annotations

from collections.abc import Callable

from penstock.model.job import LeasedJob, WorkerId
from penstock.model.lease import BlockedKey
from tests.contract.world import StoreWorld

Free = Callable[[StoreWorld, WorkerId, LeasedJob], object]


def _limited(store_world: StoreWorld, cap: int, count: int, key: str = "host:a") -> WorkerId:
    """Jobs a0, a1, … that hold one key."""
    store_world.caps[key] = cap
    store_world.add(*(store_world.job(f"a{n}", limit_keys=[key]) for n in range(count)))
    return store_world.new_worker()


def test_a_full_key_is_named_with_its_cap_and_holders(store_world: StoreWorld) -> None:
    worker = _limited(store_world, 2, 5)
    store_world.take(worker)

    batch = store_world.lease(worker)

    assert batch.jobs == []
    assert batch.blocked == (BlockedKey("host:a", 2, ("a0", "a1")),)


def test_a_full_key_is_named_for_as_long_as_it_blocks(store_world: StoreWorld) -> None:
    worker = _limited(store_world, 1, 2)
    store_world.take_all(worker)

    named = [store_world.lease(worker).blocked for _ in range(3)]
    store_world.cancel("a1")
    nothing_waits = store_world.lease(worker).blocked

    assert named == [(BlockedKey("host:a", 1, ("a0",)),)] * 3
    assert nothing_waits == ()


def test_a_key_with_room_is_not_named(store_world: StoreWorld) -> None:
    """One slot is free and two lanes want it; whoever is served first, no key is full before."""
    store_world.caps["key:a"] = 1
    store_world.add(store_world.job("holder", limit_keys=["key:a"], group="a"))
    worker = store_world.new_worker()
    holder = store_world.take_one(worker)
    store_world.add(
        store_world.job("x", limit_keys=["key:a", "key:x"], group="x"),
        store_world.job("y", limit_keys=["key:a", "key:y"], group="y"),
        *(store_world.job(f"{group}{n}", group=group) for group in "bz" for n in range(3)),
    )
    store_world.lease(worker, 4)
    store_world.ack(worker, holder)

    for _ in range(4):
        for blocked in store_world.lease(worker, 1).blocked:
            assert len(blocked.holders) == blocked.cap == 1


def test_at_most_ten_holders_are_named(store_world: StoreWorld) -> None:
    worker = _limited(store_world, 12, 13)
    store_world.take_all(worker)

    (blocked,) = store_world.lease(worker).blocked

    assert (blocked.limit_key, blocked.cap) == ("host:a", 12)
    assert blocked.holders == tuple(f"a{n}" for n in range(10))


def test_an_override_wins_over_the_configuration(store_world: StoreWorld) -> None:
    worker = _limited(store_world, 5, 10)

    store_world.store.set_cap("host:a", 2).result()

    assert len(store_world.take_all(worker)) == 2
    assert store_world.store.caps().result() == {"host:a": 2}


def test_a_raised_cap_wakes_who_waits_for_it(store_world: StoreWorld) -> None:
    worker = _limited(store_world, 1, 10)
    first = store_world.take_all(worker)

    store_world.store.set_cap("host:a", 4).result()
    second = store_world.take_all(worker)

    assert (len(first), len(second)) == (1, 3)


def test_a_cap_of_zero_stops_a_key_and_forgetting_it_starts_it_again(
    store_world: StoreWorld,
) -> None:
    worker = _limited(store_world, 3, 10)
    store_world.store.set_cap("host:a", 0).result()

    stopped = store_world.lease(worker)
    store_world.take_all(worker)
    store_world.store.set_cap("host:a", None).result()
    started = store_world.take_all(worker)

    assert stopped.jobs == []
    assert stopped.blocked == (BlockedKey("host:a", 0, ()),)
    assert len(started) == 3
    assert store_world.store.caps().result() == {}


def test_a_cap_may_fall_to_zero_while_others_hold_and_wait(store_world: StoreWorld) -> None:
    worker = _limited(store_world, 1, 2)
    (holder,) = store_world.take_all(worker).values()

    store_world.store.set_cap("host:a", 0).result()
    store_world.ack(worker, holder)
    stopped = store_world.take_all(worker)
    sound = store_world.store.check().result()
    store_world.store.set_cap("host:a", 1).result()

    assert (stopped, sound) == ({}, [])
    assert list(store_world.take_all(worker)) == ["a1"]


def test_a_lowered_cap_takes_nothing_away_but_hands_out_no_more(store_world: StoreWorld) -> None:
    worker = _limited(store_world, 3, 10)
    taken = list(store_world.take_all(worker).values())
    store_world.store.set_cap("host:a", 1).result()

    for job in taken[:2]:
        assert store_world.ack(worker, job) == "accepted"
        assert store_world.take_all(worker) == {}
    store_world.ack(worker, taken[2])

    assert len(store_world.take_all(worker)) == 1


def test_a_new_worker_with_other_caps_lets_every_lane_try_again(store_world: StoreWorld) -> None:
    worker = _limited(store_world, 1, 4)
    store_world.take_all(worker)

    store_world.caps["host:a"] = 3
    newcomer = store_world.new_worker()

    assert len(store_world.take_all(newcomer)) == 2


def test_the_default_of_a_dimension_can_be_changed_for_whoever_waits(
    store_world: StoreWorld,
) -> None:
    store_world.caps.update({"host:*": 1, "host:c": 1})
    store_world.add(
        *(
            store_world.job(f"{host}{n}", limit_keys=[f"host:{host}"])
            for host in "abc"
            for n in range(4)
        )
    )
    worker = store_world.new_worker()
    first = store_world.take_all(worker)
    store_world.store.set_cap("host:b", 2).result()

    store_world.store.set_cap("host:*", 3).result()

    more = store_world.take_all(worker)
    assert sorted(first) == ["a0", "b0", "c0"]
    assert sorted(more) == ["a1", "a2", "b1"]  # b was changed by itself, c is configured
    store_world.store.set_cap("host:*", None).result()
    store_world.give_back(worker, [first["a0"], more["a1"]])
    assert store_world.take_all(worker) == {}
