# SPDX-License-Identifier: Apache-2.0
"""Is it told why jobs wait for a limit, once, and in good time?"""

from __future__ import annotations

import asyncio
import logging

import pytest

from penstock import Context, Penstock
from penstock.model.job import JobState
from tests.unit.worker.worker_world import World, simulate


def make_app() -> Penstock:
    app = Penstock("limits")

    @app.task(limits={"host": lambda host: host})
    async def visit(ctx: Context, host: str, seconds: float = 0.0) -> None:
        await asyncio.sleep(seconds)

    return app


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage() for record in caplog.records if "Jobs wait for" in record.getMessage()
    ]


def test_a_limit_of_zero_is_told_at_once_and_jobs_go_on_when_it_is_raised(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    async def main(world: World) -> None:
        world.store.set_cap("host:a", 0).result()
        for key, host in (("first", "a"), ("second", "a"), ("other", "b")):
            world.enqueue("visit", key, host=host)
        aio_task = asyncio.get_running_loop().create_task(world.drain())
        await asyncio.sleep(5)
        assert world.states()["other"] is JobState.DONE
        assert world.states()["first"] is JobState.QUEUED
        assert told(caplog) == [
            "Jobs wait for the limit 'host:a', which is 0: nothing runs until it is raised."
        ]
        await asyncio.sleep(60)
        assert len(told(caplog)) == 1
        world.store.set_cap("host:a", 2).result()
        await aio_task
        assert world.states()["second"] is JobState.DONE

    simulate(make_app(), main)
    reasons = [r.getMessage() for r in caplog.records if r.getMessage().startswith("Waiting: ")]
    assert reasons == [
        "Waiting: 2 jobs are queued: waiting for the limit 'host:a', which is 0: nothing runs "
        "until it is raised."
    ]


def test_a_full_limit_is_told_after_ten_seconds_with_its_holders(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    async def main(world: World) -> None:
        world.store.set_cap("host:a", 1).result()
        world.enqueue("visit", "long", host="a", seconds=30.0)
        world.enqueue("visit", "next", host="a")
        aio_task = asyncio.get_running_loop().create_task(world.drain())
        await asyncio.sleep(9)
        assert told(caplog) == []
        await asyncio.sleep(5)
        assert told(caplog) == ["Jobs wait for the limit 'host:a' of 1, held by 'long'."]
        await aio_task
        assert world.states()["next"] is JobState.DONE

    simulate(make_app(), main)
    assert len(told(caplog)) == 1


def test_a_limit_of_zero_in_settings_stops_its_jobs_only() -> None:
    async def main(world: World) -> None:
        for host in ("a", "b", "c"):
            world.enqueue("visit", host, host=host)
        aio_task = asyncio.get_running_loop().create_task(world.drain())
        await asyncio.sleep(60)

        assert world.states() == {
            "a": JobState.QUEUED,
            "b": JobState.DONE,
            "c": JobState.DONE,
        }
        world.store.cancel(["a"]).result()
        await aio_task

    simulate(make_app(), main, limits={"host": {"a": 0, "*": 1}})
