# SPDX-License-Identifier: Apache-2.0
"""In which words do the rules of datasets speak to a store?"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from penstock.model.job import START, STEP, Edge, JobState, LeasedJob, NewJob, WorkerId
from penstock.model.lease import CommitLevel, Effect, StageManifest, Verdict
from penstock.model.plan import LocksTaken, PlanRow, PlanState
from penstock.stores.protocol import SliceRow
from tests.contract.world import StoreWorld

PRICES = "dataset:prices#root"
ALWAYS = (0, 2**62)
TTL = 30.0
LONG = 100_000.0  # seconds that a worker of these rules lives
_numbers = count(1)


def take_locks(
    world: StoreWorld,
    *names: str,
    run: str = "run-1",
    ttl: float = TTL,
    gone: Sequence[str] = (),
) -> LocksTaken:
    names = names or ("prices",)
    return world.store.take_locks(names, run, f"mark of {run}", ttl, gone).result()


def draft(
    world: StoreWorld, plan_id: str = "p", *, run: str = "run-1", digest: str = "d"
) -> PlanRow:
    row = PlanRow(
        id=plan_id,
        app="shop",
        digest=digest,
        run_id=run,
        root="root",
        document='{"targets":["prices"]}',
        levels=2,
        jobs=3,
    )
    assert world.store.add_plan(row).result()
    return row


def running(world: StoreWorld, *plans: str, run: str = "run-1") -> None:
    """Plans of a run that has the lock."""
    taken = take_locks(world, *(f"lock of {plan}" for plan in plans or ("p",)), run=run)
    assert taken.taken
    for plan in plans or ("p",):
        draft(world, plan, run=run)
        assert world.store.begin_plan(plan, run).result()


def state_of(world: StoreWorld, plan_id: str = "p") -> PlanState:
    plan = world.store.plan(plan_id).result()
    assert plan is not None, f"no plan {plan_id!r}"
    return plan.state


def stage(
    at: int,
    document: str = "{}",
    *,
    plan: str = "p",
    level: int = 0,
    dataset: str = "prices",
    version: str = "1",
    basis: int = 0,
    commit: bool = False,
) -> StageManifest:
    return StageManifest(
        dataset=dataset,
        at=at,
        version=version,
        basis=basis,
        document=document,
        plan_id=plan,
        level=level,
        commit=commit,
    )


def builder(world: StoreWorld) -> WorkerId:
    """A worker that knows slices and steps, and lives long."""
    return world.new_worker(("work", "note", PRICES, STEP), ttl=LONG)


def leased(world: StoreWorld, worker: WorkerId) -> LeasedJob:
    """A job of no plan, to end with effects."""
    world.add(world.job(f"note-{next(_numbers)}", task="note"))
    return world.take_one(worker)


def write(world: StoreWorld, *effects: Effect) -> Verdict:
    """End a job with these effects."""
    worker = world.new_worker(("note",), ttl=LONG)
    return world.ack(worker, leased(world, worker), effects=effects)


def commit(world: StoreWorld, *ats: int, plan: str = "p", level: int = 0) -> None:
    """Build slices and commit their level."""
    staged = [stage(at, f'"{plan} {at}"', plan=plan, level=level) for at in ats]
    assert write(world, *staged, CommitLevel(plan, level)) is Verdict.ACCEPTED


def visible(world: StoreWorld, dataset: str = "prices") -> list[SliceRow]:
    return world.store.manifests(dataset, *ALWAYS, 1_000).result().rows


def seq(world: StoreWorld) -> int:
    """The store's commit number."""
    return world.store.manifests("", 0, 1, 1).result().seq


def tidy(world: StoreWorld, limit: int = 2) -> int:
    """Tidy up until there is nothing left; how many rows were visited."""
    visited = 0
    for _ in range(1_000):
        progress = world.store.tidy_manifests(limit).result()
        visited += progress.count
        if not progress.more:
            return visited
    raise AssertionError("tidying comes to no end")


def plan_job(
    world: StoreWorld,
    name: str,
    *,
    plan: str = "p",
    level: int | None = 0,
    after: Sequence[Edge] = (),
    task: str = PRICES,
) -> NewJob:
    return world.job(f"build:{plan}:{name}", task=task, plan_id=plan, level=level, after=after)


def submit(world: StoreWorld, *jobs: NewJob, plan: str = "p") -> None:
    """Enqueue the start of a plan, and jobs of it."""
    world.add(plan_job(world, "start", plan=plan, level=None, task=START), *jobs)


def run_ends(world: StoreWorld, worker: WorkerId, **ends: JobState) -> None:
    """End jobs of plan `p` by name."""
    jobs = world.take_all(worker)
    for name, state in ends.items():
        world.ack(worker, jobs[f"build:p:{name}"], state)
    world.settle()
