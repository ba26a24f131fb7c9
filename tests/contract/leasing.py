# SPDX-License-Identifier: Apache-2.0
"""Which jobs does a lease call hand out, in which order, and is that fair?"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from penstock.errors import LeaseLost
from penstock.model.job import Edge, JobState, WorkerId
from penstock.stores.protocol import GROUPS_PER_LEASE, PROMOTE_SLICE
from tests.contract.world import TTL_SECONDS, StoreWorld, ref, refusal


def test_a_leased_job_is_in_progress_under_a_token(store_world: StoreWorld) -> None:
    store_world.add(
        store_world.job("a", payload='{"n":1}', priority=7, partition="p", plan_id="plan", level=0)
    )
    worker = store_world.new_worker()

    job = store_world.take_one(worker)

    assert (job.key, job.task, job.group, job.payload) == ("a", "work", "main", '{"n":1}')
    assert (job.token, job.attempts, job.crashes, job.priority) == (1, 0, 0, 7)
    assert (job.partition, job.plan_id, job.level) == ("p", "plan", 0)
    assert (job.limited, job.cell, job.deferred_since) == (False, None, None)
    assert job.due_at == store_world.clock.now_micros
    view = store_world.view("a")
    assert (view.id, view.state, view.token, view.worker) == (
        job.id,
        JobState.IN_PROGRESS,
        1,
        worker,
    )


def test_the_token_counts_the_leases_of_a_job(store_world: StoreWorld) -> None:
    store_world.add("a")
    worker = store_world.new_worker()

    tokens = []
    for _ in range(3):
        job = store_world.take_one(worker)
        tokens.append(job.token)
        store_world.give_back(worker, [job])

    assert tokens == [1, 2, 3]


def test_a_worker_can_ask_what_it_holds(store_world: StoreWorld) -> None:
    worker, other = store_world.new_worker(), store_world.new_worker()
    assert store_world.store.leases(worker).result() == []
    store_world.add("a", "b")
    mine = store_world.take_all(worker)
    store_world.add("c")
    theirs = store_world.take_all(other)
    held = sorted(ref(job) for job in mine.values())

    assert store_world.store.leases(worker).result() == held
    assert store_world.store.leases(other).result() == [ref(job) for job in theirs.values()]
    assert store_world.store.leases(WorkerId("nobody")).result() == []
    store_world.ack(worker, mine["a"])
    assert store_world.store.leases(worker).result() == [ref(mine["b"])]
    store_world.store.release(worker, [ref(mine["b"])]).result()
    assert store_world.store.leases(worker).result() == []


def test_only_tasks_that_the_worker_knows_are_handed_out(store_world: StoreWorld) -> None:
    store_world.add(
        store_world.job("a", task="mine"),
        store_world.job("b", task="foreign", priority=100),
        store_world.job("c", task="foreign", group="other"),
    )
    worker = store_world.new_worker(tasks=["mine", "unused"])

    batch = store_world.lease(worker)

    assert [job.key for job in batch.jobs] == ["a"]
    assert store_world.take_all(worker) == {}
    assert store_world.states("b", "c") == [JobState.QUEUED, JobState.QUEUED]


def test_a_worker_without_tasks_gets_nothing(store_world: StoreWorld) -> None:
    store_world.add("a")

    batch = store_world.lease(store_world.new_worker(tasks=()))

    assert (batch.jobs, batch.more) == ([], False)


def test_no_more_than_the_limit_is_handed_out(store_world: StoreWorld) -> None:
    store_world.add(*"abcde")

    batch = store_world.lease(store_world.new_worker(), 3)

    assert len(batch.jobs) == 3
    assert batch.more


def test_a_call_that_finds_nothing_promises_nothing(store_world: StoreWorld) -> None:
    batch = store_world.lease(store_world.new_worker())

    assert (batch.jobs, batch.more, batch.next_due_at) == ([], False, None)
    assert (batch.blocked, batch.suspects, batch.paused) == ((), 0, False)


def test_no_job_is_handed_out_twice(store_world: StoreWorld) -> None:
    store_world.add(*(f"job-{n}" for n in range(50)))
    one, two = store_world.new_worker(), store_world.new_worker()

    taken = [key for _ in range(10) for worker in (one, two) for key in store_world.take(worker, 3)]

    assert len(taken) == 50
    assert len(set(taken)) == 50


def test_inside_a_group_jobs_come_by_priority_then_due_time_then_id(
    store_world: StoreWorld,
) -> None:
    store_world.add(store_world.job("late-but-older-id", delay=2.0))
    store_world.add(store_world.job("soon", delay=1.0))
    store_world.add("first", "second", store_world.job("urgent", priority=5, delay=3.0))
    store_world.add(store_world.job("lowest", priority=-1))
    worker = store_world.new_worker()
    store_world.clock.advance(3.0)

    order = [store_world.take_one(worker).key for _ in range(6)]

    assert order == ["urgent", "first", "second", "soon", "late-but-older-id", "lowest"]


def test_the_order_inside_a_group_holds_over_all_its_lanes(store_world: StoreWorld) -> None:
    store_world.add(
        store_world.job("1", task="x"),
        store_world.job("2", task="y", limit_keys=["host:a"]),
        store_world.job("3", task="x", limit_keys=["host:b"]),
        store_world.job("0", task="y", priority=1),
        store_world.job("4", task="x"),
    )
    worker = store_world.new_worker(tasks=["x", "y"])

    first = set(store_world.take(worker, 2))
    second = set(store_world.take(worker, 2))

    assert first == {"0", "1"}
    assert second == {"2", "3"}


def test_priority_does_not_reach_into_another_group(store_world: StoreWorld) -> None:
    for n in range(20):
        store_world.add(store_world.job(f"vip-{n}", group="vip", priority=1_000))
    store_world.add(store_world.job("humble", group="humble", priority=-1_000))
    worker = store_world.new_worker()

    taken = [store_world.take_one(worker).key for _ in range(2)]

    assert "humble" in taken


def test_a_group_is_served_within_one_round_whatever_the_backlog_of_others(
    store_world: StoreWorld,
) -> None:
    groups = [f"group-{n}" for n in range(5)]
    store_world.add(
        *(store_world.job(f"{group}/{n}", group=group) for group in groups for n in range(200))
    )
    worker = store_world.new_worker()
    store_world.take(worker, 7)
    for name in ("a-newcomer", "z-newcomer"):  # before and behind all others
        store_world.add(store_world.job(name, group=name))

    served = [store_world.take_one(worker).group for _ in range(7)]

    assert Counter(served) == Counter([*groups, "a-newcomer", "z-newcomer"])


def test_new_groups_whose_names_grow_do_not_keep_a_group_from_its_turn(
    store_world: StoreWorld,
) -> None:
    store_world.add(*(store_world.job(f"stays/{n}", group="a-stays") for n in range(50)))
    worker = store_world.new_worker()
    waited = longest = 0
    for n in range(60):
        new = [f"t-{n:03}-{m}" for m in range(2 if n else 4)]
        store_world.add(*(store_world.job(name, group=name) for name in new))
        served = [key for _ in range(2) for key in store_world.take(worker, 1)]
        waited = 0 if any(key.startswith("stays") for key in served) else waited + 1
        longest = max(longest, waited)

    assert longest <= 20


def test_groups_take_turns_one_by_one(store_world: StoreWorld) -> None:
    store_world.add(
        *(store_world.job(f"{group}{n}", group=group) for group in "abc" for n in range(3))
    )
    worker = store_world.new_worker()

    served = [store_world.take_one(worker).group for _ in range(9)]

    for start in (0, 3, 6):
        assert sorted(served[start : start + 3]) == ["a", "b", "c"]


def test_the_limit_is_divided_evenly_between_groups(store_world: StoreWorld) -> None:
    store_world.add(
        *(store_world.job(f"{group}{n}", group=group) for group in "abc" for n in range(100))
    )

    batch = store_world.lease(store_world.new_worker(), 30)

    assert Counter(job.group for job in batch.jobs) == {"a": 10, "b": 10, "c": 10}


def test_a_call_that_leaves_work_promises_more(store_world: StoreWorld) -> None:
    """A group gives less than its share; whatever the others could have given is not forgotten."""
    store_world.add(*(store_world.job(f"a{n}", group="a") for n in range(9)))
    store_world.add(store_world.job("b", group="b"))
    worker = store_world.new_worker()

    left = 10
    while left:
        batch = store_world.lease(worker, 10)
        left -= len(batch.jobs)
        assert batch.jobs
        assert batch.more or not left


def test_a_group_alone_may_use_the_whole_limit(store_world: StoreWorld) -> None:
    store_world.add(*(f"job-{n}" for n in range(100)))

    assert len(store_world.take(store_world.new_worker(), 60)) == 60


def test_more_groups_than_one_call_visits_are_all_served_in_turn(
    store_world: StoreWorld,
) -> None:
    groups = [f"group-{n:03d}" for n in range(2 * GROUPS_PER_LEASE + GROUPS_PER_LEASE // 2)]
    store_world.add(
        *(store_world.job(f"{group}/{n}", group=group) for group in groups for n in range(4))
    )
    worker = store_world.new_worker()

    served: Counter[str] = Counter()
    for _ in range(3):
        jobs = store_world.lease(worker, GROUPS_PER_LEASE).jobs
        served.update(job.group for job in jobs)

    assert set(served) == set(groups)


def test_groups_of_foreign_tasks_do_not_cost_a_turn(store_world: StoreWorld) -> None:
    foreign = [
        store_world.job(f"foreign-{n}", task="foreign", group=f"foreign-{n}")
        for n in range(3 * GROUPS_PER_LEASE)
    ]
    store_world.add(*foreign, store_world.job("mine", task="mine", group="zzz"))
    worker = store_world.new_worker(tasks=["mine"])

    assert list(store_world.take(worker)) == ["mine"]


def test_an_unknown_worker_gets_no_lease(store_world: StoreWorld) -> None:
    store_world.add("a")

    refusal(store_world.store.lease(store_world.request(WorkerId("nobody"))), LeaseLost)

    assert store_world.state("a") is JobState.QUEUED


def test_an_expired_worker_gets_no_lease(store_world: StoreWorld) -> None:
    store_world.add("a")
    worker = store_world.new_worker()
    store_world.clock.advance(TTL_SECONDS)

    refusal(store_world.store.lease(store_world.request(worker)), LeaseLost)

    assert store_world.state("a") is JobState.QUEUED


def test_while_paused_nothing_is_handed_out(store_world: StoreWorld) -> None:
    store_world.add("a")
    worker = store_world.new_worker()

    store_world.store.set_paused(True).result()
    paused = store_world.lease(worker)
    says = store_world.store.stats().result().paused
    store_world.store.set_paused(False).result()
    resumed = store_world.lease(worker)

    assert (paused.jobs, paused.paused, says) == ([], True, True)
    assert ([job.key for job in resumed.jobs], resumed.paused) == (["a"], False)


def test_more_jobs_than_one_call_promotes_fall_due_together(store_world: StoreWorld) -> None:
    count = PROMOTE_SLICE + 100
    store_world.add(*(store_world.job(f"job-{n}", delay=1.0) for n in range(count)))
    worker = store_world.new_worker()
    store_world.clock.advance(1.0)

    taken = store_world.take_all(worker, 500)

    assert len(taken) == count


def test_a_job_that_falls_due_takes_no_later_one_along(store_world: StoreWorld) -> None:
    store_world.add(store_world.job("now", delay=5.0), store_world.job("later", delay=5.1))
    worker = store_world.new_worker()
    store_world.clock.advance(5.0)

    assert list(store_world.take_all(worker)) == ["now"]
    store_world.clock.advance(0.1)
    assert list(store_world.take_all(worker)) == ["later"]


def test_the_next_due_time_is_that_of_the_first_delayed_job(store_world: StoreWorld) -> None:
    now = store_world.clock.now_micros
    store_world.add(
        store_world.job("c", delay=30.0),
        store_world.job("a", delay=10.0, task="foreign"),
        store_world.job("b", delay=20.0),
    )
    worker = store_world.new_worker(ttl=100.0)

    first = store_world.lease(worker)
    store_world.clock.advance(10.0)
    second = store_world.lease(worker)

    assert first.next_due_at == now + 10_000_000
    assert second.next_due_at == now + 20_000_000


def test_a_job_that_ended_is_not_handed_out_again(store_world: StoreWorld) -> None:
    store_world.add(*"abc")
    worker = store_world.new_worker()
    for key, state in zip("abc", (JobState.DONE, JobState.SKIPPED, JobState.ERROR), strict=True):
        store_world.run(worker, key, state)

    assert store_world.take_all(worker) == {}


def test_a_job_that_was_released_keeps_its_place(store_world: StoreWorld) -> None:
    store_world.add("first", "second")
    worker = store_world.new_worker()
    job = store_world.take_one(worker)

    store_world.store.release(worker, [ref(job)]).result()

    assert store_world.take_one(worker).key == "first"


def _wait_for_job(store_world: StoreWorld, worker: WorkerId, action: Callable[[], object]) -> str:
    """Do as an idle worker does: wait, lease, and wait again if that was a false alarm."""

    async def wait() -> str:
        asyncio.get_running_loop().call_later(0.01, action)
        while not (taken := store_world.take(worker, 1)):
            await store_world.store.wait_for_work(None)
        return next(iter(taken))

    return asyncio.run(wait())


def test_waiting_for_work_ends_when_a_job_is_accepted(store_world: StoreWorld) -> None:
    worker = store_world.new_worker()

    assert _wait_for_job(store_world, worker, lambda: store_world.add("a")) == "a"


def test_waiting_for_work_does_not_miss_what_came_before_it(store_world: StoreWorld) -> None:
    worker = store_world.new_worker()
    store_world.take_all(worker)
    store_world.add("a")

    asyncio.run(store_world.store.wait_for_work(None))

    assert list(store_world.take(worker)) == ["a"]


def test_waiting_for_work_ends_when_a_lease_is_given_back(store_world: StoreWorld) -> None:
    store_world.add("a")
    worker = store_world.new_worker()
    job = store_world.take_one(worker)

    found = _wait_for_job(store_world, worker, lambda: store_world.give_back(worker, [job]))

    assert found == "a"


def test_waiting_for_work_ends_when_a_full_key_has_room(store_world: StoreWorld) -> None:
    store_world.caps["host:a"] = 1
    store_world.add(*(store_world.job(key, limit_keys=["host:a"]) for key in "ab"))
    worker = store_world.new_worker()
    job = store_world.take_one(worker)

    assert _wait_for_job(store_world, worker, lambda: store_world.ack(worker, job)) == "b"


def test_waiting_for_work_ends_when_a_dependant_is_released(store_world: StoreWorld) -> None:
    store_world.add("a", store_world.job("b", after=[Edge("a")]))
    worker = store_world.new_worker()
    job = store_world.take_one(worker)

    assert _wait_for_job(store_world, worker, lambda: store_world.ack(worker, job)) == "b"


def test_waiting_for_work_without_patience_returns(store_world: StoreWorld) -> None:
    asyncio.run(store_world.store.wait_for_work(0.0))


def test_one_call_hands_out_the_jobs_of_a_group_in_their_order(store_world: StoreWorld) -> None:
    """Priority, then due time, then id; over two lanes, in which the ids run against it."""
    store_world.add(
        store_world.job("f", delay=4.0),
        store_world.job("e", delay=2.0),
        store_world.job("b", delay=1.0, priority=5, limit_keys=["host:x"]),
        store_world.job("d", delay=1.0),
        store_world.job("c", limit_keys=["host:x"]),
        store_world.job("a", delay=0.5, priority=5),
        store_world.job("g", delay=4.0),
    )
    store_world.clock.advance(5.0)

    assert list(store_world.take(store_world.new_worker(), 10)) == list("abcdefg")
