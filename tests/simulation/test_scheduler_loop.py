# SPDX-License-Identifier: Apache-2.0
"""Does every lease come back, whatever happens to a body, to the run, or to a listener?"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from penstock.errors import UsageError
from penstock.events.kinds import SchedulerEvent
from penstock.events.kinds import SchedulerEventKind as Kind
from penstock.model.task import SchedulableTask
from penstock.planning.completion import CompletionSnapshot
from penstock.testing import run_virtual
from tests.simulation.scheduler_world import GraphWorld, Steps

SEEDS = [None, 0, 1, 2]
CLEANUP_SECONDS = 0.25

#: Two roots, a diamond below them, and a chain beside.
GRAPH = {
    "root.a": [],
    "root.b": [],
    "left.a": ["root.a"],
    "right.a": ["root.a", "root.b"],
    "sink.a": ["left.a", "right.a"],
    "chain.a": ["root.b"],
    "chain.b": ["chain.a"],
}


class Trouble(Exception):
    """What a body of these tests raises."""


class Bodies:
    """Bodies that wait several times and clean up; some fail on their first attempt."""

    def __init__(self, *failing: str, always: tuple[str, ...] = ()) -> None:
        self._failing = set(failing)
        self._always = always
        self.ran: list[str] = []

    async def __call__(self, task: SchedulableTask) -> None:
        name = str(task.task_id)
        self.ran.append(name)
        try:
            await asyncio.sleep(0)
            await asyncio.sleep(1.0)
            if name in self._failing or name in self._always:
                self._failing.discard(name)
                raise Trouble(name)
            await asyncio.sleep(0.5)
        finally:
            await asyncio.sleep(CLEANUP_SECONDS)


async def finish(world: GraphWorld) -> CompletionSnapshot:
    snapshot = await world.go()
    world.assert_sound()
    assert world.gaps() == 0
    return snapshot


# ── How tasks end ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", SEEDS)
def test_a_graph_runs_to_its_end_and_every_lease_comes_back(seed: int | None) -> None:
    async def main() -> None:
        world = GraphWorld(GRAPH, Bodies())

        assert (await finish(world)).complete == len(GRAPH)
        assert world.count(Kind.TASK_LEASE_ACQUIRED) == len(GRAPH)
        assert world.count(Kind.QUEUE_DRAINED) == 1

    run_virtual(main(), seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_task_that_fails_drops_what_needs_it_and_the_rest_goes_on(seed: int | None) -> None:
    async def main() -> None:
        world = GraphWorld(GRAPH, Bodies(always=("root.a",)), attempts_max=2)

        snapshot = await finish(world)

        assert (snapshot.failed, snapshot.dropped, snapshot.complete) == (1, 3, 3)
        assert [*world.errors] == ["root.a"]
        assert world.count(Kind.SALVAGE_REDISPATCHED) == 1
        assert world.count(Kind.NON_RETRYABLE_DROPPED) == 1

    run_virtual(main(), seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_retry_is_seen_only_after_the_first_lease_is_accounted_for(seed: int | None) -> None:
    async def main() -> None:
        world = GraphWorld(GRAPH, Bodies("left.a", "chain.a"), attempts_max=2)
        held_at_retry: list[int] = []
        mark_retry = world.tracker.mark_retry

        def watched(task: SchedulableTask) -> None:
            held = [lease.item.task_id for lease in world.controller.held_leases()]
            held_at_retry.append(held.count(task.task_id))
            assert task.task_id not in world.scheduler.queue
            mark_retry(task)

        world.tracker.mark_retry = watched  # type: ignore[method-assign]
        snapshot = await finish(world)

        assert held_at_retry == [0, 0]
        assert snapshot.complete == len(GRAPH)
        for name in ("left.a", "chain.a"):
            steps = [
                (event.event_kind, event.correlation.task_execution_id)
                for event in world.sink.events
                if event.correlation.task == name
            ]
            released = steps.index((Kind.TASK_LEASE_RELEASED, f"{name}:1"))
            assert released < steps.index((Kind.SALVAGE_REDISPATCHED, f"{name}:1"))
            assert released < steps.index((Kind.TASK_LEASE_ACQUIRED, f"{name}:2"))

    run_virtual(main(), seed)


# ── Cancellation, at every step there is ──────────────────────────────────────────────────────


@dataclass
class Cancelled:
    """A run with a cancellation in it."""

    world: GraphWorld
    steps: int = 0
    at_seconds: float | None = None  # when the run itself was cancelled
    ended_early: bool = False
    ended_seconds: float = 0.0


def run_cancelled(seed: int | None, at: int, whom: str, width: int = 1) -> Cancelled:
    """Cancel one body, or the run, at the step of this number and those that follow it."""

    async def main() -> Cancelled:
        world = GraphWorld(GRAPH, Bodies("left.a", "chain.a"), attempts_max=2)
        result = Cancelled(world)
        running: list[asyncio.Task[Any]] = []

        def act(stepping: asyncio.Task[Any]) -> None:
            if whom == "run":
                running[0].cancel()
                if result.at_seconds is None:
                    result.at_seconds = world.clock.monotonic()
            elif stepping is not running[0]:
                stepping.cancel()

        steps = Steps(at, act, width)
        running.append(asyncio.get_running_loop().create_task(world.go()))
        try:
            await running[0]
        except asyncio.CancelledError:
            result.ended_early = True
        asyncio.get_running_loop().set_task_factory(None)
        assert asyncio.all_tasks() == {asyncio.current_task()}, "run() left a body behind"
        result.steps, result.ended_seconds = steps.count, world.clock.monotonic()
        return result

    return run_virtual(main(), seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("whom", ["body", "run"])
def test_a_cancellation_at_any_step_loses_no_lease(whom: str, seed: int | None) -> None:
    print(f"seed {seed}")
    steps = run_cancelled(seed, 0, whom).steps
    assert steps > 40
    ends = set()
    for at in range(1, steps + 1):
        found = run_cancelled(seed, at, whom)
        world = found.world
        world.assert_sound()
        assert world.gaps(found.at_seconds) == 0, at
        snapshot = world.tracker.snapshot()
        if found.ended_early:
            assert found.at_seconds is not None, at
            assert found.ended_seconds - found.at_seconds <= CLEANUP_SECONDS, at
        else:
            assert world.tracker.is_finished, at
            assert snapshot.failed == world.count(Kind.NON_RETRYABLE_DROPPED), at
        ends.add((found.ended_early, snapshot.complete))
    assert len(ends) > 2  # it made a difference when


@pytest.mark.parametrize("width", [2, 3, 200])
def test_a_run_that_is_cancelled_again_and_again_still_waits_for_its_bodies(width: int) -> None:
    for at in range(1, run_cancelled(None, 0, "run").steps + 1):
        run_cancelled(None, at, "run", width).world.assert_sound()


def test_a_body_that_was_cancelled_is_not_tried_again() -> None:
    async def main() -> None:
        async def body(task: SchedulableTask) -> None:
            if task.task_id == "root.a":
                raise asyncio.CancelledError

        world = GraphWorld({"root.a": [], "root.b": []}, body, attempts_max=3)
        snapshot = await finish(world)

        assert (snapshot.failed, snapshot.complete) == (1, 1)
        assert world.count(Kind.CANCELLED) == 1

    run_virtual(main())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_that_is_stopped_lets_its_bodies_end_and_starts_nothing(seed: int | None) -> None:
    for moment in (0.0, 0.5, 1.75, 2.0, 3.0, 5.25):

        async def main(moment: float = moment) -> None:
            bodies = Bodies()
            world = GraphWorld(GRAPH, bodies)
            running = asyncio.get_running_loop().create_task(world.go())
            await asyncio.sleep(moment)
            begun = len(bodies.ran)
            world.run.stop()
            snapshot = await running

            assert len(bodies.ran) - begun <= (0 if moment else 2)
            assert snapshot.complete == len(bodies.ran)
            assert world.errors == {}
            world.assert_sound()
            assert world.gaps(moment) == 0

        run_virtual(main(), seed)


# ── Starts that fail, selections that are stale ───────────────────────────────────────────────


class Unspawnable(GraphWorld):
    """Some starts fail, whatever becomes of the rest."""

    def breaks(self, names: dict[str, int], error: Callable[[], BaseException]) -> None:
        start = self.run.start

        def failing(task: SchedulableTask, *rest: Any) -> None:
            if names.get(str(task.task_id), 0):
                names[str(task.task_id)] -= 1
                raise error()
            start(task, *rest)

        self.run.start = failing  # type: ignore[assignment,method-assign]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_start_that_fails_gives_its_lease_back_and_is_tried_again(seed: int | None) -> None:
    async def main() -> None:
        world = Unspawnable(GRAPH, Bodies(), attempts_max=2)
        world.breaks({"root.a": 1, "sink.a": 1, "chain.b": 2}, lambda: OSError("no memory"))

        snapshot = await finish(world)

        assert (snapshot.complete, snapshot.failed) == (len(GRAPH) - 1, 1)
        assert world.count(Kind.WORKER_SPAWN_FAILED) == 4
        assert isinstance(world.errors["chain.b"], OSError)

    run_virtual(main(), seed)


def test_a_start_that_is_interrupted_gives_its_lease_back() -> None:
    async def main() -> None:
        world = Unspawnable(GRAPH, Bodies())
        world.breaks({"root.b": 1}, asyncio.CancelledError)

        with contextlib.suppress(asyncio.CancelledError):
            await world.go()
        world.assert_sound()

    run_virtual(main())


def test_a_loop_that_makes_no_tasks_gives_the_lease_back() -> None:
    async def main() -> None:
        def refuse(*_: Any, **__: Any) -> Any:
            raise RuntimeError("no more tasks")

        world = GraphWorld({"root.a": []}, Bodies())
        asyncio.get_running_loop().set_task_factory(refuse)
        snapshot = await world.go()
        asyncio.get_running_loop().set_task_factory(None)

        assert snapshot.failed == 1
        world.assert_sound()

    run_virtual(main())


@pytest.mark.parametrize("seed", range(8))
def test_a_queue_that_changes_between_selection_and_commit_costs_a_turn_and_no_lease(
    seed: int,
) -> None:
    print(f"seed {seed}")
    rand = random.Random(seed)

    async def main() -> None:
        names = [f"g{n % 3}.{n}" for n in range(30)]
        world = GraphWorld({name: [] for name in names}, Bodies(), capacity=4)
        queue, acquire = world.scheduler.queue, world.controller.try_acquire
        late = [f"late.{n}" for n in range(10)]
        done: set[str] = set()

        def meddling(item: SchedulableTask, view: Any) -> Any:
            answer = acquire(item, view)
            if late and rand.random() < 0.3:
                name = late.pop()
                queue.enqueue([world.task(name)])
                queue.discard(name)
                done.add(name)
            return answer

        world.controller.try_acquire = meddling  # type: ignore[assignment,method-assign]
        snapshot = await finish(world)

        assert snapshot.complete == len(names)
        assert world.count(Kind.STALE_SELECTION) == len(done) > 0

    run_virtual(main(), seed)


def test_whoever_changes_the_queue_for_ever_does_not_stop_the_loop() -> None:
    async def main() -> None:
        world = GraphWorld({"root.a": []}, Bodies())
        queue, acquire = world.scheduler.queue, world.controller.try_acquire
        meddles = True

        def meddling(item: SchedulableTask, view: Any) -> Any:
            if meddles:
                queue.enqueue([world.task("late.a")])
                queue.discard("late.a")
            return acquire(item, view)

        world.controller.try_acquire = meddling  # type: ignore[assignment,method-assign]
        running = asyncio.get_running_loop().create_task(world.go())
        for _ in range(50):
            await asyncio.sleep(0)
        meddles = False

        assert (await running).complete == 1
        assert world.count(Kind.STALE_SELECTION) > 10

    run_virtual(main())


# ── Listeners ─────────────────────────────────────────────────────────────────────────────────


def told(world: GraphWorld) -> list[tuple[str, float, str | None]]:
    return [
        (e.event_kind, e.captured_at_monotonic, e.correlation.task_execution_id)
        for e in world.sink.events
    ]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError, GeneratorExit])
def test_a_listener_that_raises_changes_nothing(
    error: type[BaseException], seed: int | None
) -> None:
    async def main(at: int) -> list[tuple[str, float, str | None]]:
        heard = 0

        def broken(_: SchedulerEvent) -> None:
            nonlocal heard
            heard += 1
            if heard == at:
                raise error

        world = GraphWorld(GRAPH, Bodies("left.a"), attempts_max=2, sinks=[broken])
        await finish(world)
        return told(world)

    undisturbed = run_virtual(main(0), seed)
    for at in range(1, len(undisturbed) + 1):
        assert run_virtual(main(at), seed) == undisturbed, at


@pytest.mark.parametrize("seed", SEEDS)
def test_a_listener_that_calls_back_changes_nothing(seed: int | None) -> None:
    async def main(calls_back: bool) -> list[tuple[str, float, str | None]]:
        worlds: list[GraphWorld] = []
        order: list[int] = []

        def nosy(event: SchedulerEvent) -> None:
            order.append(event.sequence)
            if calls_back:
                scheduler = worlds[0].scheduler
                scheduler.turn()
                scheduler.bottleneck.gates()
                scheduler.set_limit("unused", event.sequence)

        world = GraphWorld(GRAPH, Bodies("left.a"), attempts_max=2, sinks=[nosy])
        worlds.append(world)
        await finish(world)
        assert order == sorted(order)
        return [entry for entry in told(world) if entry[2] is not None]

    assert sorted(run_virtual(main(True), seed)) == sorted(run_virtual(main(False), seed))


def test_listeners_hear_of_a_turn_when_it_is_over() -> None:
    async def main() -> None:
        worlds: list[GraphWorld] = []
        spawned: list[int] = []

        def watching(event: SchedulerEvent) -> None:
            if event.event_kind is Kind.TASK_LEASE_ACQUIRED:
                spawned.append(worlds[0].controller.leases)

        names = [f"root.{n}" for n in range(5)]
        world = GraphWorld({name: [] for name in names}, Bodies(), capacity=5, sinks=[watching])
        worlds.append(world)
        await finish(world)

        assert spawned == [5] * 5  # the first was told when all had started

    run_virtual(main())


def test_tasks_that_can_never_start_are_refused_with_the_reason() -> None:
    async def main() -> None:
        world = GraphWorld(
            {"big.a": [], "root.a": []},
            Bodies(),
            limits={"memory": 4},
            needs={"big": {"memory": 5}},
        )
        with pytest.raises(UsageError, match=r"1 task can never start .*memory.*limit 4"):
            await world.go()
        world.assert_sound()

    run_virtual(main())
