# SPDX-License-Identifier: Apache-2.0
"""Who runs next, how many at once, and is nothing forgotten?"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from penstock import Context, Penstock, SchedulingMetadata, Skip
from penstock.model.job import JobState
from tests.depth import depth
from tests.unit.worker.worker_world import World, simulate


def recording_app(order: list[str]) -> Penstock:
    app = Penstock("order")

    @app.task()
    async def work(ctx: Context, seconds: float = 1.0) -> None:
        order.append(ctx.job.key)
        await asyncio.sleep(seconds)

    @app.task()
    def threaded(ctx: Context) -> None:
        order.append(ctx.job.key)

    return app


def test_groups_take_turns_whatever_their_backlogs() -> None:
    order: list[str] = []

    async def main(world: World) -> None:
        for n in range(60):
            world.enqueue("work", f"big-{n}", group="big")
        for n in range(6):
            world.enqueue("work", f"small-{n}", group="small")
            world.enqueue("work", f"tiny-{n}", group="tiny")

        await world.drain()

        first = Counter(key.partition("-")[0] for key in order[:18])
        assert first == {"big": 6, "small": 6, "tiny": 6}

    simulate(recording_app(order), main, seed=None, runtime={"async_slots": 3})


def weighed_app(order: list[str], seconds: float) -> Penstock:
    app = Penstock("order")

    @app.task(metadata=SchedulingMetadata.local("live", weight=3))
    async def heavy(ctx: Context) -> None:
        order.append("heavy")
        await asyncio.sleep(seconds)

    @app.task()
    async def light(ctx: Context) -> None:
        order.append("light")
        await asyncio.sleep(seconds)

    return app


@pytest.mark.parametrize("slots", [1, 3, 8])
def test_groups_share_by_the_weight_of_their_task(slots: int) -> None:
    order: list[str] = []

    async def main(world: World) -> None:
        for n in range(400):
            world.enqueue("light", f"l{n}")
            world.enqueue("heavy", f"h{n}")

        await world.drain()

        first = Counter(order[:400])  # both have jobs all the time
        assert 296 <= first["heavy"] <= 304

    simulate(weighed_app(order, 1.0), main, seed=None, runtime={"async_slots": slots})


def one_model_app(order: list[str], model: SchedulingMetadata | None) -> Penstock:
    """Two tasks of one model, or of none, beside a third."""
    app = Penstock("order")

    @app.task(metadata=model)
    async def ask(ctx: Context) -> None:
        order.append("model")

    @app.task(metadata=model)
    async def embed(ctx: Context) -> None:
        order.append("model")

    @app.task()
    async def other(ctx: Context) -> None:
        order.append("other")

    return app


@pytest.mark.parametrize(
    ("model", "turns", "groups"),
    [
        (SchedulingMetadata.local("model"), 60, {"local:model": 120, "other": 60}),
        (None, 40, {"ask": 60, "embed": 60, "other": 60}),
    ],
)
def test_tasks_of_one_identity_take_turns_as_one_group(
    model: SchedulingMetadata | None, turns: int, groups: dict[str, int]
) -> None:
    order: list[str] = []

    async def main(world: World) -> None:
        for n in range(60):
            for task in ("ask", "embed", "other"):
                world.enqueue(task, f"{task}-{n}")
        stats = world.store.stats().result()
        assert {group: counts[JobState.QUEUED] for group, counts in stats.groups.items()} == groups

        await world.drain()

        assert abs(Counter(order[:120])["other"] - turns) <= 2

    simulate(one_model_app(order, model), main, seed=None, runtime={"async_slots": 1})


def test_the_weight_holds_among_jobs_that_are_leased_together() -> None:
    order: list[str] = []

    async def main(world: World) -> None:
        for n in range(400):
            world.enqueue("light", f"l{n}")
            world.enqueue("heavy", f"h{n}")

        await world.drain()

        runs = "".join(key[0] for key in order[:400]).split("l")
        assert max(map(len, runs)) <= 4  # heavy ones between two light ones

    simulate(weighed_app(order, 0.001), main, seed=None, runtime={"async_slots": 1})


def test_a_group_that_arrives_late_is_served_within_one_round() -> None:
    order: list[str] = []

    async def main(world: World) -> None:
        for n in range(200):
            world.enqueue("work", f"big-{n}", group="big")
        running = world.start(world.worker())
        await asyncio.sleep(5.5)
        before = len(order)
        world.enqueue("work", "late", group="late")

        await running

        # The window holds at most 2 × slots; then it is the newcomer's turn.
        assert order.index("late") - before <= 3 * 4

    slots = {"async_slots": 4, "thread_slots": 1}
    simulate(recording_app(order), main, seed=None, runtime=slots)


def test_inside_a_group_the_higher_priority_goes_first_and_then_the_older_one() -> None:
    order: list[str] = []

    async def main(world: World) -> None:
        for n in range(20):
            world.enqueue("work", f"p{n % 5}-{n:02}", priority=n % 5)

        await world.drain()

        assert order == sorted(order, key=lambda key: (-int(key[1]), key[3:]))

    simulate(recording_app(order), main, seed=None, runtime={"async_slots": 1})


def test_a_full_thread_pool_does_not_stop_other_groups_on_the_loop() -> None:
    app = Penstock("order")
    done: list[str] = []

    @app.task()
    def blocked(ctx: Context) -> None:
        done.append(ctx.job.key)

    @app.task()
    async def free(ctx: Context) -> None:
        done.append(ctx.job.key)

    class NoThreads:
        def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
            self._loop = loop

        def submit(self, body: object, finished: object) -> None:
            """It never comes back."""

        def close(self) -> None:
            """There is nothing to end."""

    async def main(world: World) -> None:
        for n in range(5):
            world.enqueue("blocked", f"b{n}")
        for n in range(20):
            world.enqueue("free", f"f{n}")
        running = world.start(world.worker(drain=False, threads=NoThreads))

        await asyncio.sleep(1)

        assert sorted(done) == sorted(f"f{n}" for n in range(20))
        running.cancel()

    simulate(app, main, runtime={"async_slots": 2, "thread_slots": 1})


@pytest.mark.parametrize("seed", range(4))
def test_never_more_than_the_cap_run_at_once_and_the_cap_is_reached(seed: int) -> None:
    app = Penstock("order")
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()

    @app.task(limits={"host": lambda host: host, "pool": "all"})
    async def visit(ctx: Context, host: str, n: int) -> None:
        for key in (host, "all"):
            running[key] += 1
            most[key] = max(most[key], running[key])
        await asyncio.sleep(0.1 + 0.01 * (n % 7))
        for key in (host, "all"):
            running[key] -= 1

    async def main(world: World) -> None:
        for n in range(150):
            world.enqueue("visit", f"j{n}", host=f"h{n % 4}", n=n)

        await asyncio.gather(*(world.start(world.worker()) for _ in range(3)))

        assert set(world.states().values()) == {JobState.DONE}
        assert most == {"h0": 1, "h1": 3, "h2": 3, "h3": 3, "all": 8}

    limits = {"host": {"*": 3, "h0": 1}, "pool": {"all": 8}}
    simulate(app, main, seed=seed, runtime={"async_slots": 16}, limits=limits)


def test_a_blocked_host_costs_the_others_nothing() -> None:
    app = Penstock("order")
    ended: dict[str, float] = {}

    @app.task(limits={"host": lambda host: host})
    async def visit(ctx: Context, host: str) -> None:
        await asyncio.sleep(100 if host == "slow" else 0.1)
        ended[ctx.job.key] = asyncio.get_running_loop().time()

    async def main(world: World) -> None:
        for n in range(50):
            world.enqueue("visit", f"slow-{n}", host="slow")
        for n in range(40):
            world.enqueue("visit", f"fast-{n}", host=f"fast{n % 4}")
        running = world.start(world.worker())
        await asyncio.sleep(20)

        assert len(ended) == 40
        assert max(ended.values()) < 2  # 40 jobs on 4 hosts, one at a time, 0.1 s each
        running.cancel()

    simulate(app, main, runtime={"async_slots": 8}, limits={"host": {"*": 1}})


@pytest.mark.parametrize("seed", range(depth(quick=5, soak=100)))
def test_two_hundred_random_jobs_drain_without_an_idle_moment(seed: int) -> None:
    """Goal: no lost wake-up. Method: random sleeps, failures, limits, edges and fan-outs on a
    shuffled loop; a watcher looks every 50 ms that no job is ready for longer than that while
    nothing runs. A worker that would wait for ever is a Deadlock of the loop."""
    app = Penstock("seeds")
    rng = random.Random(seed)
    slots = rng.choice([1, 3, 8, 32])
    busy = [0]  # running bodies

    async def body(ctx: Context, seconds: float, fails: int) -> None:
        busy[0] += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            busy[0] -= 1
        if ctx.job.attempt <= fails:
            raise ValueError("again")

    @app.task()
    async def plain(ctx: Context, seconds: float, fails: int) -> None:
        await body(ctx, seconds, fails)

    @app.task(limits={"host": lambda host: host})
    async def limited(ctx: Context, seconds: float, fails: int, host: str) -> None:
        await body(ctx, seconds, fails)

    @app.task()
    def threaded(ctx: Context, skips: bool) -> None:
        if skips:
            raise Skip("as told")

    @app.task()
    async def spreads(ctx: Context, count: int) -> None:
        for n in range(count):
            ctx.enqueue(plain.job(seconds=0.05, fails=0), key=f"{ctx.job.key}/{n}")

    async def main(world: World) -> None:
        keys: list[str] = []
        for n in range(200):
            kind = rng.choice(["plain", "plain", "limited", "threaded", "spreads"])
            after = rng.sample(keys, k=min(len(keys), rng.choice([0, 0, 0, 1, 2])))
            delay = rng.choice([0.0, 0.0, 0.0, rng.uniform(0, 5)])
            arguments: dict[str, Any] = {}
            if kind in ("plain", "limited"):
                arguments = {
                    "seconds": rng.choice([0.0, 0.001, rng.uniform(0, 0.5)]),
                    "fails": rng.choice([0, 0, 0, 0, 1, 2, 3]),
                }
            if kind == "limited":
                arguments["host"] = rng.choice("abc")
            if kind == "threaded":
                arguments["skips"] = rng.random() < 0.2
            if kind == "spreads":
                arguments["count"] = rng.randint(0, 4)
            group = rng.choice([None, "g1", "g2", "g3"])
            world.enqueue(kind, f"j{n}", after=after, delay=delay, group=group, **arguments)
            keys.append(f"j{n}")

        watching = asyncio.get_running_loop().create_task(watch(world))
        await asyncio.gather(*(world.start(world.worker()) for _ in range(rng.choice([1, 1, 2]))))
        assert not watching.done(), watching.exception()
        watching.cancel()

        states = Counter(world.states().values())
        assert set(states) <= {"done", "error", "skipped"}
        assert states[JobState.DONE] > 50

    async def watch(world: World) -> None:
        """While nothing runs, no job has been ready for long."""
        while True:
            await asyncio.sleep(0.05)
            oldest = world.store.stats().result().oldest_ready_seconds
            if oldest is not None and busy[0] == 0:
                assert oldest < 0.05, f"seed {seed}: a ready job waits though nothing runs"

    simulate(
        app,
        main,
        seed=seed,
        runtime={"async_slots": slots, "thread_slots": 2},
        limits={"host": {"*": 2}},
    )
