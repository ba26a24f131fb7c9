# SPDX-License-Identifier: Apache-2.0
"""Can a start be stopped at any moment, and does the next one make up for it?"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import Context, Penstock, TickContext
from penstock.app.daemon import begun_now, preflight_run
from penstock.clock import to_micros
from penstock.errors import StoreBusy
from penstock.model.schedule import ArmReport
from penstock.schedules.daemon_start import Arming, DaemonStart
from penstock.stores.protocol import Store
from penstock.stores.store_future import Reply
from penstock.worker.thread_executor import InlineRunner
from tests.unit.worker.worker_world import World, simulate

CALL_SECONDS = 0.1  # of one call of the store
UNITS = 2_500  # more than two calls take


class Far:
    """A store that takes its time, and may be busy."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.calls: list[str] = []
        self.busy: list[str] = []

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._store, name)

        def asked(*args: Any) -> Reply[Any]:
            self.calls.append(name)
            later: Reply[Any] = Reply()
            if name in self.busy:
                self.busy.remove(name)
                return Reply.failed(StoreBusy("others hold it"))
            loop = asyncio.get_running_loop()
            loop.call_later(CALL_SECONDS, lambda: later.resolve(call(*args).result()))
            return later

        return asked


class Started:
    def __init__(self, hosts: int = 3) -> None:
        self.app = Penstock("started")
        self.hosts = list(range(hosts))
        self.cleaned_up = 0
        partitions = self.app.partitions("host", lambda: self.hosts)

        @self.app.preflight(over=partitions)
        async def reachable(ctx: Context, host: int) -> int:
            try:
                await asyncio.sleep(0.5)
            finally:
                self.cleaned_up += 1
            return host

        @self.app.every(10, over=partitions)
        async def poll(ctx: TickContext, host: int) -> None:
            raise AssertionError("nobody works here")

    def start(self, world: World, far: Far, *, checks: bool = True) -> DaemonStart:
        plan = self.app.plan_daemon(world.settings, to_micros(world.clock.now()))
        run = preflight_run(
            plan,
            self.app.preflights,
            world.settings,
            world.clock,
            world.ids,
            policy=self.app.registry.retry_policy,
            providers={},
            threads=InlineRunner,
        )
        return DaemonStart(
            run if checks else None,
            Arming(self.app.name, far, world.clock, world.ids.random),
            lambda: begun_now(plan, self.app.schedules, to_micros(world.clock.now())),
        )


def test_wherever_it_is_stopped() -> None:
    async def stopped_after(world: World, seconds: float) -> bool:
        started, far = Started(), Far(world.store)
        start = started.start(world, far)
        running = asyncio.get_running_loop().create_task(start.run())
        await world.clock.sleep(seconds)
        ended = running.done()
        asked = world.clock.monotonic()
        start.stop()
        result = await running
        assert world.clock.monotonic() - asked < 0.1
        assert (result is not None) == ended
        assert started.cleaned_up == (3 if seconds > 0 else started.cleaned_up)
        await world.clock.sleep(1)  # a call that was on its way is done
        again = await started.start(world, Far(world.store)).run()
        assert again is not None
        assert again.report.new + again.report.kept == 3
        assert len(world.store.units("started", "", 10).result()) == 3
        return ended

    ends = []
    for step in range(30):

        async def main(world: World, step: int = step) -> bool:
            return await stopped_after(world, step * 0.05)

        ends.append(simulate(Started().app, main, seed=step))
    assert ends == sorted(ends)  # before: stopped; after: complete
    assert {False, True} == set(ends)


def test_many_units_are_armed_in_parts_and_those_that_are_gone_are_retired() -> None:
    started = Started(UNITS)

    async def main(world: World) -> None:
        far = Far(world.store)
        first = await started.start(world, far, checks=False).run()
        assert first is not None
        assert first.report == ArmReport(new=UNITS)
        assert (first.units, first.schedules, first.retired) == (UNITS, 1, 0)
        assert far.calls.count("arm") == 3
        started.hosts = started.hosts[1_200:]
        second = await started.start(world, Far(world.store), checks=False).run()
        assert second is not None
        assert second.retired == 1_200
        assert second.report == ArmReport(kept=UNITS - 1_200)
        third = await started.start(world, Far(world.store), checks=False).run()
        assert third is not None
        assert third.retired == 0

    simulate(started.app, main)


@pytest.mark.parametrize("call", ["keep_preflights", "arm", "units", "forget_preflights"])
def test_a_store_that_is_busy_is_waited_for(call: str) -> None:
    started = Started()

    async def main(world: World) -> None:
        far = Far(world.store)
        far.busy = [call, call]
        armed = await started.start(world, far).run()
        assert armed is not None
        assert armed.units == 3

    simulate(started.app, main)


def test_first_ticks_count_from_the_end_of_the_checks() -> None:
    started = Started(1)

    async def main(world: World) -> None:
        await started.start(world, Far(world.store)).run()
        unit = world.store.unit("schedule:poll:0").result()
        assert unit is not None
        assert unit.due_at >= to_micros(world.clock.now() - CALL_SECONDS * 5)

    simulate(started.app, main)


def test_a_schedule_of_another_app_is_not_taken_over_in_silence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    started = Started(2)

    async def main(world: World) -> None:
        plan = started.app.plan_daemon(world.settings, to_micros(world.clock.now()))
        await Arming("other", world.store, world.clock, world.ids.random).arm(plan)
        for _ in range(2):
            await Arming("started", world.store, world.clock, world.ids.random).arm(plan)

    with caplog.at_level("WARNING", "penstock.daemon"):
        simulate(started.app, main)

    assert len(caplog.messages) == 1  # the second time it was our own
    assert "'poll' was of the app 'other' and is now of 'started'" in caplog.messages[0]
