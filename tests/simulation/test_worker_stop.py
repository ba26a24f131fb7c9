# SPDX-License-Identifier: Apache-2.0
"""Does a worker stop in order: give back, let finish, cancel, leave?"""

from __future__ import annotations

import asyncio

import pytest

from penstock import Context, Penstock
from penstock.errors import StoreBusy, StoreUnavailable
from penstock.model.job import JobState
from penstock.worker.parts import Stopping
from penstock.worker.worker import STOPPED_SECONDS, TICK_SECONDS
from tests.unit.worker.worker_world import World, simulate

RUNTIME = {"async_slots": 2, "grace_seconds": 30.0}


def make_app(notes: list[str]) -> Penstock:
    app = Penstock("stop")

    @app.task()
    async def sleeps(ctx: Context, seconds: float) -> str:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            notes.append(f"{ctx.job.key} cancelled")
            raise
        return "slept"

    @app.task()
    async def cleans(ctx: Context) -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(2)
            notes.append(f"{ctx.job.key} cleaned")

    @app.task()
    async def maps(ctx: Context) -> None:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            raise ValueError("a library turned the cancellation into this") from None

    @app.task()
    async def deaf(ctx: Context) -> None:
        until = asyncio.get_running_loop().time() + 500
        while (left := until - asyncio.get_running_loop().time()) > 0.001:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                continue

    return app


def test_the_first_stop_gives_unstarted_jobs_back_at_once_and_lets_running_ones_finish() -> None:
    notes: list[str] = []

    async def main(world: World) -> None:
        for n in range(6):
            world.enqueue("sleeps", f"j{n}", seconds=20)
        worker = world.worker(drain=False)
        running = world.start(worker)
        await asyncio.sleep(1)
        assert worker.running == 2
        held = [key for key, state in world.states().items() if state == "in_progress"]
        assert len(held) > 2  # the window holds some that have not started

        worker.stop(Stopping.GRACEFUL)
        await asyncio.sleep(0.01)

        states = list(world.states().values())
        assert states.count(JobState.IN_PROGRESS) == 2
        assert states.count(JobState.QUEUED) == 4
        totals = await running
        assert world.clock.monotonic() == pytest.approx(20, abs=0.5)
        assert totals.ended == 2
        assert list(world.states().values()).count(JobState.DONE) == 2
        assert notes == []
        for n in range(6):
            assert world.job(f"j{n}").attempts == 0
        assert world.store.workers().result() == []

    simulate(make_app(notes), main, runtime=RUNTIME)


def test_after_the_grace_running_jobs_are_cancelled_and_released_uncharged() -> None:
    notes: list[str] = []

    async def main(world: World) -> None:
        world.enqueue("sleeps", "k", seconds=1000)
        worker = world.worker(drain=False)
        running = world.start(worker)
        await asyncio.sleep(1)

        worker.stop(Stopping.GRACEFUL)
        await running

        assert 31 <= world.clock.monotonic() <= 31 + 2 * TICK_SECONDS
        job = world.job("k")
        assert (job.state, job.attempts, job.crashes) == (JobState.QUEUED, 0, 0)
        assert world.attempts("k") == []
        assert notes == ["k cancelled"]

    simulate(make_app(notes), main, runtime=RUNTIME)


def test_a_second_stop_cancels_now() -> None:
    notes: list[str] = []

    async def main(world: World) -> None:
        world.enqueue("sleeps", "k", seconds=1000)
        worker = world.worker(drain=False)
        running = world.start(worker)
        await asyncio.sleep(1)
        worker.stop(Stopping.GRACEFUL)
        await asyncio.sleep(3)

        worker.stop(Stopping.NOW)
        await running

        assert world.clock.monotonic() <= 4 + 2 * TICK_SECONDS
        assert world.job("k").state is JobState.QUEUED
        assert notes == ["k cancelled"]

    simulate(make_app(notes), main, runtime=RUNTIME)


def test_an_attempt_is_cancelled_once_so_that_its_clean_up_comes_to_an_end() -> None:
    notes: list[str] = []

    async def main(world: World) -> None:
        world.enqueue("cleans", "k")
        worker = world.worker(drain=False)
        running = world.start(worker)
        await asyncio.sleep(1)

        worker.stop(Stopping.NOW)
        await running

        assert notes == ["k cleaned"]
        assert (world.job("k").state, world.job("k").attempts) == (JobState.QUEUED, 0)
        assert world.attempts("k") == []

    simulate(make_app(notes), main, runtime=RUNTIME)


def test_an_error_that_a_cancellation_was_turned_into_is_not_charged_by_a_shutdown() -> None:
    async def main(world: World) -> None:
        world.enqueue("maps", "k")
        worker = world.worker(drain=False)
        running = world.start(worker)
        await asyncio.sleep(1)

        worker.stop(Stopping.NOW)
        await running

        assert (world.job("k").state, world.job("k").attempts) == (JobState.QUEUED, 0)

    simulate(make_app([]), main, runtime=RUNTIME)


def test_a_task_that_swallows_cancellation_cannot_hold_the_worker() -> None:
    async def main(world: World) -> None:
        world.enqueue("deaf", "k")
        worker = world.worker(drain=False)
        running = world.start(worker)
        await asyncio.sleep(1)

        worker.stop(Stopping.GRACEFUL)
        await running

        limit = 1 + 30 + STOPPED_SECONDS + 2 * TICK_SECONDS
        assert world.clock.monotonic() <= limit
        assert (world.job("k").state, world.job("k").attempts) == (JobState.QUEUED, 0)
        await asyncio.sleep(600)  # its late end changes nothing
        assert world.job("k").state is JobState.QUEUED

    simulate(make_app([]), main, runtime=RUNTIME)


@pytest.mark.parametrize("seed", range(10))
def test_a_stop_at_any_moment_leaves_every_job_done_or_back_in_the_queue(seed: int) -> None:
    async def main(world: World) -> None:
        for n in range(40):
            world.enqueue("sleeps", f"j{n}", seconds=0.3, delay=0.01 * (n % 7))
        worker = world.worker(drain=False)
        running = world.start(worker)
        await asyncio.sleep(0.21 * seed)

        worker.stop(Stopping.GRACEFUL if seed % 2 else Stopping.NOW)
        totals = await running

        states = list(world.states().values())
        assert states.count(JobState.DONE) == totals.ended
        assert states.count(JobState.QUEUED) == 40 - totals.ended
        assert all(world.job(f"j{n}").attempts == 0 for n in range(40))
        await world.drain()
        assert set(world.states().values()) == {JobState.DONE}

    simulate(make_app([]), main, seed=seed, runtime={"async_slots": 8, "grace_seconds": 1})


def test_a_stop_while_a_lease_call_is_on_its_way_gives_its_jobs_back() -> None:
    async def main(world: World) -> None:
        for n in range(4):
            world.enqueue("sleeps", f"j{n}", seconds=1)
        world.store.fails("lease", StoreBusy("held"), 4)
        worker = world.worker(drain=False)
        running = world.start(worker)
        await asyncio.sleep(0.1)  # 0.025 + 0.05 + 0.1 s is the least until the last of them

        worker.stop(Stopping.GRACEFUL)
        await running

        assert set(world.states().values()) == {JobState.QUEUED}

    simulate(make_app([]), main, runtime=RUNTIME)


def test_a_stop_does_not_wait_for_the_next_try_to_reach_the_store() -> None:
    async def main(world: World) -> None:
        world.enqueue("sleeps", "j", seconds=1)
        world.store.fails("lease", StoreUnavailable("connection refused"), 10_000)
        worker = world.worker(drain=False)
        running = world.start(worker)
        await asyncio.sleep(60)  # by now it waits for one second at least
        asked = world.clock.monotonic()

        worker.stop(Stopping.GRACEFUL)
        await running

        assert world.clock.monotonic() - asked < 0.1  # virtual

    simulate(make_app([]), main, runtime=RUNTIME)


def test_a_stop_before_the_first_turn_ends_the_worker() -> None:
    async def main(world: World) -> None:
        world.enqueue("sleeps", "k", seconds=1)
        worker = world.worker(drain=False)
        worker.stop(Stopping.GRACEFUL)

        await worker.run()

        assert world.job("k").state is JobState.QUEUED

    simulate(make_app([]), main, runtime=RUNTIME)


def test_a_stop_gives_up_on_a_store_that_stays_busy() -> None:
    async def main(world: World) -> None:
        world.enqueue("sleeps", "k", seconds=1)
        world.store.fails("ack", StoreBusy("held for ever"), 10_000)
        worker = world.worker(drain=False)
        running = world.start(worker)
        await asyncio.sleep(2)

        worker.stop(Stopping.GRACEFUL)
        await running

        assert world.clock.monotonic() <= 2 + 30 + STOPPED_SECONDS + 2 * TICK_SECONDS

    simulate(make_app([]), main, runtime=RUNTIME)


def test_a_worker_that_is_cancelled_leaves_no_body_running() -> None:
    notes: list[str] = []

    async def main(world: World) -> None:
        world.enqueue("sleeps", "k", seconds=1000)
        running = world.start(world.worker(drain=False))
        await asyncio.sleep(1)

        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await asyncio.sleep(0)

        assert notes == ["k cancelled"]
        assert (world.job("k").state, world.job("k").attempts) == (JobState.QUEUED, 0)

    simulate(make_app(notes), main, runtime=RUNTIME)
