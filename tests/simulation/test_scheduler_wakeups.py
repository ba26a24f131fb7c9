# SPDX-License-Identifier: Apache-2.0
"""Is no wake-up lost, is the reason told why nothing starts, and do the times add up?"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Hashable

import pytest

from penstock.admission.tasks.policies import (
    BoundedBorrowTaskAdmissionPolicy,
    ProviderAwareTaskAdmissionPolicy,
    StrictFairTaskAdmissionPolicy,
    TaskAdmissionPolicy,
)
from penstock.clock import Clock
from penstock.events.kinds import SchedulerEventKind as Kind
from penstock.model.request import PressureSnapshot
from penstock.model.task import SchedulableTask
from penstock.testing import VirtualClock, run_virtual
from penstock.worker.bottleneck import GATES_MAX
from penstock.worker.scheduler import AsyncTaskScheduler
from tests.simulation.scheduler_world import GraphWorld

SEEDS = [None, *range(6)]


class FakePressure:
    """A provider that cools down until a moment, or has so many waiters."""

    def __init__(self, clock: Clock, cool_until: float = 0.0, waiters: int = 0) -> None:
        self._clock = clock
        self.cool_until = cool_until
        self.waiters = waiters

    def snapshot(self, key: Hashable) -> PressureSnapshot | None:
        rest = max(0.0, self.cool_until - self._clock.monotonic())
        return PressureSnapshot(limit=1, waiters=self.waiters, cooldown_seconds=rest)


def bodies_of(seconds: float, begun: dict[str, float]) -> object:
    async def body(task: SchedulableTask) -> None:
        begun[str(task.task_id)] = asyncio.get_running_loop().time()
        await asyncio.sleep(seconds)

    return body


def world_of(
    names: list[str],
    begun: dict[str, float],
    seconds: float = 1.0,
    pressure: FakePressure | None = None,
    **options: object,
) -> GraphWorld:
    policy: TaskAdmissionPolicy | None = None
    if pressure is not None:
        policy = ProviderAwareTaskAdmissionPolicy(BoundedBorrowTaskAdmissionPolicy(), pressure)
    body = bodies_of(seconds, begun)
    nodes: dict[str, list[str]] = {name: [] for name in names}
    return GraphWorld(nodes, body, policy=policy, **options)  # type: ignore[arg-type]


def test_a_release_wakes_the_loop_and_a_turn_starts_all_that_fits() -> None:
    async def main() -> None:
        begun: dict[str, float] = {}
        world = world_of([f"a.{n}" for n in range(12)], begun, capacity=5)
        turns: list[int] = []
        turn = world.scheduler.turn

        def counted() -> int:
            turns.append(turn())
            return turns[-1]

        world.scheduler.turn = counted  # type: ignore[method-assign]
        await world.go()

        assert [started for started in turns if started] == [5, 5, 2]
        assert sorted(begun.values()) == [0.0] * 5 + [1.0] * 5 + [2.0] * 2
        assert world.gaps() == 0

    run_virtual(main())


@pytest.mark.parametrize("to", [3, None])
def test_a_changed_limit_wakes_the_loop(to: int | None) -> None:
    async def main() -> None:
        begun: dict[str, float] = {}
        world = world_of(
            ["slow.a", "key.a", "key.b"],
            begun,
            10.0,
            capacity=8,
            limits={"k": 0},
            needs={"key": {"k": 1}},
        )
        running = asyncio.get_running_loop().create_task(world.go())
        await asyncio.sleep(2.5)
        assert [*begun] == ["slow.a"]
        world.scheduler.set_limit("k", to)
        await running

        assert begun == {"slow.a": 0.0, "key.a": 2.5, "key.b": 2.5}
        world.assert_sound()

    run_virtual(main())


def test_the_end_of_a_cool_down_wakes_the_loop_although_nothing_runs() -> None:
    async def main() -> None:
        begun: dict[str, float] = {}
        pressure = FakePressure(VirtualClock(), cool_until=7.25)
        world = world_of(["a.0", "b.0"], begun, pressure=pressure, gates={"a": "openai"})
        await world.go()

        assert begun == {"b.0": 0.0, "a.0": 7.25}
        assert world.count(Kind.REQUEST_PRESSURE_ADVISORY_SKIPPED) >= 1
        world.assert_sound()

    run_virtual(main())


def test_a_cool_down_that_is_prolonged_is_waited_for_again() -> None:
    async def main() -> None:
        begun: dict[str, float] = {}
        pressure = FakePressure(VirtualClock(), cool_until=2.0)
        world = world_of(["a.0"], begun, pressure=pressure, gates={"a": "openai"})
        running = asyncio.get_running_loop().create_task(world.go())
        await asyncio.sleep(1.0)
        pressure.cool_until = 5.5
        await running

        assert begun == {"a.0": 5.5}

    run_virtual(main())


def test_a_providers_release_wakes_the_loop_although_nothing_runs() -> None:
    async def main() -> None:
        begun: dict[str, float] = {}
        pressure = FakePressure(VirtualClock(), waiters=1)
        world = world_of(["a.0"], begun, pressure=pressure, gates={"a": "openai"})
        running = asyncio.get_running_loop().create_task(world.go())
        await asyncio.sleep(3.0)
        assert not running.done()  # it waits; it does not say that the task can never start
        pressure.waiters = 0
        world.scheduler.pressure_changed("openai")
        await running

        assert begun == {"a.0": 3.0}

    run_virtual(main())


def test_shutting_wakes_the_loop_and_leaves_no_timer() -> None:
    async def main() -> None:
        begun: dict[str, float] = {}
        pressure = FakePressure(VirtualClock(), cool_until=1_000.0)
        world = world_of(["a.0"], begun, pressure=pressure, gates={"a": "openai"})
        running = asyncio.get_running_loop().create_task(world.go())
        await asyncio.sleep(3.0)
        world.run.stop()
        snapshot = await running

        assert (snapshot.enqueued, begun, world.clock.monotonic()) == (1, {}, 3.0)
        assert "0 timers" in repr(asyncio.get_running_loop())

    run_virtual(main())


def test_an_empty_queue_and_a_blocked_one_are_told_apart_and_only_when_it_is_news() -> None:
    async def main() -> None:
        begun: dict[str, float] = {}
        world = world_of(["a.0", "a.1", "a.2"], begun, 1.0, capacity=1)
        running = asyncio.get_running_loop().create_task(world.go())
        for _ in range(20):
            await asyncio.sleep(0.01)
            world.run.wake()  # a turn that changes nothing tells nothing
        await running
        told = [
            (event.event_kind, event.captured_at_monotonic, event.reason, event.numbers)
            for event in world.sink.events
            if event.event_kind in (Kind.QUEUE_EMPTY, Kind.ADMISSION_BLOCKED, Kind.GROUP_CAPPED)
        ]

        assert told == [
            (Kind.ADMISSION_BLOCKED, 0.0, "no_capacity", {"queued": 2.0, "no_capacity": 2}),
            (Kind.ADMISSION_BLOCKED, 1.0, "no_capacity", {"queued": 1.0, "no_capacity": 1}),
            (Kind.QUEUE_EMPTY, 2.0, None, None),
        ]

    run_virtual(main())


def test_groups_at_their_share_are_told_as_capped() -> None:
    async def main() -> None:
        begun: dict[str, float] = {}
        world = world_of(
            ["a.0", "a.1", "a.2", "b.0", "b.1"],
            begun,
            2.0,
            capacity=3,
            limits={"slot": 3},
            needs={"a": {"slot": 1}, "b": {"slot": 2}},
        )
        await world.go()
        world.assert_sound()
        assert world.count(Kind.GROUP_CAPPED) + world.count(Kind.ADMISSION_BLOCKED) > 0

    run_virtual(main())


# ── Times ─────────────────────────────────────────────────────────────────────────────────────


def times(
    scheduler: AsyncTaskScheduler,
) -> tuple[dict[str, tuple[float, float]], dict[str, float]]:
    """Seconds and task seconds by gate, and the use of resources, up to now."""
    gates = scheduler.bottleneck.gates()
    used = scheduler.bottleneck.used(scheduler.controller.held_leases())
    return {name: (gate.seconds, gate.task_seconds) for name, gate in gates.items()}, used


def test_time_in_gates_and_use_of_resources_are_exact() -> None:
    async def main() -> None:
        begun: dict[str, float] = {}
        pressure = FakePressure(VirtualClock(), cool_until=6.0)
        world = world_of(
            ["a.0", "a.1", "k.0", "k.1", "k.2"],
            begun,
            2.0,
            pressure,
            capacity=8,
            limits={"key": 1},
            needs={"k": {"key": 1}, "a": {"async": 1}},
            gates={"a": "openai"},
        )
        scheduler = world.scheduler
        running = asyncio.get_running_loop().create_task(world.go())
        await asyncio.sleep(3.0)
        gates, used = times(scheduler)  # in the middle: what runs and waits counts up to now
        assert gates == {"no_capacity key": (3.0, 2 * 2.0 + 1.0), "policy openai": (3.0, 6.0)}
        assert used == {"submission": 3.0, "key": 3.0}

        await running
        gates, used = times(scheduler)
        assert gates == {"no_capacity key": (4.0, 2 * 2.0 + 2.0), "policy openai": (6.0, 12.0)}
        assert used == {"submission": 10.0, "key": 6.0, "async": 4.0}
        await asyncio.sleep(5.0)
        assert times(scheduler) == (gates, used)

    run_virtual(main())


def test_the_times_of_very_many_gates_are_bounded_and_counted_once() -> None:
    async def main() -> None:
        begun: dict[str, float] = {}
        groups = [f"g{n}" for n in range(GATES_MAX + 20)]
        world = world_of(
            [f"{group}.{n}" for group in groups for n in range(2)],
            begun,
            capacity=2 * len(groups),
            limits=dict.fromkeys(groups, 1),
            needs={group: {group: 1} for group in groups},
        )
        await world.go()
        gates = world.scheduler.bottleneck.gates()

        assert len(gates) == GATES_MAX + 1
        assert (gates["other"].seconds, gates["other"].task_seconds) == (1.0, 20.0)

    run_virtual(main())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("policy", [None, StrictFairTaskAdmissionPolicy()])
def test_random_graphs_leave_nothing_idle_and_their_use_adds_up(
    policy: TaskAdmissionPolicy | None, seed: int | None
) -> None:
    print(f"seed {seed}")
    rand = random.Random(f"graph {seed}")
    groups = ["a", "b", "c", "d"]
    names = [f"{rand.choice(groups)}.{n}" for n in range(60)]
    nodes = {
        name: rand.sample(names[:n], min(n, rand.randrange(3))) for n, name in enumerate(names)
    }
    seconds = {name: rand.choice([0.0, 0.5, 1.0, 3.0]) for name in names}

    async def body(task: SchedulableTask) -> None:
        await asyncio.sleep(seconds[str(task.task_id)])
        if rand.random() < 0.1:
            raise ValueError

    async def main() -> None:
        world = GraphWorld(
            nodes,
            body,
            capacity=6,
            limits={"k": 3, "m": 4},
            needs={"a": {"k": 1}, "b": {"k": 1, "m": 1}, "c": {"m": 1}},
            attempts_max=2,
            policy=policy,
        )
        await world.go()
        world.assert_sound()
        assert world.gaps() == 0
        spent = sum(
            seconds[event.correlation.task or ""]
            for event in world.sink.of(Kind.TASK_LEASE_ACQUIRED)
        )
        assert times(world.scheduler)[1]["submission"] == pytest.approx(spent)

    run_virtual(main(), seed)
