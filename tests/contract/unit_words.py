# SPDX-License-Identifier: Apache-2.0
"""In which words do the rules of schedules speak to a store?"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.model.job import LeasedJob, WorkerId
from penstock.model.lease import Effect, Rearm, Verdict
from penstock.model.schedule import ArmReport, UnitPlan, UnitView
from tests.contract.world import StoreWorld

APP = "watch"
POLL = "schedule:poll"
SECOND = 1_000_000  # microseconds
LONG = 100_000.0  # seconds that a worker of these rules lives


def unit(
    world: StoreWorld,
    partition: str | None = "a",
    *,
    task: str = POLL,
    timing: str = "every 10 s",
    first: float = 0.0,
    payload: str = "{}",
    group: str | None = None,
    limit_keys: Sequence[str] = (),
    period: float | None = None,
) -> UnitPlan:
    """A plan for a unit whose first tick is in so many seconds."""
    return UnitPlan(
        key=task if partition is None else f"{task}:{partition}",
        task=task,
        payload=payload,
        group=group or partition or task,
        partition=partition,
        limit_keys=tuple(sorted(limit_keys)),
        timing=timing,
        period=None if period is None else round(period * SECOND),
        first_at=world.clock.now_micros + round(first * SECOND),
    )


def arm(world: StoreWorld, *units: UnitPlan, app: str = APP) -> ArmReport:
    return world.store.arm(app, units).result()


def seen(world: StoreWorld, partition: str | None = "a", *, task: str = POLL) -> UnitView:
    key = task if partition is None else f"{task}:{partition}"
    view = world.store.unit(key).result()
    assert view is not None, f"no unit {key!r}"
    return view


def ticker(world: StoreWorld, *tasks: str) -> WorkerId:
    """A worker that knows schedules, and lives long."""
    return world.new_worker(tasks or (POLL,), ttl=LONG)


def tick(
    world: StoreWorld,
    worker: WorkerId,
    job: LeasedJob,
    *,
    every: float = 10.0,
    missed: int = 0,
    period: float | None = None,
    effects: Sequence[Effect] = (),
) -> Verdict:
    """End a tick well: the next is so many seconds after this one."""
    at = job.due_at + round(every * SECOND)
    within = None if period is None else round(period * SECOND)
    return world.ack(worker, job, effects=[*effects, Rearm(at, missed, within)])


def armed_and_leased(
    world: StoreWorld, partition: str = "a", limit_keys: Sequence[str] = ()
) -> tuple[WorkerId, LeasedJob]:
    """A unit that is due and runs."""
    arm(world, unit(world, partition, limit_keys=limit_keys))
    worker = ticker(world)
    return worker, world.take_one(worker)
