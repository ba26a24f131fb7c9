# SPDX-License-Identifier: Apache-2.0
"""What does a store tell of why a job stands where it does?"""

from __future__ import annotations

from penstock.model.job import Edge, EdgeKind, JobState, finished
from penstock.model.views import Dependency, HeldKey, Holder, JobContext
from penstock.stores.protocol import DEPENDENCIES_SHOWN, HOLDERS_SHOWN
from tests.contract.world import StoreWorld, ref


def _of(world: StoreWorld, key: str) -> JobContext:
    found = world.store.job_context(key).result()
    assert found is not None
    return found


def test_circumstances_of_an_unknown_key_are_none(store_world: StoreWorld) -> None:
    assert store_world.store.job_context("x").result() is None


def test_circumstances_of_a_free_job_are_its_row_and_the_time(store_world: StoreWorld) -> None:
    store_world.add("a")

    found = _of(store_world, "a")

    assert found.job == store_world.view("a")
    assert found.now == store_world.clock.now_micros
    assert (found.dependencies, found.skipped_by, found.detached, found.held) == ((), None, (), ())


def test_dependencies_are_told_with_their_state_open_ones_first(store_world: StoreWorld) -> None:
    store_world.add("a", "b", "c")
    edges = (Edge("a"), finished("b"), Edge("c"))
    store_world.add(store_world.job("d", after=edges))
    store_world.run(store_world.new_worker(), "a")
    store_world.settle()

    assert _of(store_world, "d").dependencies == (
        Dependency("b", EdgeKind.FINISHED, JobState.QUEUED, open=True),
        Dependency("c", EdgeKind.SUCCESS, JobState.QUEUED, open=True),
        Dependency("a", EdgeKind.SUCCESS, JobState.DONE, open=False),
    )


def test_a_bounded_number_of_dependencies_is_told(store_world: StoreWorld) -> None:
    names = [f"p{n:03}" for n in range(DEPENDENCIES_SHOWN + 5)]
    store_world.add(*names)
    store_world.add(store_world.job("d", after=[Edge(name) for name in names]))

    found = _of(store_world, "d")

    assert [dependency.key for dependency in found.dependencies] == names[:DEPENDENCIES_SHOWN]
    assert found.job.pending == len(names)


def test_a_skipped_job_names_the_one_because_of_which_it_was(store_world: StoreWorld) -> None:
    store_world.add("a")
    store_world.add(store_world.job("b", after=[Edge("a")]))
    store_world.run(store_world.new_worker(), "a", JobState.ERROR)
    store_world.settle()

    found = _of(store_world, "b")

    assert (found.job.state, found.skipped_by) == (JobState.SKIPPED, "a")


def test_holders_of_a_limit_key_are_told_with_worker_and_time(store_world: StoreWorld) -> None:
    store_world.caps["host:x"] = 1
    store_world.add(
        store_world.job("a", limit_keys=["host:x", "host:y"], priority=1),
        store_world.job("b", limit_keys=["host:x", "host:y"]),
    )
    worker = store_world.new_worker()
    store_world.clock.advance(1)
    leased_at = store_world.clock.now_micros
    store_world.take_all(worker)
    store_world.clock.advance(1)

    holder = Holder("a", worker, leased_at, detached=False)
    assert _of(store_world, "b").held == (
        HeldKey("host:x", 1, (holder,)),
        HeldKey("host:y", 1, (holder,)),
    )


def test_a_lease_that_is_detached_is_told_as_such(store_world: StoreWorld) -> None:
    store_world.add(
        store_world.job("a", limit_keys=["host:x"], priority=1),
        store_world.job("b", limit_keys=["host:x"]),
    )
    worker = store_world.new_worker()
    job = store_world.take(worker, 1)["a"]
    store_world.cancel("a")

    assert _of(store_world, "a").detached == (worker,)
    holder = Holder("a", worker, None, detached=True)
    assert _of(store_world, "b").held == (HeldKey("host:x", 1, (holder,)),)
    store_world.store.release(worker, [ref(job)]).result()
    assert _of(store_world, "a").detached == ()
    assert _of(store_world, "b").held == (HeldKey("host:x", 0, ()),)


def test_a_bounded_number_of_holders_is_told_and_all_are_counted(store_world: StoreWorld) -> None:
    count = HOLDERS_SHOWN + 3
    names = [f"j{n:02}" for n in range(count)]
    store_world.add(*(store_world.job(name, limit_keys=["host:x"]) for name in names))
    store_world.take_all(store_world.new_worker())

    (held,) = _of(store_world, "j00").held

    assert held.count == count
    assert [holder.key for holder in held.holders] == names[:HOLDERS_SHOWN]


def test_workers_are_told_with_the_tasks_that_they_know(store_world: StoreWorld) -> None:
    store_world.new_worker(["work", "play"])

    (worker,) = store_world.store.workers().result()

    assert worker.tasks == ("work", "play")
