# SPDX-License-Identifier: Apache-2.0
"""Is an event there exactly once, and does no cursor go back, wherever a daemon dies?

The store of a first daemon falls silent at its n-th call, which was done or not; a second one takes
over when the lease has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from itertools import chain
from typing import Any

import pytest

from penstock import Context, Penstock, TickContext
from penstock.clock import to_micros
from penstock.model.job import JobState
from penstock.stores.protocol import Store
from penstock.stores.store_future import Reply
from penstock.worker.parts import Stopping
from tests.unit.worker.worker_world import World, simulate

TAKES_OVER_SECONDS = 40.0  # after the lease of the first
END_SECONDS = 75.0
TTL_SECONDS = 15.0
GRACE_SECONDS = 10.0
SWEEP_SECONDS = 5.0  # between two looks at leases that have ended, and a little for the calls
CALLS = 40  # of the first daemon: enough for several ticks
SOME = 3  # calls of each kind at which it dies


class Silent:
    """A store that falls silent: the n-th call is the last one, and nobody hears its answer."""

    def __init__(self, store: Store, last: int, *, done: bool) -> None:
        self._store = store
        self._last = last
        self._done = done
        self.calls: list[str] = []

    async def wait_for_work(self, timeout: float | None) -> None:
        await self._store.wait_for_work(timeout)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._store, name)
        if not callable(value):
            return value

        def call(*args: Any, **options: Any) -> Any:
            self.calls.append(name)
            if len(self.calls) < self._last:
                return value(*args, **options)
            if len(self.calls) == self._last and self._done:
                value(*args, **options)
            return Reply()

        return call


class Numbered:
    """Each tick brings the event after the last one that its cursor knows."""

    def __init__(self) -> None:
        self.app = Penstock("numbered")
        self.running: set[str] = set()
        hosts = self.app.partitions("host", ["a", "b"])

        @self.app.task()
        async def handle(ctx: Context) -> None:
            await asyncio.sleep(0.01)

        @self.app.every(5, over=hosts, timeout=4)
        async def poll(ctx: TickContext, host: str) -> None:
            number = (ctx.cursor or 0) + 1
            await asyncio.sleep(0.1)
            ctx.cursor = number
            ctx.enqueue(handle.job(), key=f"{host} {number}")


async def die(numbered: Numbered, world: World, last: int, *, done: bool) -> list[str]:
    store = world.store
    plan = numbered.app.plan_daemon(world.settings, to_micros(world.clock.now()))
    store.arm("numbered", plan.schedules).result()
    silent = Silent(store, last, done=done)
    world.start(world.worker(drain=False, schedules=True, server=silent))  # type: ignore[arg-type]
    await world.clock.sleep(TAKES_OVER_SECONDS)
    before = {key: store.cursor(key).result() for key in ("schedule:poll:a", "schedule:poll:b")}
    second = world.worker(drain=False, schedules=True)
    running = world.start(second)
    await world.clock.sleep(END_SECONDS - TAKES_OVER_SECONDS)
    second.stop(Stopping.GRACEFUL)
    await running
    jobs = world.states()
    for host in "ab":
        key = f"schedule:poll:{host}"
        unit, cursor = store.unit(key).result(), int(store.cursor(key).result() or 0)
        assert unit is not None
        events = {name for name in jobs if name.startswith(f"{host} ")}
        assert events == {f"{host} {n}" for n in range(1, cursor + 1)}
        assert unit.ticks == cursor > int(before[key] or 0)
        first = next(x.first_at for x in plan.schedules if x.key == key)
        assert unit.ticks + unit.missed == (unit.due_at - first) // 5_000_000
        assert {jobs[name] for name in events} == {JobState.DONE}
    return silent.calls


def dies(last: int, *, done: bool) -> list[str]:
    """What the store was asked for by a daemon whose n-th call was the last."""
    numbered = Numbered()

    async def main(world: World) -> list[str]:
        return await die(numbered, world, last, done=done)

    runtime = {"lease_ttl_seconds": TTL_SECONDS, "beat_seconds": 5.0}
    return simulate(numbered.app, main, runtime=runtime)


def test_wherever_a_daemon_falls_silent(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "penstock")
    calls = dies(CALLS, done=True)[:CALLS]
    places = [
        [place for place, call in enumerate(calls, start=1) if call == name][:SOME]
        for name in ("register", "lease", "cursors", "ack")
    ]
    assert all(places)
    for place in chain.from_iterable(places):
        for done in (True, False):
            dies(place, done=done)


class Mortal(Silent):
    """A store that falls silent when it is told to."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, 0, done=False)
        self.dead = False

    def __getattr__(self, name: str) -> Any:
        return super().__getattr__(name) if self.dead else getattr(self._store, name)


@pytest.mark.parametrize("dies_at", [0.55, 3.0, 7.25])
def test_a_daemon_that_is_there_takes_over_within_a_lease_time(
    dies_at: float, caplog: pytest.LogCaptureFixture
) -> None:
    """The first one holds every tick when it dies; each occurrence begins again elsewhere."""
    caplog.set_level(logging.CRITICAL, "penstock")
    app = Penstock("watched")
    hosts = app.partitions("host", ["a", "b", "c"])
    began: list[tuple[float, str, int]] = []  # when, host, occurrence

    async def main(world: World) -> None:
        mortal = Mortal(world.store)

        @app.every(0.5, over=hosts, timeout=600)
        async def poll(ctx: TickContext, host: str) -> None:
            now = world.clock.monotonic()
            began.append((now, host, to_micros(ctx.due_at.timestamp())))
            if not mortal.dead and now >= dies_at - 0.55:
                await asyncio.sleep(3_600)

        plan = app.plan_daemon(world.settings, to_micros(world.clock.now()))
        world.store.arm("watched", plan.schedules).result()
        first = world.worker(drain=False, schedules=True, server=mortal)  # type: ignore[arg-type]
        world.start(first)
        await world.clock.sleep(dies_at)
        mortal.dead = True
        held = {(host, due) for _, host, due in began[-3:]}
        assert {host for host, _ in held} == {"a", "b", "c"}
        other = world.worker(drain=False, schedules=True)
        running = world.start(other)
        await world.clock.sleep(TTL_SECONDS + SWEEP_SECONDS)

        assert held <= {(host, due) for at, host, due in began if at > dies_at}
        asked = world.clock.monotonic()
        other.stop(Stopping.GRACEFUL)
        await running
        assert world.clock.monotonic() - asked <= GRACE_SECONDS + 5

    runtime = {"lease_ttl_seconds": TTL_SECONDS, "beat_seconds": 5.0}
    simulate(app, main, runtime={**runtime, "grace_seconds": GRACE_SECONDS})


def test_a_daemon_whose_ticks_hang_ends_with_its_grace(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "penstock")
    app = Penstock("watched")
    over: list[bool] = []  # the test

    async def main(world: World) -> None:
        @app.every(1)
        async def listens(ctx: TickContext) -> None:
            await asyncio.sleep(3_600)

        @app.every(1)
        async def swallows(ctx: TickContext) -> None:
            while not over:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(3_600)

        plan = app.plan_daemon(world.settings, to_micros(world.clock.now()))
        world.store.arm("watched", plan.schedules).result()
        worker = world.worker(drain=False, schedules=True)
        running = world.start(worker)
        await world.clock.sleep(3)
        asked = world.clock.monotonic()
        worker.stop(Stopping.GRACEFUL)
        await running
        assert GRACE_SECONDS <= world.clock.monotonic() - asked <= GRACE_SECONDS + 5
        units = world.store.units("watched", "", 10).result()
        assert [(unit.attempts, unit.ticks) for unit in units] == [(0, 0), (0, 0)]  # no fault
        over.append(True)

    simulate(app, main, runtime={"grace_seconds": GRACE_SECONDS})
