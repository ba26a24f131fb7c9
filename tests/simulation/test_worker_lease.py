# SPDX-License-Identifier: Apache-2.0
"""What does a worker do when its lease or its store leaves it?"""

from __future__ import annotations

import asyncio
import logging

import msgspec
import pytest

from penstock import Context, Penstock
from penstock.definitions.request import to_new_job
from penstock.errors import (
    InternalError,
    PenstockError,
    StoreBusy,
    StoreError,
    StoreFailed,
    StoreFull,
)
from penstock.events.kinds import SchedulerEventKind
from penstock.model.job import JobState
from penstock.model.views import StoredLimit
from penstock.stores.store_future import Reply
from penstock.worker.heartbeat import margin
from penstock.worker.parts import Stopping
from penstock.worker.worker import TICK_SECONDS
from tests.unit.worker.worker_world import World, simulate

TTL = 30.0
RUNTIME = {"async_slots": 4, "lease_ttl_seconds": TTL, "beat_seconds": 10.0, "grace_seconds": 10.0}


def make_app(ran: list[tuple[str, float]], cancelled: list[tuple[str, float]]) -> Penstock:
    app = Penstock("lease")

    @app.task()
    async def sleeps(ctx: Context, seconds: float = 0.0) -> str:
        loop = asyncio.get_running_loop()
        ran.append((ctx.job.key, loop.time()))
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            cancelled.append((ctx.job.key, loop.time()))
            raise
        return "slept"

    @app.task()
    async def overstays(ctx: Context, seconds: float) -> str:
        """Runs until it is cancelled the first time, and then takes long to clean up."""
        loop = asyncio.get_running_loop()
        first = not any(key == ctx.job.key for key, _ in ran)
        ran.append((ctx.job.key, loop.time()))
        try:
            await asyncio.sleep(1000 if first else 60)
        finally:
            await asyncio.sleep(seconds if first else 0)
        return "overstayed"

    @app.task()
    async def deaf(ctx: Context) -> str:
        loop = asyncio.get_running_loop()
        ran.append((ctx.job.key, loop.time()))
        until = loop.time() + (200 if len(ran) == 1 else 1)
        while (left := until - loop.time()) > 0.001:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                continue
        return f"run {len(ran)}"

    return app


def test_a_lease_that_is_renewed_lasts_as_long_as_the_work() -> None:
    ran: list[tuple[str, float]] = []

    async def main(world: World) -> None:
        world.enqueue("sleeps", "k", seconds=10 * TTL)

        await world.drain()

        assert world.outcomes("k") == ["done"]
        assert len(world.store.registered) == 1

    simulate(make_app(ran, []), main, runtime=RUNTIME)


def test_nothing_begins_under_a_lease_that_was_over_when_the_process_woke_up() -> None:
    """Stopped for longer than its lease, a process may wake in an end of a body."""
    names: list[int] = []
    app = Penstock("frozen")
    worlds: list[World] = []

    @app.task()
    async def sleeps_through(ctx: Context) -> None:
        (world,) = worlds
        names.append(len(world.store.registered))
        if len(names) == 1:
            world.beats[0].adopt(world.store.registered[0].id, world.clock.monotonic() - 1)

    async def main(world: World) -> None:
        worlds.append(world)
        for n in range(3):
            world.enqueue("sleeps_through", f"j{n}")

        await world.drain()

        assert set(names[1:]) == {2}
        assert set(world.states().values()) == {JobState.DONE}

    simulate(app, main, runtime={**RUNTIME, "async_slots": 1})


def test_a_worker_says_how_often_a_job_may_crash_alone() -> None:
    async def main(world: World) -> None:
        await world.drain()

        assert [one.max_crashes for one in world.store.registered] == [7]

    simulate(make_app([], []), main, tasks={"max_crashes": 7})


def test_a_lost_lease_cancels_attempts_before_it_ends_and_nothing_is_acknowledged() -> None:
    ran: list[tuple[str, float]] = []
    cancelled: list[tuple[str, float]] = []

    async def main(world: World) -> None:
        for n in range(6):
            world.enqueue("sleeps", f"j{n}", seconds=100)
        worker = world.worker()
        world.beats[0].cut = True
        running = world.start(worker)
        await asyncio.sleep(TTL + 1)

        # Cancelled before the store lets anybody else have the jobs.
        believed = TTL - margin(TTL)
        assert {key for key, _ in cancelled} == {key for key, _ in ran[:4]}
        assert all(believed <= at <= believed + TICK_SECONDS for _, at in cancelled)
        assert len(world.store.registered) == 2
        assert worker.worker_id == world.store.registered[1].id
        assert all(world.attempts(f"j{n}")[0].outcome == "lost" for n in range(4))

        world.beats[0].cut = False
        await running
        assert set(world.states().values()) == {JobState.DONE}
        assert all(world.job(f"j{n}").attempts == 0 for n in range(6))
        assert world.sink.of(SchedulerEventKind.CANCELLED)[0].reason == "lease lost"

    simulate(make_app(ran, cancelled), main, runtime=RUNTIME)


@pytest.mark.parametrize("seed", range(5))
def test_a_worker_whose_lease_the_store_has_ended_registers_once_and_goes_on(seed: int) -> None:
    ran: list[tuple[str, float]] = []

    async def main(world: World) -> None:
        for n in range(20):
            world.enqueue("sleeps", f"j{n}", seconds=1)
        worker = world.worker()
        running = world.start(worker)
        await asyncio.sleep(1.5)
        world.store.reap(worker.worker_id, [], "somebody thought it dead", 3).result()

        await running

        assert set(world.states().values()) == {JobState.DONE}
        assert len(world.store.registered) == 2
        assert world.clock.monotonic() < 10

    simulate(make_app(ran, []), main, seed=seed, runtime=RUNTIME)


@pytest.mark.parametrize("seed", range(5))
def test_a_lost_lease_is_never_taken_up_again_even_if_a_late_beat_saves_it(seed: int) -> None:
    """The store is busy when the lease is lost, and then prolongs it after all: what the worker has
    given up it would hold for ever under its old name."""
    ran: list[tuple[str, float]] = []

    async def main(world: World) -> None:
        for n in range(8):
            world.enqueue("sleeps", f"j{n}", seconds=40)
        worker = world.worker()
        world.beats[0].cut = True
        running = world.start(worker)
        await asyncio.sleep(1)
        world.store.fails("register", StoreBusy("held"), 5)
        await asyncio.sleep(TTL - 1.5)
        old = world.store.registered[0].id
        assert world.store.beat([old], TTL).result() == {old}
        world.beats[0].cut = False

        await running

        assert set(world.states().values()) == {JobState.DONE}
        assert len(world.store.registered) == 2
        assert world.store.asked_for.count("register") == 7

    simulate(make_app(ran, []), main, seed=seed, runtime=RUNTIME)


def test_a_lease_that_arrives_after_the_loss_is_not_started() -> None:
    """The answer of a lease call and the loss of the lease cross each other: the job belongs to the
    old name, and what it did would be refused."""
    ran: list[tuple[str, float]] = []

    async def main(world: World) -> None:
        world.store.holds_leases = True
        world.enqueue("sleeps", "k", seconds=1)
        worker = world.worker()
        running = world.start(worker)
        await asyncio.sleep(0.1)
        assert world.job("k").state is JobState.IN_PROGRESS
        world.store.fails("register", StoreBusy("held"), 4)
        world.beats[0].adopt(worker.worker_id, 0.0)  # nothing is believed any more
        await asyncio.sleep(0.5)

        world.store.answer_leases()
        await asyncio.sleep(1)
        assert ran == []

        await running
        assert len(ran) == 1
        assert worker.totals.refused == 0
        assert world.outcomes("k") == ["lost", "done"]

    simulate(make_app(ran, []), main, runtime=RUNTIME)


def test_a_job_that_comes_back_while_its_old_body_cleans_up_is_run_and_acknowledged() -> None:
    """The same process leases a lost job again before the first body has ended."""
    ran: list[tuple[str, float]] = []

    async def main(world: World) -> None:
        world.enqueue("overstays", "k", seconds=20.0)
        world.beats.clear()
        worker = world.worker()
        world.beats[0].cut = True
        running = world.start(worker)
        await asyncio.sleep(TTL - 1)
        world.beats[0].cut = False

        await running

        assert len(ran) == 2
        assert ran[1][1] < TTL + 2  # the first body was still cleaning up
        assert world.outcomes("k") == ["lost", "done"]
        assert world.job("k").result == '"overstayed"'
        assert world.table.snapshot().running == ()

    simulate(make_app(ran, []), main, runtime=RUNTIME)


def test_a_lost_attempt_that_swallows_cancellation_does_not_hold_a_drain() -> None:
    ran: list[tuple[str, float]] = []

    async def main(world: World) -> None:
        world.enqueue("deaf", "k")
        worker = world.worker()
        world.beats[0].cut = True
        running = world.start(worker)
        await asyncio.sleep(TTL - 1)
        world.beats[0].cut = False

        await running

        assert world.outcomes("k") == ["lost", "done"]
        assert world.job("k").result == '"run 2"'
        assert world.clock.monotonic() < 100

    simulate(make_app(ran, []), main, runtime=RUNTIME)


@pytest.mark.parametrize("holds_limit", [True, False])
def test_a_lost_body_that_holds_a_limit_and_goes_on_lets_nothing_begin_beside_it(
    holds_limit: bool,
) -> None:
    """Without a supervisor, who would replace the process."""
    ran: list[tuple[str, float]] = []
    app = make_app(ran, [])

    async def main(world: World) -> None:
        limits = ("door:one",) if holds_limit else ()
        request = app.tasks["deaf"].job().with_options(key="k")
        world.put(to_new_job(msgspec.structs.replace(request, limit_keys=limits)))
        worker = world.worker()
        world.beats[0].cut = True
        running = world.start(worker)
        await asyncio.sleep(TTL - 1)
        world.beats[0].cut = False
        world.enqueue("sleeps", "other")

        await running

        assert world.outcomes("k") == ["lost", "done"]
        assert world.job("other").state is JobState.DONE
        until_first_has_ended = 200
        assert all((at >= until_first_has_ended) is holds_limit for _, at in ran[1:])

    simulate(app, main, runtime=RUNTIME)


@pytest.mark.parametrize("seed", range(5))
def test_ends_after_a_new_registration_go_under_the_new_name(seed: int) -> None:
    """An acknowledgement that waits for a busy store outlives its lease; what ends later must
    not leave under the old worker's name: it would be refused, and the job held for ever."""
    ran: list[tuple[str, float]] = []

    async def main(world: World) -> None:
        world.enqueue("sleeps", "first", seconds=1)
        world.store.fails("ack", StoreBusy("held"), 10_000)
        worker = world.worker()
        world.beats[0].cut = True
        running = world.start(worker)
        await asyncio.sleep(TTL + 2)
        assert len(world.store.registered) == 2
        world.beats[0].cut = False
        for n in range(4):
            world.enqueue("sleeps", f"later-{n}", seconds=1)
        await asyncio.sleep(5)
        world.store.heals()

        await running

        assert set(world.states().values()) == {JobState.DONE}
        assert world.outcomes("first") == ["lost", "done"]
        assert world.clock.monotonic() < TTL + 20

    simulate(make_app(ran, []), main, seed=seed, runtime=RUNTIME)


@pytest.mark.parametrize("error", [StoreFull("no space"), StoreBusy("held")])
@pytest.mark.parametrize("call", ["ack", "fail_and_retry", "release", "lease"])
def test_a_call_that_a_busy_or_full_store_refuses_is_repeated_until_it_lands(
    error: StoreError, call: str
) -> None:
    app = Penstock("lease")

    @app.task(max_attempts=2)
    async def work(ctx: Context, n: int) -> int:
        if n % 3 == 0 and ctx.job.attempt == 1:
            raise ValueError("mine")
        return n

    async def main(world: World) -> None:
        for n in range(12):
            world.enqueue("work", f"j{n}", n=n)
        world.store.fails(call, error, 20)
        worker = world.worker(drain=call != "release")
        running = world.start(worker)
        if call == "release":
            worker.stop(Stopping.GRACEFUL)
        await running

        if call == "release":
            await world.drain()
        assert set(world.states().values()) == {JobState.DONE}
        assert worker.totals.refused == 0
        for n in range(12):
            assert world.outcomes(f"j{n}") == (["retry", "done"] if n % 3 == 0 else ["done"])

    simulate(app, main, runtime=RUNTIME)


def test_a_waiting_acknowledgement_is_told_once_and_repeated_ever_more_slowly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(world: World) -> None:
        world.enqueue("sleeps", "k")
        world.store.fails("ack", StoreFull("no space left"), 20)

        await world.drain()

        # 0.05 + 0.1 + 0.2 + 0.4 + 0.8 + 1.6 + 14 × 2 s, and half of each is random
        assert 31.15 / 2 <= world.clock.monotonic() <= 31.15 + 1
        assert world.job("k").state is JobState.DONE

    with caplog.at_level(logging.WARNING, "penstock.worker"):
        simulate(make_app([], []), main, runtime=RUNTIME)
    assert caplog.text.count("Acknowledgements have to wait, nothing is begun: no space left") == 1


def test_while_acknowledgements_wait_nothing_more_is_begun() -> None:
    ran: list[tuple[str, float]] = []

    async def main(world: World) -> None:
        for n in range(3_000):
            world.enqueue("sleeps", f"j{n}")
        world.store.fails("ack", StoreFull("no space"), 10_000)
        worker = world.worker(drain=False)
        running = world.start(worker)

        await asyncio.sleep(20)

        assert 1 <= len(ran) <= 8, "what ran when the first one was refused"
        world.store.heals()
        await asyncio.sleep(10)
        assert len(ran) == 3_000
        worker.stop(Stopping.GRACEFUL)
        await running
        assert set(world.states().values()) == {JobState.DONE}

    simulate(make_app(ran, []), main, runtime=RUNTIME)


@pytest.mark.parametrize("call", ["ack", "lease", "fail_and_retry", "register"])
@pytest.mark.parametrize(
    "error",
    [StoreFailed("I/O error"), InternalError("broken"), KeyError("our bug")],
    ids=["failed", "internal", "foreign"],
)
def test_a_store_that_cannot_go_on_ends_the_worker_and_does_not_hang_it(
    call: str, error: BaseException
) -> None:
    app = Penstock("lease")

    @app.task(max_attempts=2)
    async def good(ctx: Context) -> None:
        return None

    @app.task(max_attempts=2)
    async def bad(ctx: Context) -> None:
        raise ValueError("mine")

    async def main(world: World) -> None:
        world.enqueue("good", "good")
        world.enqueue("bad", "bad")
        world.store.fails(call, error, 10_000)
        worker = world.worker()

        async with asyncio.timeout(100):
            with pytest.raises((PenstockError, KeyError)):
                await worker.run()

    simulate(app, main, runtime=RUNTIME, sound=False)


def test_nothing_begins_before_providers_are_served_even_if_the_lease_is_lost_meanwhile() -> None:
    """A run that was stopped while it started gave its jobs no provider, and charged them."""
    app = Penstock("stopped")
    api = app.provider("api", base_url="http://127.0.0.1:9")
    asked: list[object] = []

    @app.task(uses=api, max_attempts=1)
    async def asks(ctx: Context) -> None:
        asked.append(api.http)  # raises where no run serves it

    async def main(world: World) -> None:
        world.enqueue("asks", "j")
        found = world.store.learned().result()
        slow: Reply[list[StoredLimit]] = Reply()
        world.store.learned = lambda: slow  # type: ignore[method-assign]
        worker = world.worker()
        running = world.start(worker)
        await asyncio.sleep(0)
        world.beats[0].cut = True
        await asyncio.sleep(2 * TTL)
        assert len(world.store.registered) >= 2
        world.beats[0].cut = False
        assert not asked

        slow.resolve(found)
        await running

        assert world.states() == {"j": JobState.DONE}
        assert len(asked) == 1

    simulate(app, main, runtime=RUNTIME)
