# SPDX-License-Identifier: Apache-2.0
"""What does a worker do while its server is away, and when it is back? (F38)"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import defaultdict

import pytest

from penstock import Context, Penstock
from penstock.errors import StoreUnavailable
from penstock.model.job import JobState
from penstock.worker.heartbeat import margin
from penstock.worker.lease_loop import LOOKS_SECONDS
from penstock.worker.parts import Stopping
from penstock.worker.registration import SIGN_OFF_SECONDS
from tests.unit.stores.server_store import ServerStore
from tests.unit.worker.worker_world import World, simulate

TTL = 30.0
RUNTIME = {"async_slots": 4, "lease_ttl_seconds": TTL, "beat_seconds": 5.0, "grace_seconds": 10.0}

Spans = dict[str, list[tuple[float, float]]]


def make_app(spans: Spans) -> Penstock:
    app = Penstock("server")

    @app.task(max_attempts=2)
    async def sleeps(ctx: Context, seconds: float = 0.0) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            await asyncio.sleep(seconds)
        finally:
            spans[ctx.job.key].append((began, loop.time()))

    @app.task(max_attempts=2)
    async def spreads(ctx: Context) -> None:
        await asyncio.sleep(0.1)
        ctx.enqueue(app.tasks["sleeps"].job(), key=f"{ctx.job.key}-child")

    @app.task(max_attempts=2)
    async def fails_once(ctx: Context) -> None:
        await asyncio.sleep(0.1)
        if ctx.job.attempt == 1:
            raise ValueError("mine")

    return app


def assert_done_once(world: World) -> None:
    assert set(world.states().values()) == {JobState.DONE}
    for key in world.states():
        assert world.outcomes(key).count("done") == 1, key


def assert_no_two_bodies_at_once(spans: Spans) -> None:
    for key, found in spans.items():
        ordered = sorted(found)
        for (_, ended), (began, _) in itertools.pairwise(ordered):
            assert ended <= began, key


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("seconds", [1.0, 10.0, 3 * TTL])
def test_while_the_server_is_away_nothing_is_lost_and_nobody_outlives_its_lease(
    seconds: float, seed: int
) -> None:
    """One worker is cut off, the other is not: what one gives up the other may take, not before."""
    spans: Spans = defaultdict(list)

    async def main(world: World) -> None:
        for n in range(40):
            world.enqueue("sleeps", f"j{n}", seconds=3.0 + n % 5)
        for n in range(2):
            world.enqueue("sleeps", f"long-{n}", seconds=50.0)
            world.enqueue("spreads", f"s{n}")
            world.enqueue("fails_once", f"f{n}")
        wire = ServerStore(world.store, world.clock)
        cut = world.start(world.worker(server=wire.as_store()))
        other = world.start(world.worker())
        await asyncio.sleep(7)
        wire.goes_away()
        await asyncio.sleep(seconds)
        assert not cut.done()
        wire.comes_back()

        await asyncio.gather(cut, other)

        assert_done_once(world)
        assert_no_two_bodies_at_once(spans)
        names = len(world.store.registered)
        assert names == (3 if seconds > TTL else 2), "a lost name is never used again"

    simulate(make_app(spans), main, seed=seed, runtime=RUNTIME)


def test_a_worker_that_cannot_renew_stops_its_bodies_by_its_own_clock() -> None:
    spans: Spans = defaultdict(list)

    async def main(world: World) -> None:
        for n in range(4):
            world.enqueue("sleeps", f"j{n}", seconds=1000.0)
        wire = ServerStore(world.store, world.clock)
        worker = world.worker(server=wire.as_store())
        running = world.start(worker)
        await asyncio.sleep(1)
        wire.goes_away("beat")  # all other calls get through
        await asyncio.sleep(TTL - 1)

        ends = [ended for found in spans.values() for _, ended in found]
        assert len(ends) == 4
        assert max(ends) == pytest.approx(TTL - margin(TTL), abs=0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    simulate(make_app(spans), main, runtime=RUNTIME)


def test_what_ends_while_the_server_is_away_is_acknowledged_when_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    spans: Spans = defaultdict(list)

    async def main(world: World) -> None:
        for n in range(3):
            world.enqueue("sleeps", f"j{n}", seconds=5.0 + n)
        world.enqueue("fails_once", "f")
        wire = ServerStore(world.store, world.clock)
        worker = world.worker(server=wire.as_store())
        running = world.start(worker)
        await asyncio.sleep(4.9)
        wire.goes_away()
        await asyncio.sleep(15)
        assert set(world.states().values()) == {JobState.IN_PROGRESS, JobState.DONE}
        assert wire.asked["lease"] < 100
        wire.comes_back()

        await running

        assert_done_once(world)
        assert [world.outcomes(f"j{n}") for n in range(3)] == [["done"]] * 3
        assert len(world.store.registered) == 1

    with caplog.at_level(logging.WARNING, "penstock.worker"):
        simulate(make_app(spans), main, runtime=RUNTIME)
    assert "discarded" not in caplog.text


def test_a_server_that_refuses_at_once_is_told_once_and_told_when_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(world: World) -> None:
        for n in range(8):
            world.enqueue("sleeps", f"j{n}", seconds=1.0)
        gone = StoreUnavailable("connection refused")
        for call in ("register", "lease", "ack"):
            world.store.fails(call, gone, 6)

        await world.drain()

        assert_done_once(world)

    with caplog.at_level(logging.WARNING, "penstock.worker"):
        simulate(make_app(defaultdict(list)), main, runtime=RUNTIME)
    away = caplog.text.count("The store is unreachable: connection refused. Running jobs go on;")
    assert away == caplog.text.count("The store is reachable again after ")
    assert 1 <= away <= 3  # at most once for each of the three times that it went


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("call", ["ack", "fail_and_retry", "release", "register", "beat"])
def test_an_answer_that_got_lost_is_asked_for_again_and_nothing_happens_twice(
    call: str, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    spans: Spans = defaultdict(list)

    async def main(world: World) -> None:
        for n in range(6):
            world.enqueue("sleeps", f"j{n}", seconds=1.0 + n)
            world.enqueue("spreads", f"s{n}")
            world.enqueue("fails_once", f"f{n}")
        wire = ServerStore(world.store, world.clock)
        wire.drops[call] = 3
        worker = world.worker(server=wire.as_store(), drain=call != "release")
        running = world.start(worker)
        if call == "release":
            await asyncio.sleep(0.05)
            worker.stop(Stopping.GRACEFUL)
        await running

        assert wire.lost[call] > 0
        assert worker.totals.refused == 0
        if call == "release":
            await world.drain()
        assert_done_once(world)
        assert all(world.outcomes(f"f{n}") == ["retry", "done"] for n in range(6))
        assert len([key for key in world.states() if key.endswith("-child")]) == 6

    with caplog.at_level(logging.WARNING, "penstock.worker"):
        simulate(make_app(spans), main, seed=seed, runtime=RUNTIME)
    assert "discarded" not in caplog.text


@pytest.mark.parametrize("seed", range(3))
def test_jobs_of_a_lease_whose_answer_got_lost_are_given_back_while_others_run(seed: int) -> None:
    """A worker that lives for months would hold them for months."""
    spans: Spans = defaultdict(list)

    async def main(world: World) -> None:
        world.enqueue("sleeps", "long", seconds=200.0)
        wire = ServerStore(world.store, world.clock)
        worker = world.worker(server=wire.as_store(), drain=False)
        running = world.start(worker)
        await asyncio.sleep(1)
        wire.drops["lease"] = 1
        for n in range(30):
            world.enqueue("sleeps", f"j{n}", seconds=1.0)
        await asyncio.sleep(30)

        assert wire.lost["lease"] == 1
        states = world.states()
        assert states.pop("long") is JobState.IN_PROGRESS
        assert set(states.values()) == {JobState.DONE}
        assert all(len(found) == 1 for found in spans.values())
        await asyncio.sleep(200 + LOOKS_SECONDS[-1])
        worker.stop(Stopping.GRACEFUL)
        await running
        assert_done_once(world)
        assert world.outcomes("long") == ["done"]

    simulate(make_app(spans), main, seed=seed, runtime=RUNTIME)


def test_a_worker_that_starts_while_the_server_is_away_waits_and_can_be_stopped() -> None:
    async def main(world: World) -> None:
        world.enqueue("sleeps", "k")
        wire = ServerStore(world.store, world.clock)
        wire.goes_away()
        stopped, waiting = (world.worker(server=wire.as_store()) for _ in range(2))
        first, second = world.start(stopped), world.start(waiting)
        await asyncio.sleep(300)
        assert not first.done()
        stopped.stop(Stopping.NOW)
        await first
        assert world.clock.monotonic() < 302

        wire.comes_back()
        await second
        assert_done_once(world)

    simulate(make_app(defaultdict(list)), main, runtime=RUNTIME)


@pytest.mark.parametrize("away", [TTL - 4, TTL + 10, 2 * TTL])
def test_a_registration_that_waited_for_the_server_is_believed_from_its_answer_on(
    away: float, caplog: pytest.LogCaptureFixture
) -> None:
    """It would be lost at once again if it counted from the moment it was asked for."""

    async def main(world: World) -> None:
        world.enqueue("sleeps", "k", seconds=4.0)
        wire = ServerStore(world.store, world.clock)
        wire.goes_away()
        running = world.start(world.worker(server=wire.as_store()))
        await asyncio.sleep(away)
        wire.comes_back()
        await running

        assert len(world.store.registered) == 1
        assert world.outcomes("k") == ["done"]

    with caplog.at_level(logging.ERROR, "penstock.worker"):
        simulate(make_app(defaultdict(list)), main, runtime=RUNTIME)
    assert "could not be renewed" not in caplog.text


def test_a_worker_that_is_stopped_while_the_server_is_away_ends_in_bounded_time() -> None:
    async def main(world: World) -> None:
        world.enqueue("sleeps", "k", seconds=1.0)
        wire = ServerStore(world.store, world.clock)
        worker = world.worker(server=wire.as_store())
        running = world.start(worker)
        await asyncio.sleep(0.5)
        wire.goes_away()
        await asyncio.sleep(2)
        worker.stop(Stopping.GRACEFUL)
        began = world.clock.monotonic()
        await running

        assert world.clock.monotonic() - began < 10.0 + 3.0 + SIGN_OFF_SECONDS + 1.0
        await asyncio.sleep(TTL)
        await world.drain()
        assert world.job("k").state is JobState.DONE

    simulate(make_app(defaultdict(list)), main, runtime=RUNTIME)
