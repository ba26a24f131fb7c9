# SPDX-License-Identifier: Apache-2.0
"""Does a store tell the truth in numbers and lists?"""

from __future__ import annotations

from penstock.errors import StoreClosed
from penstock.model.job import Edge, Job, JobId, JobState
from penstock.model.lease import Verdict
from penstock.stores.protocol import JobFilter
from tests.contract.world import TROUBLE, TTL_SECONDS, StoreWorld, refusal


def _mixture(store_world: StoreWorld) -> None:
    """One job in each state; two tasks, two groups."""
    worker = store_world.new_worker(tasks=["x", "y"])
    store_world.add(
        store_world.job("done", task="x", group="g"),
        store_world.job("skipped", task="x", group="h"),
        store_world.job("error", task="y", group="g"),
    )
    for key, state in (
        ("done", JobState.DONE),
        ("skipped", JobState.SKIPPED),
        ("error", JobState.ERROR),
    ):
        store_world.run(worker, key, state)
    store_world.add(store_world.job("cancelled", task="y", group="h"))
    store_world.cancel("cancelled")
    store_world.add(store_world.job("leased", task="x", group="g"))
    store_world.take_one(worker)
    store_world.add(
        store_world.job("queued", task="x", group="g"),
        store_world.job("waiting", task="y", group="g", after=[Edge("queued")]),
    )


def test_an_empty_store_counts_nothing(store_world: StoreWorld) -> None:
    stats = store_world.store.stats().result()

    assert stats.states == dict.fromkeys(JobState, 0)
    assert (stats.tasks, stats.groups, stats.groups_total) == ({}, {}, 0)
    assert (stats.oldest_ready_seconds, stats.next_due_at) == (None, None)
    assert (stats.suspects, stats.workers, stats.paused) == (0, 0, False)


def test_stats_count_by_state_task_and_group(store_world: StoreWorld) -> None:
    _mixture(store_world)

    stats = store_world.store.stats().result()

    assert stats.states == dict.fromkeys(JobState, 1)
    assert stats.tasks == {
        "x": {
            JobState.QUEUED: 1,
            JobState.IN_PROGRESS: 1,
            JobState.DONE: 1,
            JobState.SKIPPED: 1,
        },
        "y": {JobState.WAITING: 1, JobState.ERROR: 1, JobState.CANCELLED: 1},
    }
    assert stats.groups == {
        "g": {
            JobState.WAITING: 1,
            JobState.QUEUED: 1,
            JobState.IN_PROGRESS: 1,
            JobState.DONE: 1,
            JobState.ERROR: 1,
        },
        "h": {JobState.SKIPPED: 1, JobState.CANCELLED: 1},
    }
    assert (stats.groups_total, stats.workers) == (2, 1)


def test_stats_name_groups_with_open_work_first_and_no_more_than_the_bound(
    store_world: StoreWorld,
) -> None:
    worker = store_world.new_worker()
    store_world.add(*(store_world.job(f"a{n}", group=f"a{n}") for n in range(1_100)))
    jobs = store_world.take_all(worker, 500).values()
    store_world.store.ack(worker, [store_world.end(job) for job in jobs]).result()
    store_world.add(store_world.job("z", group="z"))

    stats = store_world.store.stats().result()

    assert len(stats.groups) <= 1_000
    assert next(iter(stats.groups)) == "z"
    assert stats.groups_total == 1_101


def test_the_oldest_ready_job_is_counted_from_its_due_time(store_world: StoreWorld) -> None:
    store_world.add("a", store_world.job("later", delay=100.0))
    store_world.clock.advance(3.0)
    store_world.add("b")
    store_world.clock.advance(4.0)

    ages = [store_world.store.stats().result().oldest_ready_seconds]
    worker = store_world.new_worker()
    store_world.take_one(worker)
    ages.append(store_world.store.stats().result().oldest_ready_seconds)
    store_world.take_one(worker)
    ages.append(store_world.store.stats().result().oldest_ready_seconds)

    assert ages == [7.0, 4.0, None]


def test_the_next_due_time_is_counted(store_world: StoreWorld) -> None:
    now = store_world.clock.now_micros
    store_world.add(store_world.job("b", delay=20.0), store_world.job("a", delay=10.0))

    assert store_world.store.stats().result().next_due_at == now + 10_000_000


def test_a_job_that_has_fallen_due_is_no_longer_delayed(store_world: StoreWorld) -> None:
    store_world.add(store_world.job("a", delay=10.0), store_world.job("b", delay=20.0))
    counts = [store_world.store.stats().result().delayed]
    for _ in range(2):
        store_world.clock.advance(10.0)  # and nobody leases
        counts.append(store_world.store.stats().result().delayed)

    assert counts == [2, 1, 0]


def test_only_workers_that_are_alive_are_counted(store_world: StoreWorld) -> None:
    store_world.new_worker(ttl=10.0)
    store_world.new_worker(ttl=60.0)
    store_world.clock.advance(10.0)

    assert store_world.store.stats().result().workers == 1


def test_jobs_are_listed_by_id_in_pages(store_world: StoreWorld) -> None:
    keys = [f"job-{n}" for n in range(25)]
    store_world.add(*keys)

    found: list[str] = []
    after = JobId(0)
    while page := store_world.store.jobs(JobFilter(), after, 10).result():
        assert len(page) <= 10
        found += [job.key for job in page]
        after = page[-1].id

    assert found == keys


def test_jobs_are_listed_by_state_and_task(store_world: StoreWorld) -> None:
    _mixture(store_world)

    def keys(wanted: JobFilter) -> list[str]:
        return [job.key for job in store_world.store.jobs(wanted, JobId(0), 100).result()]

    for state in JobState:
        name = "leased" if state is JobState.IN_PROGRESS else state.value
        assert keys(JobFilter(state=state)) == [name]
    assert keys(JobFilter(task="y")) == ["error", "cancelled", "waiting"]
    assert keys(JobFilter(task="y", state=JobState.ERROR)) == ["error"]
    assert keys(JobFilter(task="x", state=JobState.ERROR)) == []
    assert keys(JobFilter(task="nothing")) == []


def test_queued_jobs_are_listed_whether_due_delayed_or_suspect(store_world: StoreWorld) -> None:
    store_world.add("suspect")
    worker = store_world.new_worker()
    store_world.reap(worker, [store_world.take_one(worker)])
    store_world.add("due", store_world.job("delayed", delay=5.0))

    jobs = store_world.store.jobs(JobFilter(state=JobState.QUEUED), JobId(0), 10).result()

    assert [(job.key, job.suspect) for job in jobs] == [
        ("suspect", True),
        ("due", False),
        ("delayed", False),
    ]


def test_an_unknown_key_has_neither_job_nor_history(store_world: StoreWorld) -> None:
    assert store_world.store.job("nothing").result() is None
    assert store_world.store.attempts("nothing").result() == []


def test_the_outlook_tells_what_is_left_and_who_else_could_do_it(store_world: StoreWorld) -> None:
    _mixture(store_world)
    now = store_world.clock.now_micros
    store_world.add(store_world.job("later", task="z", delay=10.0))
    me = store_world.new_worker(tasks=["mine"], ttl=60.0)
    store_world.new_worker(tasks=["p", "q"], ttl=60.0)
    store_world.new_worker(tasks=["gone"], ttl=5.0)
    store_world.clock.advance(5.0)

    outlook = store_world.store.outlook(me, "run-1").result()

    assert outlook.open_by_task == {
        "x": {JobState.QUEUED: 1, JobState.IN_PROGRESS: 1},
        "y": {JobState.WAITING: 1},
        "z": {JobState.QUEUED: 1},
    }
    assert outlook.next_due_at == now + 10_000_000
    assert outlook.served_elsewhere == {"x", "y", "p", "q"}
    assert outlook.suspects == 0


def test_the_outlook_counts_the_errors_of_a_run(store_world: StoreWorld) -> None:
    mine = store_world.new_worker(run_id="mine")
    other = store_world.new_worker(run_id="other")
    store_world.add(*"abcd")
    jobs = store_world.take(mine)
    store_world.fail(mine, jobs["a"], max_attempts=1)
    store_world.ack(mine, jobs["b"], JobState.ERROR, error=TROUBLE)
    store_world.ack(mine, jobs["c"])
    store_world.give_back(mine, [jobs["d"]])
    store_world.fail(other, store_world.take_one(other), give_up=True)

    def errors(run_id: str) -> int:
        ended = store_world.store.outlook(mine, run_id).result().ended_in_run
        return ended.get(JobState.ERROR, 0)

    assert (errors("mine"), errors("other"), errors("unknown")) == (2, 1, 0)


def test_the_outlook_counts_suspects_and_crashes(store_world: StoreWorld) -> None:
    store_world.add("a")
    worker = store_world.new_worker()
    store_world.reap(worker, [store_world.take_one(worker)])
    before = store_world.store.outlook(worker, "run-1").result()
    worker = store_world.new_worker()
    store_world.reap(worker, [store_world.take_one(worker, quarantine=True)], max_crashes=1)
    after = store_world.store.outlook(worker, "run-1").result()

    assert (before.suspects, before.ended_in_run) == (1, {})
    assert (after.suspects, after.ended_in_run) == (0, {JobState.ERROR: 1})


def test_an_expired_worker_is_no_help_elsewhere(store_world: StoreWorld) -> None:
    store_world.new_worker(tasks=["gone"])
    store_world.clock.advance(TTL_SECONDS)
    me = store_world.new_worker(tasks=["mine"])

    assert store_world.store.outlook(me, "run-1").result().served_elsewhere == frozenset()


def test_a_sound_store_has_no_broken_invariants(store_world: StoreWorld) -> None:
    _mixture(store_world)

    assert store_world.store.check().result() == []


def test_a_closed_store_refuses_calls_and_may_be_closed_again(store_world: StoreWorld) -> None:
    store_world.add("a")

    store_world.store.close()
    store_world.store.close()

    refusal(store_world.store.enqueue([store_world.job("b")]), StoreClosed)
    refusal(store_world.store.job("a"), StoreClosed)


def test_the_oldest_ready_job_may_be_of_low_priority_or_stopped_by_a_limit(
    store_world: StoreWorld,
) -> None:
    store_world.caps = {"host:a": 1}
    store_world.add(store_world.job("holder", limit_keys=["host:a"], group="x"))
    worker = store_world.new_worker()
    held = store_world.take_one(worker)
    store_world.add(store_world.job("stopped", limit_keys=["host:a"], group="x"))
    assert store_world.take_all(worker) == {}  # its lane is found full
    store_world.clock.advance(4.0)
    store_world.add("low")
    store_world.clock.advance(2.0)
    store_world.add(store_world.job("high", priority=9))

    ages = [store_world.store.stats().result().oldest_ready_seconds]
    store_world.cancel("stopped")
    ages.append(store_world.store.stats().result().oldest_ready_seconds)
    store_world.cancel("low")
    ages.append(store_world.store.stats().result().oldest_ready_seconds)

    assert ages == [6.0, 2.0, 0.0]
    assert store_world.ack(worker, held) is Verdict.ACCEPTED


def test_a_list_of_one_state_is_whole_and_in_the_order_of_ids(store_world: StoreWorld) -> None:
    """Queued jobs are delayed, ready, or back after a retry; pages of two are put together."""
    store_world.add("b", "a", store_world.job("late", delay=9.0), "gone")
    worker = store_world.new_worker()
    store_world.run(worker, "gone")
    store_world.add(store_world.job("w2", after=[Edge("b")]), "c")
    store_world.add(store_world.job("w1", after=[Edge("a")]), store_world.job("low", priority=-5))

    def listed(state: JobState) -> list[str]:
        found: list[Job] = []
        wanted, last = JobFilter(state=state), JobId(0)
        while page := store_world.store.jobs(wanted, last, 2).result():
            found += page
            last = page[-1].id
        assert [job.id for job in found] == sorted(job.id for job in found)
        return [job.key for job in found]

    assert listed(JobState.QUEUED) == ["b", "a", "late", "c", "low"]
    assert listed(JobState.WAITING) == ["w2", "w1"]
    assert listed(JobState.DONE) == ["gone"]
    assert listed(JobState.ERROR) == []


def test_holders_of_limit_keys_are_counted(store_world: StoreWorld) -> None:
    store_world.add(
        store_world.job("a", limit_keys=["host:x", "user:u"]),
        store_world.job("b", limit_keys=["host:x"]),
        store_world.job("c"),
    )
    worker = store_world.new_worker()
    jobs = store_world.take_all(worker)

    assert store_world.store.holders(10).result() == {"host:x": 2, "user:u": 1}
    assert store_world.store.holders(1).result() == {"host:x": 2}
    store_world.give_back(worker, jobs.values())
    assert store_world.store.holders(10).result() == {}
