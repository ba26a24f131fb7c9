# SPDX-License-Identifier: Apache-2.0
"""Is every transition of the one table reached, and by the call that the table names?"""

from __future__ import annotations

from collections.abc import Callable

from penstock.model.job import (
    START_TRANSITIONS,
    TERMINAL,
    TRANSITIONS,
    UNIT_TRANSITIONS,
    Edge,
    JobState,
    finished,
)
from penstock.model.lease import Rearm
from penstock.model.schedule import UnitPlan
from tests.contract.dataset_words import draft, submit, take_locks
from tests.contract.unit_words import arm
from tests.contract.world import TROUBLE, StoreWorld

Path = Callable[[StoreWorld], object]


def _ended(state: JobState) -> Path:
    def path(world: StoreWorld) -> None:
        worker = world.new_worker()
        error = TROUBLE if state is JobState.ERROR else None
        world.ack(worker, world.take_one(worker), state, error=error)

    return path


def _leased(world: StoreWorld) -> None:
    world.take_one(world.new_worker())


def _stopped(world: StoreWorld) -> None:
    _leased(world)
    world.cancel("x")


def _rearmed(world: StoreWorld) -> None:
    worker = world.new_worker()
    at = world.clock.now_micros + 1
    world.ack(worker, world.take_one(worker), effects=[Rearm(at)])


def _upstream(state: JobState) -> Path:
    def path(world: StoreWorld) -> None:
        world.run(world.new_worker(), "parent", state)

    return path


def _start(world: StoreWorld, state: JobState) -> None:
    """Bring the job `x` into a state, the shortest way."""
    dependant = world.job("x", after=[Edge("parent")])
    match state:
        case JobState.WAITING:
            world.add("parent", dependant)
        case JobState.QUEUED:
            world.add("x")
        case JobState.IN_PROGRESS:
            world.add("x")
        case JobState.SKIPPED:
            world.add("parent", dependant)
            _upstream(JobState.ERROR)(world)
        case JobState.DONE | JobState.ERROR:
            world.add("x")
            _ended(state)(world)
        case _:
            raise AssertionError(f"nothing leaves {state}")


PATHS: dict[tuple[JobState, JobState], Path] = {
    (JobState.WAITING, JobState.QUEUED): _upstream(JobState.DONE),
    (JobState.WAITING, JobState.SKIPPED): _upstream(JobState.ERROR),
    (JobState.WAITING, JobState.CANCELLED): lambda world: world.cancel("x"),
    (JobState.QUEUED, JobState.IN_PROGRESS): _leased,
    (JobState.QUEUED, JobState.CANCELLED): lambda world: world.cancel("x"),
    (JobState.IN_PROGRESS, JobState.QUEUED): _rearmed,
    (JobState.IN_PROGRESS, JobState.DONE): _ended(JobState.DONE),
    (JobState.IN_PROGRESS, JobState.SKIPPED): _ended(JobState.SKIPPED),
    (JobState.IN_PROGRESS, JobState.ERROR): _ended(JobState.ERROR),
    (JobState.IN_PROGRESS, JobState.CANCELLED): _stopped,
    (JobState.DONE, JobState.QUEUED): lambda world: world.store.rerun(["x"]).result(),
    (JobState.SKIPPED, JobState.WAITING): lambda world: world.retry_failed(),
    (JobState.ERROR, JobState.QUEUED): lambda world: world.retry_failed(),
}


def _laid_aside(world: StoreWorld) -> None:
    world.store.pause_units("x").result()
    world.lease(world.new_worker())


UNIT_PATHS: dict[tuple[JobState, JobState], Path] = {
    **{(state, JobState.QUEUED): lambda world: arm(world, _unit(world)) for state in TERMINAL},
    (JobState.ERROR, JobState.CANCELLED): lambda world: world.store.retire_units(["x"]).result(),
    (JobState.QUEUED, JobState.WAITING): _laid_aside,
    (JobState.WAITING, JobState.QUEUED): lambda world: world.store.resume_units("x").result(),
}


def _begun(world: StoreWorld) -> None:
    world.store.begin_plan("p", "run-1").result()


START_PATHS: dict[tuple[JobState, JobState], Path] = {
    (JobState.QUEUED, JobState.DONE): _begun,
}


def test_every_transition_of_a_start_is_reached_by_its_call(store_world: StoreWorld) -> None:
    take_locks(store_world)
    draft(store_world)
    submit(store_world)
    table = {(before, after) for before, ways in START_TRANSITIONS.items() for after in ways}
    assert set(START_PATHS) == table
    for (before, after), path in START_PATHS.items():
        assert store_world.state("build:p:start") is before

        path(store_world)

        assert store_world.state("build:p:start") is after


def test_every_transition_of_the_table_has_a_path() -> None:
    table = {(before, after) for before, ways in TRANSITIONS.items() for after in ways}

    assert set(PATHS) == table
    of_units = {(before, after) for before, ways in UNIT_TRANSITIONS.items() for after in ways}
    assert set(UNIT_PATHS) == of_units


def test_every_transition_is_reached_by_its_call(store_world: StoreWorld) -> None:
    for (before, after), path in PATHS.items():
        _start(store_world, before)

        path(store_world)

        assert store_world.state("x") is after, f"{before} → {after}"
        store_world.cancel("x", "parent")
        for worker in store_world.store.workers().result():
            store_world.store.retire(worker.id).result()  # so that nothing is detached
        store_world.clock.advance(1.0)
        store_world.purge(store_world.clock.now_micros)


def test_every_transition_of_a_unit_is_reached_by_its_call(store_world: StoreWorld) -> None:
    for (before, after), path in UNIT_PATHS.items():
        arm(store_world, _unit(store_world))
        store_world.clock.advance(1.0)
        if before is JobState.CANCELLED:
            store_world.cancel("x")
        elif before is JobState.WAITING:
            _laid_aside(store_world)
        elif before is not JobState.QUEUED:
            _ended(before)(store_world)

        path(store_world)

        assert store_world.state("x") is after, f"{before} → {after}"


def _unit(world: StoreWorld) -> UnitPlan:
    now = world.clock.now_micros
    return UnitPlan(
        key="x",
        task="work",
        payload="{}",
        group="main",
        partition=None,
        timing=str(now),  # another one at each call: a unit that lives is due at once
        first_at=now,
    )


def test_nothing_but_a_retry_moves_a_job_that_has_ended(store_world: StoreWorld) -> None:
    worker = store_world.new_worker(ttl=1_000.0)
    store_world.add(*"abcd", *(store_world.job(f"after-{x}", after=[finished(x)]) for x in "abcd"))
    store_world.run(worker, "a")
    store_world.run(worker, "b", JobState.SKIPPED)
    store_world.run(worker, "c", JobState.ERROR)
    store_world.cancel("d")
    before = [store_world.view(key) for key in "abcd"]

    store_world.add(*"abcd")
    store_world.cancel(*"abcd")
    store_world.clock.advance(1.0)
    store_world.settle()

    assert [store_world.view(key) for key in "abcd"] == before
    assert not set(store_world.take_all(worker)) & set("abcd")
