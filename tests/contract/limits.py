# SPDX-License-Identifier: Apache-2.0
"""Do keyed limits hold, and does whoever waited for a slot get it?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from penstock.model.job import LeasedJob, WorkerId
from penstock.model.lease import Rearm
from tests.contract.world import TTL_SECONDS, StoreWorld

Free = Callable[[StoreWorld, WorkerId, LeasedJob], object]


def _limited(store_world: StoreWorld, cap: int, count: int, key: str = "host:a") -> WorkerId:
    """Jobs a0, a1, … that hold one key."""
    store_world.caps[key] = cap
    store_world.add(*(store_world.job(f"a{n}", limit_keys=[key]) for n in range(count)))
    return store_world.new_worker()


def test_no_more_leases_than_the_cap_hold_a_key(store_world: StoreWorld) -> None:
    worker = _limited(store_world, 2, 5)

    taken = store_world.take_all(worker)

    assert sorted(taken) == ["a0", "a1"]
    assert all(job.limited for job in taken.values())


def test_a_cap_holds_over_all_workers_groups_and_tasks(store_world: StoreWorld) -> None:
    store_world.caps["host:a"] = 3
    store_world.add(
        *(
            store_world.job(f"{task}{group}{n}", task=task, group=group, limit_keys=["host:a"])
            for task in "xy"
            for group in "pq"
            for n in range(3)
        )
    )
    workers = [store_world.new_worker(tasks=["x", "y"]) for _ in range(3)]

    taken = [key for worker in workers for key in store_world.take_all(worker)]

    assert len(taken) == 3


def test_a_key_without_a_cap_is_free(store_world: StoreWorld) -> None:
    store_world.add(*(store_world.job(f"a{n}", limit_keys=["host:a"]) for n in range(20)))

    assert len(store_world.take_all(store_world.new_worker())) == 20


def test_a_cap_of_a_dimension_counts_for_each_of_its_keys(store_world: StoreWorld) -> None:
    store_world.caps["host:*"] = 1
    store_world.add(
        *(
            store_world.job(f"{host}{n}", limit_keys=[f"host:{host}"])
            for host in "abc"
            for n in range(3)
        )
    )

    taken = store_world.take_all(store_world.new_worker())

    assert sorted(taken) == ["a0", "b0", "c0"]


def test_jobs_without_keys_pass_a_full_one(store_world: StoreWorld) -> None:
    worker = _limited(store_world, 0, 3)
    store_world.add("free")

    assert list(store_world.take_all(worker)) == ["free"]


def _by_ack(world: StoreWorld, worker: WorkerId, job: LeasedJob) -> object:
    return world.ack(worker, job)


def _by_failure(world: StoreWorld, worker: WorkerId, job: LeasedJob) -> object:
    return world.fail(worker, job, delay=1_000.0)


def _by_release(world: StoreWorld, worker: WorkerId, job: LeasedJob) -> object:
    return world.give_back(worker, [job])


def _by_rearming(world: StoreWorld, worker: WorkerId, job: LeasedJob) -> object:
    at = world.clock.now_micros + 1_000_000_000
    return world.ack(worker, job, effects=[Rearm(at)])


def _by_reaping(world: StoreWorld, worker: WorkerId, job: LeasedJob) -> object:
    return world.reap(worker, [job])


def _by_retirement(world: StoreWorld, worker: WorkerId, job: LeasedJob) -> object:
    return world.store.retire(worker).result()


def _by_expiry(world: StoreWorld, worker: WorkerId, job: LeasedJob) -> object:
    world.clock.advance(TTL_SECONDS)
    return None


def test_every_end_of_a_lease_frees_its_keys(store_world: StoreWorld) -> None:
    """One full key and a lane that waits for it, once for each way in which a lease can end."""
    ends: list[Free] = [
        _by_ack,
        _by_failure,
        _by_release,
        _by_rearming,
        _by_reaping,
        _by_retirement,
        _by_expiry,
    ]
    for number, free in enumerate(ends):
        key = f"host:{number}"
        store_world.caps[key] = 1
        task = f"task-{number}"
        for name in ("holder", "waiter"):
            store_world.add(
                store_world.job(
                    f"{name}-{number}", task=task, limit_keys=[key], group=f"{name}-{number}"
                )
            )
        holder = store_world.new_worker(tasks=[task])
        waiter = store_world.new_worker(tasks=[task], ttl=1_000.0)
        (job,) = store_world.take_all(holder).values()
        full = store_world.take_all(waiter)

        free(store_world, holder, job)

        assert full == {}, free.__name__
        taken = store_world.take_all(waiter)
        assert len(taken) == 1, free.__name__
        store_world.store.retire(waiter).result()
        store_world.cancel(f"holder-{number}", f"waiter-{number}")


def test_a_free_slot_lets_exactly_one_of_many_lanes_run(store_world: StoreWorld) -> None:
    store_world.caps["resolver:x"] = 1
    store_world.add(
        *(store_world.job(f"job-{n}", limit_keys=["resolver:x", f"host:{n}"]) for n in range(30))
    )
    worker = store_world.new_worker()

    done: list[str] = []
    for _ in range(30):
        (job,) = store_world.take_all(worker).values()
        store_world.ack(worker, job)
        done.append(job.key)

    assert len(set(done)) == 30


def test_two_free_slots_let_two_lanes_run(store_world: StoreWorld) -> None:
    store_world.caps["resolver:x"] = 2
    store_world.add(
        *(store_world.job(f"job-{n}", limit_keys=["resolver:x", f"host:{n}"]) for n in range(6))
    )
    worker = store_world.new_worker()
    first = store_world.take_all(worker)

    for job in first.values():
        store_world.ack(worker, job)
    second = store_world.take_all(worker)

    assert (len(first), len(second)) == (2, 2)
    assert not set(first) & set(second)


def test_both_keys_of_a_job_must_have_room(store_world: StoreWorld) -> None:
    store_world.caps.update({"host:a": 1, "user:b": 1})
    store_world.add(
        store_world.job("a-only", limit_keys=["host:a"]),
        store_world.job("both", limit_keys=["host:a", "user:b"]),
        store_world.job("b-only", limit_keys=["user:b"]),
    )
    worker = store_world.new_worker()

    taken = store_world.take_all(worker)

    assert sorted(taken) == ["a-only", "b-only"]
    store_world.ack(worker, taken["a-only"])
    assert store_world.take_all(worker) == {}
    store_world.ack(worker, taken["b-only"])
    assert list(store_world.take_all(worker)) == ["both"]


def test_a_lane_blocked_on_one_key_and_then_on_the_other_is_not_forgotten(
    store_world: StoreWorld,
) -> None:
    """Goal: no lost wake-up. Method: the lane waits for `a`; when `a` is free, `b` is full; when
    `b` is free, nothing but that can wake it.
    """
    store_world.caps.update({"key:a": 1, "key:b": 1})
    store_world.add(store_world.job("holds-a", limit_keys=["key:a"]))
    worker = store_world.new_worker()
    holds_a = store_world.take_one(worker)
    store_world.add(store_world.job("both", limit_keys=["key:a", "key:b"]))
    assert store_world.take_all(worker) == {}
    store_world.add(store_world.job("holds-b", limit_keys=["key:b"], priority=1))
    holds_b = store_world.take_one(worker)
    assert holds_b.key == "holds-b"

    store_world.ack(worker, holds_a)
    assert store_world.take_all(worker) == {}
    store_world.ack(worker, holds_b)

    assert list(store_world.take_all(worker)) == ["both"]


def test_a_lane_that_cannot_use_a_free_slot_passes_it_on(store_world: StoreWorld) -> None:
    """`a` frees one slot; the lane that waited longest cannot use it, because `b` is full."""
    store_world.caps.update({"key:a": 1, "key:b": 1})
    store_world.add(
        store_world.job("holds-a", limit_keys=["key:a"]),
        store_world.job("holds-b", limit_keys=["key:b"]),
    )
    worker = store_world.new_worker()
    holders = store_world.take_all(worker)
    store_world.add(store_world.job("both", limit_keys=["key:a", "key:b"]))
    assert store_world.take_all(worker) == {}
    store_world.add(store_world.job("only-a", limit_keys=["key:a"], group="other"))
    assert store_world.take_all(worker) == {}

    store_world.ack(worker, holders["holds-a"])

    assert list(store_world.take_all(worker)) == ["only-a"]


def test_a_slot_is_not_lost_to_a_worker_that_does_not_know_the_task(
    store_world: StoreWorld,
) -> None:
    store_world.caps["key:a"] = 1
    store_world.add(store_world.job("holder", limit_keys=["key:a"]))
    worker, foreign = store_world.new_worker(), store_world.new_worker(tasks=["foreign"])
    job = store_world.take_one(worker)
    store_world.add(
        store_world.job("foreign", task="foreign", limit_keys=["key:a"]),
        store_world.job("waiter", limit_keys=["key:a"]),
    )
    assert store_world.take_all(worker) == {}
    assert store_world.take_all(foreign) == {}

    store_world.ack(worker, job)
    (first,) = store_world.take_all(worker).values()
    nothing = store_world.take_all(foreign)
    store_world.ack(worker, first)

    assert first.key == "waiter"
    assert nothing == {}
    assert list(store_world.take_all(foreign)) == ["foreign"]


def test_groups_behind_one_full_key_take_turns(store_world: StoreWorld) -> None:
    """Goal: a shared key starves no group, even while a group without limits keeps the round
    moving. Method: one slot, two groups that want it, a third that always has work.
    """
    store_world.caps["provider:x"] = 1
    store_world.add(
        *(
            store_world.job(f"{group}{n}", group=group, limit_keys=["provider:x"])
            for group in "ab"
            for n in range(10)
        ),
        *(store_world.job(f"c{n}", group="c") for n in range(200)),
    )
    worker = store_world.new_worker()
    served: Counter[str] = Counter()

    for _ in range(10):
        slot: list[LeasedJob] = []
        for _ in range(4):  # while the slot is taken, only the third group is served
            taken = store_world.take(worker, 3).values()
            slot += [job for job in taken if job.limited]
            for job in taken:
                if not job.limited:
                    store_world.ack(worker, job)
        assert len(slot) == 1
        served[slot[0].group] += 1
        store_world.ack(worker, slot[0])

    assert set(served) == {"a", "b"}
    assert min(served.values()) >= 4  # 10 ÷ 2, and one more or less at the start


def test_a_full_key_of_one_group_does_not_hold_up_others(store_world: StoreWorld) -> None:
    store_world.caps["host:a"] = 1
    store_world.add(
        *(store_world.job(f"a{n}", limit_keys=["host:a"], priority=9) for n in range(50)),
        *(store_world.job(f"b{n}", limit_keys=["host:b"]) for n in range(5)),
    )

    taken = store_world.take_all(store_world.new_worker())

    assert sorted(taken) == ["a0", "b0", "b1", "b2", "b3", "b4"]


def test_a_suspect_waits_for_its_keys_too(store_world: StoreWorld) -> None:
    store_world.caps["host:a"] = 1
    store_world.add(store_world.job("suspect", limit_keys=["host:a"]))
    worker = store_world.new_worker()
    store_world.reap(worker, [store_world.take_one(worker)])
    store_world.add(store_world.job("holder", limit_keys=["host:a"]))
    worker, soloist = store_world.new_worker(), store_world.new_worker()
    holder = store_world.take_one(worker)

    blocked = store_world.lease(soloist, quarantine=True)
    store_world.ack(worker, holder)
    free = store_world.take_one(soloist, quarantine=True)

    assert holder.key == "holder"
    assert blocked.jobs == []
    assert (free.key, free.cell, free.limited) == ("suspect", 0, True)
    store_world.add(store_world.job("late", limit_keys=["host:a"]))
    assert store_world.take_all(worker) == {}
