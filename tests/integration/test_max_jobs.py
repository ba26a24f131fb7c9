# SPDX-License-Identifier: Apache-2.0
"""Does a run with --max-jobs start so many jobs and no more, however many processes it has?"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import Context, Penstock, TickContext
from penstock.errors import UsageError
from penstock.model.job import JobState
from tests.faults.shop import NOTES, Shop, ends_in_time
from tests.processes import children_of
from tests.waiting import wait_until

pytestmark = pytest.mark.faults

APP = (
    NOTES
    + """
@app.task()
async def sleeps(ctx: Context, seconds: float) -> None:
    note("start", ctx)
    await asyncio.sleep(seconds)
    note("end", ctx)

@app.task(max_attempts=2)
def fails(ctx: Context) -> None:
    note("start", ctx)
    raise ValueError("no")

@app.task()
def waits_first(ctx: Context) -> None:
    note("start", ctx)
    while not os.path.exists(HERE + "/go"):
        time.sleep(0.01)
"""
)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path, APP)
    yield shop
    shop.close()


def test_several_processes_start_so_many_and_give_the_rest_back(shop: Shop) -> None:
    shop.add("sleeps", 60, seconds=0.05)

    run = shop.run("--max-jobs", "23", "--processes", "3")
    ends_in_time(run)

    assert run.returncode == 0
    assert len(shop.bodies()) == len(shop.bodies("end")) == 23
    assert Counter(shop.states().values()) == {JobState.DONE: 23, JobState.QUEUED: 37}
    assert {shop.job(key).attempts for key in shop.states()} == {0}

    code, err = shop.drain()
    assert (code, err.count("max_jobs")) == (0, 0)
    assert set(shop.starts().values()) == {1}
    assert shop.store.check().result() == []


def test_a_killed_worker_costs_starts_and_adds_none(shop: Shop) -> None:
    shop.add("waits_first", 12)
    run = shop.run("--max-jobs", "6", "--processes", "2")
    wait_until(lambda: len(shop.bodies()) >= 4)  # two threads each
    worker = next(pid for pid in children_of(run.pid))

    os.kill(worker, signal.SIGKILL)
    (shop.folder / "go").touch()
    ends_in_time(run)

    assert len(shop.bodies()) == 6
    assert Counter(shop.states().values())[JobState.DONE] <= 6
    assert JobState.IN_PROGRESS not in shop.states().values()
    assert shop.store.check().result() == []


def test_each_start_counts_and_a_job_that_failed_makes_the_exit_code_1(shop: Shop) -> None:
    shop.add("fails", 1)

    run = shop.run("--max-jobs", "1")
    ends_in_time(run)
    assert run.returncode == 0  # it may be tried again, by another run
    assert list(shop.states().values()) == [JobState.QUEUED]

    run = shop.run("--max-jobs", "1")
    ends_in_time(run)
    assert run.returncode == 1
    assert list(shop.states().values()) == [JobState.ERROR]


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Penstock]:
    monkeypatch.chdir(tmp_path)
    app = Penstock("inside")
    yield app
    app.close()


def test_an_embedded_run_ends_after_so_many(app: Penstock) -> None:
    @app.task()
    async def work(ctx: Context, n: int) -> int:
        return n

    app.enqueue_many(work.job(n=n) for n in range(10))

    report = app.run(max_jobs=4)
    assert (report.done, report.stopped) == (4, False)
    report = asyncio.run(app.run_async(max_jobs=100, drain=True))  # whichever comes first
    assert report.done == 6
    with pytest.raises(UsageError, match="max_jobs must be a whole number"):
        app.run(max_jobs=0)


def test_ticks_of_schedules_do_not_count(app: Penstock) -> None:
    ticks = 0

    @app.task()
    async def work(ctx: Context, n: int) -> int:
        return n

    @app.every(0.02)
    async def poll(ctx: TickContext) -> None:
        nonlocal ticks
        ticks += 1
        if ticks == 5:
            ctx.enqueue(work.job(n=1), key="one")
            ctx.enqueue(work.job(n=2), key="two")

    report = app.run(daemon=True, max_jobs=1)

    assert report.done == 1
    assert ticks >= 5
    assert sorted(str(app.job(key).state) for key in ("one", "two")) == ["done", "queued"]
