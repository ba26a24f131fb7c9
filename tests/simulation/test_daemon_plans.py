# SPDX-License-Identifier: Apache-2.0
"""Daemons of one app that plan different units: each unit ticks while a living daemon plans it."""

from __future__ import annotations

import asyncio
from collections import Counter

from penstock import Penstock, TickContext
from penstock.clock import to_micros
from penstock.model.job import WorkerId
from penstock.model.lease import WorkerInfo
from penstock.model.schedule import UnitView
from penstock.planning.units import DaemonPlan
from penstock.schedules.daemon_start import Armed, Arming
from penstock.worker.parts import Stopping, Totals
from penstock.worker.worker import Worker
from tests.unit.worker.worker_world import World, simulate

NOTICED_SECONDS = 30.0  # within which a change of daemons is noticed


class Daemon:
    """One daemon: its partitions, and how often each ticked here."""

    def __init__(self, partitions: str) -> None:
        self.app = Penstock("planned")
        self.ticks: Counter[str] = Counter()
        self._worker: Worker | None = None
        self._running: asyncio.Task[Totals] | None = None
        names = self.app.partitions("name", list(partitions))

        @self.app.every(10, over=names)
        async def poll(ctx: TickContext, name: str) -> None:
            self.ticks[name] += 1

    def plan(self, world: World) -> DaemonPlan:
        return self.app.plan_daemon(world.settings, to_micros(world.clock.now()))

    async def arm(self, world: World) -> Armed:
        arming = Arming("planned", world.store, world.clock, world.ids.random)
        return await arming.arm(self.plan(world))

    def work(self, world: World) -> None:
        plan = self.plan(world)
        self._worker = world.worker(drain=False, app=self.app, schedules=True, plan=plan)
        self._running = world.start(self._worker)

    async def start(self, world: World) -> Armed:
        armed = await self.arm(world)
        self.work(world)
        await world.clock.sleep(2)
        return armed

    async def stop(self) -> None:
        assert self._worker is not None
        assert self._running is not None
        self._worker.stop(Stopping.GRACEFUL)
        await self._running


def unit(world: World, name: str) -> UnitView:
    found = world.store.unit(f"schedule:poll:{name}").result()
    assert found is not None
    return found


def ticking(world: World) -> str:
    return "".join(name for name in "abc" if unit(world, name).retired_at is None)


def test_daemons_with_different_plans_leave_each_other_their_units() -> None:
    async def main(world: World) -> None:
        one, other = Daemon("ab"), Daemon("bc")
        await one.start(world)
        await other.start(world)
        assert ticking(world) == "abc"
        await world.clock.sleep(100)
        assert ticking(world) == "abc"
        for name in "abc":
            assert one.ticks[name] + other.ticks[name] >= 10

        first_at = unit(world, "a").due_at
        await one.stop()
        await world.clock.sleep(NOTICED_SECONDS)
        assert ticking(world) == "bc"
        await one.start(world)
        assert ticking(world) == "abc"
        await world.clock.sleep(20)
        assert (unit(world, "a").due_at - first_at) % 10_000_000 == 0  # it goes on where it was
        await one.stop()
        await other.stop()

    simulate(Penstock("planned"), main)


def test_daemons_that_start_together_bring_back_what_the_other_has_retired() -> None:
    async def main(world: World) -> None:
        one, other = Daemon("ab"), Daemon("bc")
        await one.arm(world)
        assert (await other.arm(world)).retired == 1  # nobody else lives yet
        one.work(world)
        other.work(world)
        await world.clock.sleep(NOTICED_SECONDS)
        assert ticking(world) == "abc"
        await one.stop()
        await other.stop()

    simulate(Penstock("planned"), main)


def test_what_a_new_version_has_dropped_ticks_until_the_old_one_is_gone() -> None:
    async def main(world: World) -> None:
        old, new, further = Daemon("ab"), Daemon("bc"), Daemon("bc")
        await old.start(world)
        await new.start(world)
        await further.start(world)
        await world.clock.sleep(NOTICED_SECONDS)
        assert ticking(world) == "abc"
        await old.stop()
        await world.clock.sleep(NOTICED_SECONDS)
        assert ticking(world) == "bc"
        await new.stop()
        await further.stop()
        assert ticking(world) == "bc"

    simulate(Penstock("planned"), main)


def test_a_daemon_that_is_killed_keeps_its_units_until_its_lease_ends() -> None:
    async def main(world: World) -> None:
        dead, other = Daemon("ab"), Daemon("bc")
        ttl = world.settings.runtime.lease_ttl_seconds
        await dead.arm(world)
        killed = WorkerInfo(id=WorkerId("w_killed"), run_id="run_killed", tasks=("schedule:poll",))
        world.store.register(killed, ttl).result()  # and nobody ever beats
        await other.start(world)
        await world.clock.sleep(ttl / 2)
        assert ticking(world) == "abc"
        await world.clock.sleep(ttl + NOTICED_SECONDS)
        assert ticking(world) == "bc"
        await other.stop()

    simulate(Penstock("planned"), main)


def test_an_interval_ticks_on_when_the_clock_is_set_back() -> None:
    async def main(world: World) -> None:
        daemon = Daemon("abc")
        await daemon.start(world)
        await world.clock.sleep(30)
        world.clock.jump(-86_400)
        await world.clock.sleep(NOTICED_SECONDS)
        before = daemon.ticks["a"]
        await world.clock.sleep(50)
        assert 4 <= daemon.ticks["a"] - before <= 6
        await daemon.stop()

    simulate(Penstock("planned"), main)


def test_a_paused_unit_rests_through_restarts_and_continues_with_what_it_had_waited_for() -> None:
    async def main(world: World) -> None:
        one = Daemon("ab")
        await one.start(world)
        await world.clock.sleep(20)
        world.store.pause_units("schedule:poll:a").result()
        before, due_at = one.ticks["a"], unit(world, "a").due_at
        await world.clock.sleep(50)
        await one.stop()
        await one.start(world)
        await world.clock.sleep(48)
        assert one.ticks["a"] == before
        assert one.ticks["b"] >= 10

        assert unit(world, "a").due_at == due_at
        missed = unit(world, "a").missed
        world.store.resume_units("schedule:poll:a").result()
        await world.clock.sleep(1)
        assert one.ticks["a"] == before + 1  # at once
        await world.clock.sleep(20)
        view = unit(world, "a")
        assert view.ticks == one.ticks["a"] >= before + 2
        assert (view.due_at - due_at) // 10_000_000 == view.ticks - before + view.missed - missed
        await one.stop()

    simulate(Penstock("planned"), main)
