# SPDX-License-Identifier: Apache-2.0
"""Which jobs does a store accept, and in which state do they begin?"""

from __future__ import annotations

from penstock.errors import EnqueueRefused
from penstock.model.job import (
    BATCH_JOBS_MAX,
    Edge,
    ErrorCategory,
    JobKind,
    JobState,
    NewJob,
    finished,
)
from tests.contract.world import StoreWorld, refusal


def test_a_new_job_is_queued_and_remembers_everything(store_world: StoreWorld) -> None:
    job = store_world.job(
        "every/thing ✓",
        task="crawl",
        group="site-ä",
        limit_keys=["host:b", "host:a"],
        priority=-3,
        payload='{"url":"https://example.org/\\u00e9","n":[1,2.5,null,true]}',
        partition="2025-06-01",
        plan_id="plan-1",
        level=2,
    )

    report = store_world.store.enqueue([job]).result()

    assert report.created == {"every/thing ✓"}
    assert report.existing == frozenset()
    view = store_world.view("every/thing ✓")
    assert (view.task, view.group, view.partition) == ("crawl", "site-ä", "2025-06-01")
    assert (view.limit_keys, view.priority) == (("host:a", "host:b"), -3)
    assert view.payload == job.payload
    assert (view.plan_id, view.level) == ("plan-1", 2)
    assert (view.state, view.suspect, view.pending) == (JobState.QUEUED, False, 0)
    assert (view.token, view.worker, view.attempts, view.crashes) == (0, None, 0, 0)
    assert view.created_at == view.available_at == store_world.clock.now_micros
    assert (view.result, view.last_error, view.deferred_since) == (None, None, None)
    assert (view.started_at, view.finished_at) == (None, None)


def test_a_job_keeps_its_kind_alone_in_a_batch_and_when_it_is_leased(
    store_world: StoreWorld,
) -> None:
    jobs = [
        NewJob(key=f"{kind}-{n}", task=f"of {kind}", kind=kind, payload="{}", group="g")
        for kind in JobKind
        for n in range(3)
    ]
    for job in jobs[::3]:
        store_world.add(job)

    store_world.add(*jobs)

    worker = store_world.new_worker(tuple(job.task for job in jobs))
    leased = store_world.take_all(worker)
    for job in jobs:
        assert store_world.view(job.key).kind is job.kind
        assert leased[job.key].kind is job.kind


def test_the_first_job_of_a_key_wins_in_the_store(store_world: StoreWorld) -> None:
    store_world.add(store_world.job("a", payload='"first"'))

    report = store_world.add(store_world.job("a", payload='"second"'), "b")

    assert report.created == {"b"}
    assert report.existing == {"a"}
    assert store_world.view("a").payload == '"first"'


def test_a_key_that_stands_for_something_else_is_told(store_world: StoreWorld) -> None:
    kept = '{"n":1,"of":{"a":[1,2],"b":true}}'
    store_world.add(*(store_world.job(key, payload=kept) for key in "abcdef"))

    report = store_world.add(
        store_world.job("a", payload=kept),
        store_world.job("b", payload='{"of":{"b":true,"a":[1.0,2]},"n":1}'),
        store_world.job("c", payload='{"n":1,"of":{"a":[1,2],"b":1}}'),
        store_world.job("d", task="other", payload=kept),
        store_world.job("e", payload="{}"),
        store_world.job("f", payload=kept, group="other", priority=3),
        store_world.job("new", payload="1"),
        store_world.job("new", payload="2"),
    )

    assert report.created == {"new"}
    assert report.existing == {*"abcdef"}
    assert report.differing == {"c", "d", "e", "new"}
    assert store_world.add(store_world.job("new", payload="1")).differing == frozenset()
    assert store_world.add(store_world.job("new", payload="2")).differing == {"new"}


def test_the_first_job_of_a_key_wins_inside_a_batch(store_world: StoreWorld) -> None:
    first = store_world.job("a", payload='"first"', group="one")
    second = store_world.job("a", payload='"second"', group="two")

    report = store_world.add(first, second)

    assert report.created == {"a"}
    assert report.existing == frozenset()
    assert store_world.view("a").payload == '"first"'
    assert store_world.store.stats().result().states[JobState.QUEUED] == 1


def test_a_key_is_remembered_after_its_job_has_ended(store_world: StoreWorld) -> None:
    store_world.add("a")
    store_world.run(store_world.new_worker(), "a")

    report = store_world.add("a")

    assert report.existing == {"a"}
    assert store_world.state("a") is JobState.DONE


def test_an_empty_batch_changes_nothing(store_world: StoreWorld) -> None:
    report = store_world.add()

    assert report.created == report.existing == frozenset()


def test_a_batch_of_the_largest_size_is_accepted(store_world: StoreWorld) -> None:
    report = store_world.add(*(f"job-{n}" for n in range(BATCH_JOBS_MAX)))

    assert len(report.created) == BATCH_JOBS_MAX
    assert store_world.store.stats().result().states[JobState.QUEUED] == BATCH_JOBS_MAX


def test_a_batch_above_the_largest_size_is_refused_whole(store_world: StoreWorld) -> None:
    batch = [store_world.job(f"job-{n}") for n in range(BATCH_JOBS_MAX + 1)]

    refusal(store_world.store.enqueue(batch), EnqueueRefused)

    assert store_world.store.job("job-0").result() is None


def test_an_edge_to_an_unknown_key_refuses_the_whole_batch(store_world: StoreWorld) -> None:
    batch = [store_world.job("a"), store_world.job("b", after=[Edge("nowhere")])]

    error = refusal(store_world.store.enqueue(batch), EnqueueRefused)

    assert "'nowhere'" in str(error)
    assert store_world.store.job("a").result() is None
    assert store_world.store.job("b").result() is None
    assert store_world.store.stats().result().groups_total == 0


def test_an_edge_to_itself_is_refused(store_world: StoreWorld) -> None:
    refusal(store_world.store.enqueue([store_world.job("a", after=[Edge("a")])]), EnqueueRefused)

    assert store_world.store.job("a").result() is None


def test_an_edge_to_a_later_job_of_the_batch_is_refused(store_world: StoreWorld) -> None:
    batch = [store_world.job("a", after=[Edge("b")]), store_world.job("b")]

    refusal(store_world.store.enqueue(batch), EnqueueRefused)

    assert store_world.store.job("b").result() is None


def test_a_refused_batch_can_be_corrected_and_sent_again(store_world: StoreWorld) -> None:
    child = store_world.job("b", after=[Edge("a")])
    refusal(store_world.store.enqueue([child]), EnqueueRefused)

    report = store_world.add("a", child)

    assert report.created == {"a", "b"}


def test_an_edge_to_an_earlier_job_of_the_batch_makes_it_wait(store_world: StoreWorld) -> None:
    store_world.add("a", store_world.job("b", after=[Edge("a")]))

    view = store_world.view("b")
    assert (view.state, view.pending) == (JobState.WAITING, 1)


def test_edges_of_a_job_that_exists_are_ignored(store_world: StoreWorld) -> None:
    store_world.add("a", "b")

    report = store_world.add(store_world.job("b", after=[Edge("a"), Edge("nowhere")]))

    assert report.existing == {"b"}
    assert store_world.state("b") is JobState.QUEUED


def test_the_same_edge_twice_counts_once(store_world: StoreWorld) -> None:
    store_world.add("a", store_world.job("b", after=[Edge("a"), Edge("a")]))

    assert store_world.view("b").pending == 1


def test_of_two_edges_to_one_job_the_stricter_counts(store_world: StoreWorld) -> None:
    store_world.add(
        "a",
        store_world.job("b", after=[Edge("a"), finished("a")]),
        store_world.job("c", after=[finished("a"), Edge("a")]),
    )

    store_world.run(store_world.new_worker(), "a", JobState.ERROR)

    assert store_world.states("b", "c") == [JobState.SKIPPED, JobState.SKIPPED]


def test_a_delayed_job_is_leased_when_it_is_due_and_not_before(store_world: StoreWorld) -> None:
    store_world.add(store_world.job("later", delay=5.0))
    worker = store_world.new_worker()
    due_at = store_world.clock.now_micros + 5_000_000

    early = store_world.lease(worker)
    store_world.clock.advance(4.999_999)
    still_early = store_world.lease(worker)
    store_world.clock.advance(0.000_001)
    due = store_world.lease(worker)

    assert (early.jobs, early.next_due_at, early.more) == ([], due_at, False)
    assert (still_early.jobs, still_early.next_due_at) == ([], due_at)
    assert [job.key for job in due.jobs] == ["later"]
    assert due.next_due_at is None
    assert store_world.view("later").available_at == due_at


def test_a_negative_delay_is_none(store_world: StoreWorld) -> None:
    store_world.add(store_world.job("now", delay=-5.0))

    assert store_world.view("now").available_at == store_world.clock.now_micros


def test_the_delay_of_a_dependant_counts_from_its_acceptance(store_world: StoreWorld) -> None:
    store_world.add("a", store_world.job("b", after=[Edge("a")], delay=60.0))
    worker = store_world.new_worker()
    due_at = store_world.clock.now_micros + 60_000_000

    store_world.clock.advance(20.0)
    store_world.run(worker, "a")
    released = store_world.lease(worker)
    worker = store_world.new_worker(ttl=100.0)
    store_world.clock.advance(40.0)

    assert (released.jobs, released.next_due_at) == ([], due_at)
    assert list(store_world.take(worker)) == ["b"]


def test_a_success_edge_to_a_job_that_is_done_is_satisfied(store_world: StoreWorld) -> None:
    store_world.add("a")
    store_world.run(store_world.new_worker(), "a")

    store_world.add(store_world.job("b", after=[Edge("a")]))

    assert (store_world.state("b"), store_world.view("b").pending) == (JobState.QUEUED, 0)


def test_a_success_edge_to_a_job_that_ended_otherwise_skips(store_world: StoreWorld) -> None:
    worker = store_world.new_worker()
    for key, end in (("bad", JobState.ERROR), ("left", JobState.SKIPPED)):
        store_world.add(key)
        store_world.run(worker, key, end)
    store_world.add("stopped")
    store_world.cancel("stopped")

    for key in ("bad", "left", "stopped"):
        store_world.add(store_world.job(f"after-{key}", after=[Edge(key)]))

    for key, words in (
        ("bad", "upstream failed: bad"),
        ("left", "upstream skipped: left"),
        ("stopped", "upstream failed: stopped"),
    ):
        view = store_world.view(f"after-{key}")
        assert (view.state, view.pending) == (JobState.SKIPPED, 0)
        assert view.finished_at == store_world.clock.now_micros
        assert view.last_error is not None
        assert view.last_error.category is ErrorCategory.OWN
        assert view.last_error.kind == "upstream"
        assert view.last_error.message == words


def test_a_finished_edge_to_a_job_that_ended_is_satisfied(store_world: StoreWorld) -> None:
    worker = store_world.new_worker()
    for key, end in (("a", JobState.DONE), ("b", JobState.SKIPPED), ("c", JobState.ERROR)):
        store_world.add(key)
        store_world.run(worker, key, end)
    store_world.add("d")
    store_world.cancel("d")

    store_world.add(store_world.job("e", after=[finished(key) for key in "abcd"]))

    assert (store_world.state("e"), store_world.view("e").pending) == (JobState.QUEUED, 0)


def test_a_skip_goes_down_a_chain_that_arrives_in_one_batch(store_world: StoreWorld) -> None:
    store_world.add("a")
    store_world.run(store_world.new_worker(), "a", JobState.ERROR)

    store_world.add(
        store_world.job("b", after=[Edge("a")]),
        store_world.job("c", after=[Edge("b")]),
        store_world.job("d", after=[finished("c")]),
    )

    assert store_world.states("b", "c", "d") == [
        JobState.SKIPPED,
        JobState.SKIPPED,
        JobState.QUEUED,
    ]
    assert store_world.why("c") == "upstream skipped: b"
