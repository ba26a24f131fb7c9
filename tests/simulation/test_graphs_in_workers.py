# SPDX-License-Identifier: Apache-2.0
"""A job that runs a graph on the scheduler of its worker, beside plain jobs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from penstock import Context, Penstock
from penstock.definitions.task import ROW_GROUP, Task, TaskOptions
from penstock.events.kinds import Correlation, SchedulerEventKind
from penstock.events.kinds import current as current_correlation
from penstock.model.job import JobState
from penstock.model.task import (
    SUBMISSION,
    SchedulableTask,
    SchedulerResourceRequest,
    TaskGroupSpec,
)
from penstock.model.worker import read_status
from penstock.planning.completion import CompletionTracker
from penstock.worker.graph_run import Again, GraphRun
from penstock.worker.parts import Stopping
from penstock.worker.worker import Worker
from tests.depth import depth
from tests.simulation.scheduler_world import Steps
from tests.unit.worker.worker_world import World, simulate

SLOTS = {"async_slots": 5}
ROWS = 6
ASYNC = SchedulerResourceRequest({"async": 1})


class GroupTask(Task[..., Any]):
    """A task as that of a row group is: it holds none of the slots that its cells need."""

    own_slot_kind = ROW_GROUP


class Shop:
    """An app with rows, made by graphs, and plain jobs."""

    def __init__(self) -> None:
        self.app = Penstock("tables")
        self.workers: list[Worker] = []
        self.began: list[tuple[float, str]] = []
        self.made: list[Any] = []
        self.seen: set[str | None] = set()
        self.puts_off = False  # every cell, once

        async def rows(ctx: Context, name: str) -> int:
            """Titles, and a review of each."""
            outside = current_correlation.get()
            assert isinstance(outside, Correlation)
            table = TaskGroupSpec(f"table:{name}")
            nodes: dict[Any, list[Any]] = {(name, n, "title"): [] for n in range(ROWS)}
            nodes |= {(name, n, "review"): [(name, n, "title")] for n in range(ROWS)}

            async def cell(task: SchedulableTask) -> None:
                self.began.append((asyncio.get_running_loop().time(), name))
                inside = current_correlation.get()
                self.seen.add(None if inside is None else inside.group)
                await asyncio.sleep(1.0)
                if self.puts_off and task.task_id not in put_off:
                    put_off.add(task.task_id)
                    raise ValueError("later")
                self.made.append(task.task_id)

            put_off: set[Any] = set()
            tracker = CompletionTracker(
                nodes, lambda node: SchedulableTask(node, None, table, ASYNC, part=node[2])
            )
            scheduler = self.workers[-1]._window.scheduler
            run = GraphRun(
                tracker,
                cell,
                lambda *_: Again(30.0),
                scheduler,
                outside.run_id,
                lends={SUBMISSION: 1},
            )
            snapshot = await run.run()
            assert current_correlation.get() is outside
            return snapshot.complete

        self.app.tasks["rows"] = GroupTask("rows", rows, TaskOptions(max_attempts=2))

        @self.app.task()
        async def work(ctx: Context, n: int) -> None:
            self.began.append((asyncio.get_running_loop().time(), "work"))
            await asyncio.sleep(1.0)


def assert_at_rest(worker: Worker) -> None:
    scheduler = worker._window.scheduler
    controller = scheduler.controller
    assert controller.leases == 0, controller
    assert controller.limit("async") == 5
    assert controller.limit(SUBMISSION) == worker._config.slots_in_all
    assert not len(scheduler.queue)
    assert not scheduler._owners


def test_cells_and_jobs_share_the_slots_of_a_worker() -> None:
    shop = Shop()

    async def main(world: World) -> None:
        world.enqueue("rows", "reviews", name="reviews")
        for n in range(20):
            world.enqueue("work", f"work-{n}", n=n)
        shop.workers.append(world.worker())
        totals = await shop.workers[0].run()

        assert totals.ended == 21
        assert set(world.states().values()) == {JobState.DONE}
        assert len(shop.made) == len(set(shop.made)) == 2 * ROWS
        assert shop.seen == {"table:reviews"}
        early = [who for at, who in shop.began if at <= shop.began[0][0] + 3.0]
        assert early.count("reviews") >= 5  # about half of the slots
        assert early.count("work") >= 5
        assert_at_rest(shop.workers[0])

    simulate(shop.app, main, runtime=SLOTS)


def test_tables_beside_each_other_end_whatever_waits() -> None:
    shop = Shop()

    async def main(world: World) -> None:
        for n in range(4):
            world.enqueue("rows", f"t{n}", name=f"t{n}")
        shop.workers.append(world.worker())
        await shop.workers[0].run()

        assert set(world.states().values()) == {JobState.DONE}
        assert len(shop.made) == len(set(shop.made)) == 4 * 2 * ROWS
        assert_at_rest(shop.workers[0])

    simulate(shop.app, main, runtime=SLOTS)


def test_a_worker_tells_how_many_jobs_it_holds_and_not_how_many_cells() -> None:
    shop = Shop()

    async def main(world: World) -> None:
        world.enqueue("rows", "reviews", name="reviews")
        shop.workers.append(world.worker())
        running = world.start(shop.workers[0])
        await asyncio.sleep(1.75)
        (view,) = world.store.workers().result()
        status = read_status(view.status)

        assert status is not None
        assert (status.running, status.waiting) == (1, 0)
        assert status.slots["async"].used == 5  # all by cells
        assert status.slots[ROW_GROUP].used == 1
        assert status.groups["table:reviews"].running == 5
        await running

    simulate(shop.app, main, runtime=SLOTS)


@pytest.mark.parametrize("tables", [1, 5, 9])
def test_graphs_whose_cells_are_all_put_off_leave_the_slots_to_other_jobs(tables: int) -> None:
    """More of them than there are slots keep nobody from theirs, nor each other's cells."""
    shop = Shop()
    shop.puts_off = True

    async def main(world: World) -> None:
        for n in range(tables):
            world.enqueue("rows", f"t{n}", name=f"t{n}")
        for n in range(30):
            world.enqueue("work", f"work-{n}", n=n, priority=-1)
        shop.workers.append(world.worker())
        await shop.workers[0].run()

        assert set(world.states().values()) == {JobState.DONE}
        assert not world.sink.of(SchedulerEventKind.WORKER_SPAWN_FAILED)
        assert_at_rest(shop.workers[0])

    simulate(shop.app, main, runtime=SLOTS)


@pytest.mark.parametrize("how", [Stopping.RECYCLE, Stopping.GRACEFUL])
def test_a_graph_that_runs_ends_although_its_worker_takes_nothing_new(how: Stopping) -> None:
    shop = Shop()

    async def main(world: World) -> None:
        world.enqueue("rows", "reviews", name="reviews")
        shop.workers.append(world.worker())
        running = world.start(shop.workers[0])
        await asyncio.sleep(1.5)
        shop.workers[0].stop(how)
        for n in range(9):
            world.enqueue("work", f"work-{n}", n=n)
        await running

        states = world.states()
        assert states.pop("reviews") is JobState.DONE
        assert set(states.values()) == {JobState.QUEUED}
        assert_at_rest(shop.workers[0])

    simulate(shop.app, main, runtime={**SLOTS, "grace_seconds": 30})


#: What happens at a step: to the worker and its run.
Act = Callable[[Worker, "asyncio.Task[Any]"], object]


def run_disturbed(at: int, act: Act, seed: int | None) -> int:
    """Run two tables and some jobs, and do this at the step of that number."""
    shop = Shop()

    async def main(world: World) -> int:
        for n in range(2):
            world.enqueue("rows", f"t{n}", name=f"t{n}")
            world.enqueue("work", f"work-{n}", n=n)
        shop.workers.append(worker := world.worker())
        running: list[asyncio.Task[Any]] = []
        steps = Steps(at, lambda stepping: act(worker, running[0]))
        running.append(world.start(worker))
        with contextlib.suppress(asyncio.CancelledError):
            await running[0]
        taken = steps.count
        asyncio.get_running_loop().set_task_factory(None)
        await asyncio.sleep(30.0)
        assert_at_rest(worker)
        assert JobState.IN_PROGRESS not in world.states().values()
        return taken

    return simulate(shop.app, main, seed=seed, runtime=SLOTS)


@pytest.mark.parametrize("seed", depth(quick=[None], soak=[None, *range(6)]))
@pytest.mark.parametrize("how", Stopping)
def test_a_worker_that_is_stopped_at_any_step_leaves_nothing_of_its_graphs(
    how: Stopping, seed: int | None
) -> None:
    steps = run_disturbed(0, lambda *_: None, seed)
    assert steps > 100
    for at in range(1, steps + 1, depth(quick=5, soak=1)):
        run_disturbed(at, lambda worker, _: worker.stop(how), seed)
