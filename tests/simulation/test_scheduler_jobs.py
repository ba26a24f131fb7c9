# SPDX-License-Identifier: Apache-2.0
"""Do the leases of a worker's jobs come back, whatever is stopped or cancelled at any step?"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from penstock import Context, Penstock
from penstock.model.job import JobState
from penstock.worker.parts import Stopping
from penstock.worker.worker import Worker
from tests.depth import depth
from tests.simulation.scheduler_world import (
    Steps,
    assert_accounted,
    hidden_scheduler_resource_waiters,
)
from tests.unit.worker.worker_world import World, simulate

SLOTS = {"async_slots": 2, "thread_slots": 1}
JOBS = 7
AFTER_SECONDS = 30.0  # what was left behind has ended by then

#: What happens at a step: to the worker, its run, and the task that makes the step.
Act = Callable[[Worker, asyncio.Task[Any], asyncio.Task[Any]], object]


def shop() -> Penstock:
    app = Penstock("jobs")

    @app.task(max_attempts=3)
    async def work(ctx: Context, n: int) -> None:
        try:
            await asyncio.sleep(0)
            await asyncio.sleep(0.3)
            if n == 2 and ctx.job.attempt == 1:
                raise ValueError("once")
        finally:
            await asyncio.sleep(0.1)

    @app.task()
    def threaded(ctx: Context) -> None: ...

    return app


def run_disturbed(seed: int | None, at: int, act: Act) -> tuple[int, set[JobState]]:
    """Run some jobs and do this at the step of that number; how many steps, and which states."""

    async def main(world: World) -> tuple[int, set[JobState]]:
        for n in range(JOBS - 1):
            world.enqueue("work", f"work-{n}", group=f"g{n % 2}", n=n)
        world.enqueue("threaded", "threaded")
        worker = world.worker()
        running: list[asyncio.Task[Any]] = []
        steps = Steps(at, lambda stepping: act(worker, running[0], stepping))
        running.append(world.start(worker))
        with contextlib.suppress(asyncio.CancelledError):
            await running[0]
        taken = steps.count
        asyncio.get_running_loop().set_task_factory(None)
        await asyncio.sleep(AFTER_SECONDS)

        controller = worker._window.scheduler.controller
        assert controller.leases == 0, controller
        assert controller.view().leased_resources == {}
        assert_accounted(world.sink.events)
        assert hidden_scheduler_resource_waiters(world.sink.events) == 0
        return taken, set(world.states().values())

    return simulate(shop(), main, seed=seed, runtime=SLOTS)


def nothing(*_: object) -> None: ...


def cancel_body(worker: Worker, _: asyncio.Task[Any], stepping: asyncio.Task[Any]) -> None:
    bodies = [attempt.aio_task for attempt in worker._executor.running.values()]
    if stepping in bodies:
        stepping.cancel()


@pytest.mark.parametrize("seed", depth(quick=[None, 0], soak=[None, *range(10)]))
def test_a_body_that_is_cancelled_at_any_step_gives_its_slot_back(seed: int | None) -> None:
    print(f"seed {seed}")
    steps, _ = run_disturbed(seed, 0, nothing)
    assert steps > 50
    for at in range(1, steps + 1):
        _, states = run_disturbed(seed, at, cancel_body)
        assert states <= {JobState.DONE, JobState.ERROR}, at


@pytest.mark.parametrize("how", Stopping)
def test_a_worker_that_is_stopped_at_any_step_gives_everything_back(how: Stopping) -> None:
    steps, _ = run_disturbed(1, 0, nothing)
    for at in range(1, steps + 1):
        _, states = run_disturbed(1, at, lambda worker, *_: worker.stop(how))
        assert JobState.IN_PROGRESS not in states, at


def test_a_run_that_is_cancelled_at_any_step_gives_its_slots_back() -> None:
    steps, _ = run_disturbed(2, 0, nothing)
    for at in range(1, steps + 1):
        run_disturbed(2, at, lambda _, running, __: running.cancel())
