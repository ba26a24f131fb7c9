# SPDX-License-Identifier: Apache-2.0
"""What if a worker stops, or loses its lease, while the cursors of its ticks are read?"""

from __future__ import annotations

import asyncio
from typing import Any

from penstock import Context, Penstock, TickContext
from penstock.clock import to_micros
from penstock.errors import StoreBusy
from penstock.model.job import JobState
from penstock.model.schedule import UnitPlan
from penstock.stores.store_future import Reply
from penstock.worker.parts import Stopping
from tests.unit.worker.worker_world import FlakyStore, World, simulate

KEYS = [f"schedule:poll:{name}" for name in "abc"]


class HeldCursors(FlakyStore):
    """Answers the question for cursors when it is told to."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.asked: list[list[str]] = []
        self.holds = True
        self._held_cursors: list[tuple[Reply[dict[str, str]], list[str]]] = []

    def cursors(self, names: Any) -> Reply[dict[str, str]]:
        self.asked.append(list(names))
        error = self._error("cursors")
        if error is not None:
            return Reply.failed(error)
        if not self.holds:
            return super().cursors(names)
        reply: Reply[dict[str, str]] = Reply()
        self._held_cursors.append((reply, list(names)))
        return reply

    def answer_cursors(self) -> None:
        self.holds = False
        for reply, names in self._held_cursors:
            reply.resolve(super().cursors(names).result())
        self._held_cursors.clear()


class Ticking:
    def __init__(self) -> None:
        self.app = Penstock("entry")
        self.ticked: list[str] = []
        self.jobs: list[str] = []
        names = self.app.partitions("name", ["a", "b", "c"])

        @self.app.every(10, over=names)
        async def poll(ctx: TickContext, name: str) -> None:
            self.ticked.append(name)
            ctx.cursor = (ctx.cursor or 0) + 1

        @self.app.task()
        async def job(ctx: Context) -> None:
            self.jobs.append(ctx.job.key)

    def world(self, world: World) -> HeldCursors:
        world.store = store = HeldCursors(world.clock)
        plan = self.app.plan_daemon(world.settings, to_micros(world.clock.now()))
        now = to_micros(world.clock.now())
        due: list[UnitPlan] = [
            UnitPlan(
                key=unit.key,
                task=unit.task,
                payload=unit.payload,
                group=unit.group,
                partition=unit.partition,
                timing=unit.timing,
                first_at=now,
            )
            for unit in plan.schedules
        ]
        store.arm("entry", due).result()
        return store


def states(world: World) -> set[JobState]:
    return {world.job(key).state for key in KEYS}


def test_cursors_of_one_lease_are_one_question_and_jobs_do_not_wait_for_it() -> None:
    ticking = Ticking()

    async def main(world: World) -> None:
        store = ticking.world(world)
        world.enqueue("job", "j")
        worker = world.worker(drain=False, schedules=True)
        running = world.start(worker)
        await world.clock.sleep(1)
        assert [sorted(names) for names in store.asked] == [KEYS]
        assert ticking.ticked == []
        assert ticking.jobs == ["j"]
        store.answer_cursors()
        await world.clock.sleep(0.1)
        assert sorted(ticking.ticked) == ["a", "b", "c"]
        worker.stop(Stopping.GRACEFUL)
        await running

    simulate(ticking.app, main)


def test_a_stop_gives_them_back_at_once_and_the_late_answer_starts_nothing() -> None:
    ticking = Ticking()

    async def main(world: World) -> None:
        store = ticking.world(world)
        worker = world.worker(drain=False, schedules=True)
        running = world.start(worker)
        await world.clock.sleep(1)
        worker.stop(Stopping.GRACEFUL)
        await world.clock.sleep(0.1)
        assert states(world) == {JobState.QUEUED}
        store.answer_cursors()
        await running
        assert ticking.ticked == []
        assert states(world) == {JobState.QUEUED}

    simulate(ticking.app, main)


def test_a_worker_ends_also_if_the_answer_never_comes() -> None:
    ticking = Ticking()

    async def main(world: World) -> None:
        ticking.world(world)
        worker = world.worker(drain=False, schedules=True)
        running = world.start(worker)
        await world.clock.sleep(1)
        worker.stop(Stopping.NOW)
        await asyncio.wait_for(running, 10)
        assert states(world) == {JobState.QUEUED}

    simulate(ticking.app, main)


def test_who_lost_the_lease_meanwhile_starts_nothing_and_another_ticks_once() -> None:
    ticking = Ticking()

    async def main(world: World) -> None:
        store = ticking.world(world)
        first = world.worker(drain=False, schedules=True)
        running = world.start(first)
        await world.clock.sleep(1)
        world.beats[0].cut = True  # nobody renews its lease
        await world.clock.sleep(60)
        store.answer_cursors()
        await world.clock.sleep(3)  # the leases of the dead are looked for once a second
        assert sorted(ticking.ticked) == ["a", "b", "c"]  # under the new name, once
        assert [store.unit(key).result().ticks for key in KEYS] == [1, 1, 1]  # type: ignore[union-attr]
        first.stop(Stopping.GRACEFUL)
        await running

    simulate(ticking.app, main)


def test_a_store_that_cannot_answer_is_asked_again() -> None:
    ticking = Ticking()

    async def main(world: World) -> None:
        store = ticking.world(world)
        store.holds = False
        store.fails("cursors", StoreBusy("others hold it"), times=3)
        worker = world.worker(drain=False, schedules=True)
        running = world.start(worker)
        await world.clock.sleep(5)
        assert sorted(ticking.ticked) == ["a", "b", "c"]
        worker.stop(Stopping.GRACEFUL)
        await running

    simulate(ticking.app, main)


def test_a_retired_unit_whose_cursor_is_read_does_not_tick() -> None:
    ticking = Ticking()

    async def main(world: World) -> None:
        store = ticking.world(world)
        worker = world.worker(drain=False, schedules=True)
        running = world.start(worker)
        await world.clock.sleep(0.1)
        store.retire_units(KEYS[:1]).result()
        await world.clock.sleep(0.1)
        store.answer_cursors()
        await world.clock.sleep(3)
        assert store.unit(KEYS[0]).result().ticks == 0  # type: ignore[union-attr]
        assert store.unit(KEYS[1]).result().ticks == 1  # type: ignore[union-attr]
        worker.stop(Stopping.GRACEFUL)
        await running
        assert world.job(KEYS[0]).state is JobState.CANCELLED

    simulate(ticking.app, main)


class DeafStore(FlakyStore):
    """Tells nobody of what will be due, as a store that others write to."""

    async def wait_for_work(self, timeout: float | None) -> None:
        await asyncio.sleep(timeout or 0.0)


def test_a_tick_is_on_time_also_if_no_lease_call_could_know_of_it() -> None:
    app = Penstock("punctual")
    late: list[float] = []

    @app.every(0.3)
    async def tick(ctx: TickContext) -> None:
        late.append(world_of[0].clock.now() - ctx.due_at.timestamp())
        await asyncio.sleep(0.01)

    world_of: list[World] = []

    async def main(world: World) -> None:
        world_of.append(world)
        world.store = DeafStore(world.clock)
        plan = app.plan_daemon(world.settings, to_micros(world.clock.now()))
        world.store.arm("punctual", plan.schedules).result()
        worker = world.worker(drain=False, schedules=True)
        running = world.start(worker)
        await world.clock.sleep(10)
        worker.stop(Stopping.GRACEFUL)
        await running

    simulate(app, main)
    assert len(late) >= 30
    assert max(late[1:]) < 0.01
