# SPDX-License-Identifier: Apache-2.0
"""Does a drain end beside schedules, which never do?"""

from __future__ import annotations

import asyncio
import logging

import pytest

from penstock import Context, Penstock, TickContext
from penstock.clock import to_micros
from penstock.model.job import JobState
from penstock.worker.parts import Stopping
from tests.unit.worker.worker_world import World, simulate


class Busy:
    """A schedule that runs nearly all the time, and jobs."""

    def __init__(self, *, brings: int = 0) -> None:
        self.app = Penstock("busy")
        self.ticks = 0
        self.brings = brings  # so many ticks bring a job

        @self.app.task()
        async def work(ctx: Context, seconds: float) -> None:
            await asyncio.sleep(seconds)

        @self.app.every(1)
        async def tick(ctx: TickContext) -> None:
            self.ticks += 1
            number = self.ticks
            await asyncio.sleep(0.9)
            if number <= self.brings:
                ctx.enqueue(work.job(0.2), key=f"brought {number}")

    def arm(self, world: World) -> None:
        plan = self.app.plan_daemon(world.settings, to_micros(world.clock.now()))
        world.store.arm("busy", plan.schedules).result()


def test_a_draining_daemon_ends_when_no_job_is_left_and_its_ticks_come_to_their_end() -> None:
    busy = Busy()

    async def main(world: World) -> None:
        busy.arm(world)
        world.enqueue("work", "j", seconds=5.0)
        await asyncio.wait_for(world.drain(schedules=True), 30)
        assert world.job("j").state is JobState.DONE
        unit = world.store.unit("schedule:tick").result()
        assert unit is not None
        assert unit.state is JobState.QUEUED
        assert unit.ticks == busy.ticks >= 5  # none was cut off
        assert 5 <= world.clock.monotonic() < 8

    simulate(busy.app, main)


def test_what_the_last_ticks_bring_is_done_as_well() -> None:
    busy = Busy(brings=4)

    async def main(world: World) -> None:
        busy.arm(world)
        await world.clock.sleep(0.5)
        world.enqueue("work", "j", seconds=1.0)
        await asyncio.wait_for(world.drain(schedules=True), 60)
        states = world.states()
        assert sum(key.startswith("brought") for key in states) >= 1
        assert {x for key, x in states.items() if key != "schedule:tick"} == {JobState.DONE}

    simulate(busy.app, main)


def test_a_drain_of_the_queue_alone_neither_waits_for_schedules_nor_names_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    busy = Busy()

    async def main(world: World) -> None:
        busy.arm(world)
        world.enqueue("work", "j", seconds=0.1)
        caplog.set_level(logging.WARNING, "penstock.worker")
        worker = await asyncio.wait_for(world.drain(), 10)
        assert worker.left_behind == 0
        assert busy.ticks == 0
        assert caplog.messages == []

    simulate(busy.app, main)


def test_a_drain_beside_a_daemon_that_goes_on_ends_too() -> None:
    busy = Busy()

    async def main(world: World) -> None:
        busy.arm(world)
        daemon = world.worker(drain=False, schedules=True)
        running = world.start(daemon)
        world.enqueue("work", "j", seconds=0.1)
        await asyncio.wait_for(world.drain(schedules=True), 20)
        before = busy.ticks
        await world.clock.sleep(5)
        assert busy.ticks > before
        daemon.stop(Stopping.GRACEFUL)
        await running

    simulate(busy.app, main)
