# SPDX-License-Identifier: Apache-2.0
"""What holds after a restore: who owned something before owns nothing now?"""

from __future__ import annotations

from penstock.errors import LeaseLost
from penstock.model.job import JobState
from penstock.model.lease import Verdict
from tests.contract.world import StoreWorld, ref, refusal


def test_voided_leases_are_ready_again_and_uncharged(store_world: StoreWorld) -> None:
    store_world.add(*"ab", store_world.job("later", delay=60.0))
    worker = store_world.new_worker()
    store_world.take(worker)

    count = store_world.store.void_leases(0).result()

    assert count == 2
    for key in "ab":
        view = store_world.view(key)
        assert (view.state, view.worker, view.suspect) == (JobState.QUEUED, None, False)
        assert (view.attempts, view.crashes) == (0, 0)
        assert store_world.outcomes(key) == ["lost"]
    assert store_world.outcomes("later") == []
    assert set(store_world.take_all(store_world.new_worker())) == {"a", "b"}


def test_who_held_a_lease_before_can_do_nothing_with_it(store_world: StoreWorld) -> None:
    store_world.add(*"abc")
    worker = store_world.new_worker()
    a, b, c = store_world.take(worker).values()

    store_world.store.void_leases(0).result()

    assert store_world.ack(worker, a) is Verdict.STALE
    assert store_world.fail(worker, b) is Verdict.STALE
    assert store_world.give_back(worker, [c]) == 0
    assert store_world.store.revoke(ref(a), "why").result() is Verdict.STALE
    assert store_world.reap(worker, [a, b, c]) == 0
    assert store_world.store.beat([worker], 30.0).result() == frozenset()
    refusal(store_world.store.lease(store_world.request(worker)), LeaseLost)
    assert store_world.store.workers().result() == []
    assert store_world.states(*"abc") == [JobState.QUEUED] * 3


def test_tokens_rise_above_every_one_before_and_above_the_one_given(
    store_world: StoreWorld,
) -> None:
    store_world.add("often", "failed", "queued")
    worker = store_world.new_worker()
    taken = store_world.take(worker)
    store_world.ack(worker, taken["failed"], JobState.ERROR)
    store_world.give_back(worker, [taken["often"], taken["queued"]])
    for _ in range(4):
        store_world.give_back(worker, store_world.take(worker).values())

    store_world.store.void_leases(3).result()  # below what was handed out: 5
    first = store_world.take(store_world.new_worker())
    store_world.store.void_leases(100).result()
    store_world.retry_failed()
    store_world.add("new")
    second = store_world.take_all(store_world.new_worker())

    assert {job.token for job in first.values()} == {6}
    assert set(second) == {"often", "failed", "queued", "new"}
    assert {job.token for job in second.values()} == {101}


def test_a_done_job_stays_done_and_its_end_stays_a_duplicate(store_world: StoreWorld) -> None:
    store_world.add("a")
    worker = store_world.new_worker()
    job = store_world.take_one(worker)
    store_world.ack(worker, job, result="1")

    store_world.store.void_leases(50).result()

    assert store_world.ack(worker, job, result="2") is Verdict.DUPLICATE
    assert (store_world.state("a"), store_world.view("a").result) == (JobState.DONE, "1")


def test_a_suspect_that_ran_alone_stays_one_and_is_not_charged(store_world: StoreWorld) -> None:
    store_world.add("a")
    worker = store_world.new_worker()
    store_world.reap(worker, [store_world.take_one(worker)])
    store_world.take_one(store_world.new_worker(), quarantine=True)

    assert store_world.store.void_leases(0).result() == 1

    view = store_world.view("a")
    assert (view.state, view.suspect, view.crashes) == (JobState.QUEUED, True, 0)
    assert store_world.outcomes("a") == ["lost", "lost"]


def test_limit_keys_of_voided_leases_have_room(store_world: StoreWorld) -> None:
    store_world.caps = {"host:x": 1}
    store_world.add(*(store_world.job(key, limit_keys=["host:x"]) for key in "ab"))
    worker = store_world.new_worker()
    assert set(store_world.take_all(worker)) == {"a"}

    store_world.store.void_leases(0).result()

    assert set(store_world.take_all(store_world.new_worker())) == {"a"}


def test_nothing_is_detached_in_a_voided_store(store_world: StoreWorld) -> None:
    store_world.caps = {"host:x": 1}
    store_world.add(*(store_world.job(key, limit_keys=["host:x"]) for key in "ab"))
    worker = store_world.new_worker()
    store_world.take_one(worker)
    store_world.cancel("a")
    assert store_world.take_all(worker) == {}  # its body may still run

    assert store_world.store.void_leases(0).result() == 0

    assert store_world.store.inbox(worker).result().detached == []
    assert set(store_world.take_all(store_world.new_worker())) == {"b"}


def test_voiding_a_store_without_leases_changes_no_job(store_world: StoreWorld) -> None:
    store_world.add("a")
    before = store_world.view("a")

    assert store_world.store.void_leases(0).result() == 0
    assert store_world.view("a") == before
