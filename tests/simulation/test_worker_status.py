# SPDX-License-Identifier: Apache-2.0
"""Does a worker tell what it does when that changes, and answer within a second?"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest

from penstock import Context, Penstock
from penstock.clock import MICROSECONDS
from penstock.errors import StoreUnavailable
from penstock.model.job import WorkerId
from penstock.model.lease import JobRef
from penstock.model.views import WorkerView
from penstock.model.worker import (
    LeasePhase,
    LeaseReport,
    SlotUse,
    WorkerStatus,
    read_lease_report,
    read_status,
)
from penstock.worker.parts import Stopping
from tests.unit.worker.worker_world import World, simulate

SLOTS: dict[str, Any] = {"runtime": {"async_slots": 2}, "limits": {"host": {"*": 3}}}


def make_app() -> Penstock:
    app = Penstock("status")

    @app.task(timeout=100)
    async def naps(ctx: Context, seconds: float) -> None:
        await asyncio.sleep(seconds)

    @app.task()
    async def clings(ctx: Context) -> None:
        for _ in range(5):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(20)

    return app


def view(world: World) -> WorkerView:
    (found,) = world.store.workers().result()
    return found


def status(world: World) -> WorkerStatus:
    found = read_status(view(world).status)
    assert found is not None
    return found


async def standing(world: World, key: str) -> LeaseReport:
    """What the worker says of a job's lease, within a second."""
    job = world.job(key)
    number = world.store.ask(job.worker or view(world).id, JobRef(job.id, job.token)).result()
    await asyncio.sleep(1)
    found = read_lease_report(world.store.answer_to(number).result())
    assert found is not None
    return found


def test_a_worker_with_nothing_to_do_writes_its_row_once() -> None:
    async def main(world: World) -> None:
        worker = world.worker(drain=False)
        run = world.start(worker)
        await asyncio.sleep(2)
        first = view(world)
        await asyncio.sleep(600)

        assert view(world).status_at == first.status_at
        assert status(world).running == status(world).waiting == 0
        worker.stop(Stopping.NOW)
        await run

    simulate(make_app(), main, **SLOTS)


def test_full_slots_and_what_waits_for_them_are_told_with_numbers() -> None:
    async def main(world: World) -> None:
        for n in range(4):
            world.enqueue("naps", f"n{n}", seconds=50, group=f"g{n % 2}")
        worker = world.worker()
        run = world.start(worker)
        await asyncio.sleep(3)

        found = status(world)
        assert found.slots["async"] == SlotUse(2, 2)
        assert found.task_slots == {"naps": "async", "clings": "async"}
        assert found.caps == {"host:*": 3}
        assert (found.running, found.groups_total) == (2, 2)
        assert found.running + found.waiting == sum(
            use.running + use.waiting for use in found.groups.values()
        )
        if found.waiting:
            assert sum(line.tasks for line in found.blocked) == found.waiting
            assert found.blocked[0].reason == "no_capacity"
            assert found.blocked[0].resource == "async"
        await asyncio.sleep(20)
        assert status(world).blocked == found.blocked  # its `since` too
        await run

    simulate(make_app(), main, **SLOTS)


def test_a_row_is_written_no_more_than_once_a_second_however_much_changes() -> None:
    async def main(world: World) -> None:
        for n in range(2_000):
            world.enqueue("naps", f"n{n}", seconds=0.01)
        run = world.start(world.worker())
        written = set()
        for _ in range(160):
            await asyncio.sleep(0.05)
            written.add(view(world).status_at)
        times = sorted(at for at in written if at is not None)

        assert len(times) >= 3, times
        assert all(b - a >= MICROSECONDS for a, b in pairwise(times))
        await run

    simulate(make_app(), main, **SLOTS)


def test_a_question_about_a_running_job_is_answered_with_its_times() -> None:
    async def main(world: World) -> None:
        world.enqueue("naps", "n", seconds=50)
        run = world.start(world.worker())
        await asyncio.sleep(5)

        said = await standing(world, "n")

        assert said.standing is LeasePhase.RUNNING
        assert said.since_at is not None
        assert said.deadline_at is not None
        assert said.deadline_at - said.since_at == pytest.approx(100 * MICROSECONDS, abs=1_000)
        assert said.status.running == 1
        await run

    simulate(make_app(), main, **SLOTS)


def test_a_question_about_a_leased_job_that_waits_is_answered_with_what_it_waits_for() -> None:
    async def main(world: World) -> None:
        for n in range(500):  # it learns to lease ahead
            world.enqueue("naps", f"quick{n}", seconds=0.01)
        for n in range(20):
            world.enqueue("naps", f"n{n:02}", seconds=50)
        run = world.start(world.worker())
        await asyncio.sleep(5)
        leased = [f"n{n:02}" for n in range(20) if world.job(f"n{n:02}").worker is not None]
        said = [await standing(world, key) for key in leased]

        waiting = [found for found in said if found.standing is LeasePhase.WAITING]
        assert len([found for found in said if found.standing is LeasePhase.RUNNING]) == 2
        assert len(waiting) == len(leased) - 2 > 0
        assert waiting[0].denied is not None
        assert (waiting[0].denied.reason, waiting[0].denied.resource) == ("no_capacity", "async")
        await run

    simulate(make_app(), main, **SLOTS)


def test_a_question_about_a_job_that_was_told_to_stop_says_that_its_body_goes_on() -> None:
    async def main(world: World) -> None:
        world.enqueue("clings", "c")
        worker = world.worker(drain=False)
        run = world.start(worker)
        await asyncio.sleep(2)
        world.store.cancel(["c"]).result()
        await asyncio.sleep(1)

        told = await standing(world, "c")
        await asyncio.sleep(10)
        given_up = await standing(world, "c")

        assert (told.standing, given_up.standing) == (LeasePhase.STOPPING,) * 2
        assert told.deadline_at is not None
        assert given_up.deadline_at is None
        worker.stop(Stopping.NOW)
        await run

    simulate(make_app(), main, sound=False, **SLOTS)


def test_a_question_about_a_lease_that_it_does_not_have_is_answered_as_well() -> None:
    async def main(world: World) -> None:
        world.enqueue("naps", "n", seconds=50)
        world.enqueue("naps", "later", seconds=0, delay=10)
        run = world.start(world.worker())
        await asyncio.sleep(2)

        assert (await standing(world, "later")).standing is LeasePhase.UNKNOWN
        await run

    simulate(make_app(), main, **SLOTS)


def test_a_row_that_could_not_be_written_is_written_later() -> None:
    async def main(world: World) -> None:
        store = world.store
        store.fails("publish", StoreUnavailable("away"), times=3)
        world.enqueue("naps", "n", seconds=50)
        run = world.start(world.worker())
        await asyncio.sleep(2.5)
        assert view(world).status is None

        await asyncio.sleep(3)

        assert status(world).running == 1
        await run

    simulate(make_app(), main, **SLOTS)


def test_a_worker_that_signs_on_anew_tells_under_its_new_name() -> None:
    async def main(world: World) -> None:
        worker = world.worker(drain=False)
        run = world.start(worker)
        await asyncio.sleep(3)
        before = worker.worker_id
        world.beats[0].cut = True
        await asyncio.sleep(60)
        world.beats[0].cut = False
        await asyncio.sleep(60)

        assert worker.worker_id != before
        found = {row.id: row for row in world.store.workers().result()}
        assert found[WorkerId(worker.worker_id)].status is not None
        worker.stop(Stopping.NOW)
        await run

    simulate(make_app(), main, **SLOTS)


def test_a_worker_that_stops_says_so() -> None:
    async def main(world: World) -> None:
        world.enqueue("naps", "n", seconds=20)
        worker = world.worker(drain=False)
        run = world.start(worker)
        await asyncio.sleep(2)

        worker.stop(Stopping.GRACEFUL)
        await asyncio.sleep(2)

        assert status(world).stopping
        await run

    simulate(make_app(), main, **SLOTS)


def test_jobs_that_tell_how_far_they_are_are_in_the_row() -> None:
    app = Penstock("far")

    @app.task()
    async def counts(ctx: Context, to: int) -> None:
        for n in range(to):
            ctx.progress(n, to)
            await asyncio.sleep(10)

    @app.task()
    async def silent(ctx: Context) -> None:
        ctx.progress("half")  # type: ignore[arg-type]  # no number
        await asyncio.sleep(20)

    async def main(world: World) -> None:
        world.enqueue("counts", "a", to=4)
        world.enqueue("silent", "b")
        worker = world.worker(drain=True)
        running = world.start(worker)
        await asyncio.sleep(12)
        (told,) = status(world).progress
        assert (told.key, told.progress.format()) == ("a", "1 of 4 (25%)")
        await asyncio.sleep(10)
        assert [one.progress.done for one in status(world).progress] == [2]
        await running

    simulate(app, main)
