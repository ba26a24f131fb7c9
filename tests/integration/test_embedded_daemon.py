# SPDX-License-Identifier: Apache-2.0
"""Do both phases run inside a program, on a real loop, store and threads?"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import Context, Penstock, TickContext
from penstock.calendars import Custom
from penstock.errors import PreflightFailed
from penstock.model.job import JobState
from tests.waiting import wait_until


class Watched:
    """An app on a store of its own; events end it."""

    def __init__(self, folder: Path) -> None:
        self.app = Penstock("watched", store=f"sqlite:///{folder}/watched.db")
        self.ticks: list[str] = []
        self.bodies = 0
        self.check: Any = None
        names = self.app.partitions("name", ["a", "b"])

        @self.app.preflight(over=names)
        def reachable(ctx: Context, name: str) -> str:
            if self.check is not None:
                self.check(name)
            return name.upper()

        @self.app.task()
        async def event(ctx: Context, number: int) -> Any:
            self.bodies += 1
            return [ctx.job.partition, dict(ctx.preflight)]

        @self.app.every(timedelta(milliseconds=20), over=names)
        async def poll(ctx: TickContext, name: str) -> None:
            self.bodies += 1
            number = (ctx.cursor or 0) + 1
            ctx.cursor = number
            self.ticks.append(f"{name} {number}")
            ctx.enqueue(event.job(number), key=f"event {name} {number}")

        @self.app.task()
        def last(ctx: Context) -> None:
            wait_until(lambda: {"a 3", "b 3"} <= set(self.ticks))

        self.last = last


@pytest.fixture
def watched(tmp_path: Path) -> Any:
    made = Watched(tmp_path)
    yield made
    made.app.close()


def test_a_daemon_that_drains_checks_ticks_and_works(watched: Watched) -> None:
    watched.app.enqueue(watched.last.job(), key="last")
    report = watched.app.run(daemon=True, drain=True)
    store = watched.app.store
    assert report.errors == 0
    assert report.ended_schedule is None
    for name in "ab":
        key = f"schedule:poll:{name}"
        cursor, unit = store.cursor(key).result(), store.unit(key).result()
        assert unit is not None
        assert cursor == str(unit.ticks)
        assert watched.ticks.count(f"{name} 3") == 1
        job = store.job(f"event {name} 3").result()
        assert job is not None
        assert job.state is JobState.DONE
        assert job.result == f'["{name}",{{"reachable":"{name.upper()}"}}]'
    events = sum(1 for _ in watched.ticks)
    assert report.done == events + 1  # ticks themselves do not count
    assert store.check().result() == []


def test_a_check_that_fails_ends_the_start_with_all_failures(watched: Watched) -> None:
    def check(name: str) -> None:
        raise ValueError(f"{name} is not there")

    watched.check = check
    with pytest.raises(PreflightFailed) as caught:
        watched.app.run(daemon=True)
    assert set(caught.value.failures) == {"preflight:reachable:a", "preflight:reachable:b"}
    assert watched.bodies == 0
    assert watched.app.store.units(None, "", 10).result() == []


def test_a_signal_ends_checks_that_hang_in_threads(watched: Watched) -> None:
    hangs, free = threading.Event(), threading.Event()

    def check(name: str) -> None:
        hangs.set()
        free.wait(60)

    watched.check = check

    def interrupt() -> None:
        hangs.wait(60)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=interrupt, daemon=True).start()
    try:
        report = watched.app.run(daemon=True)
    finally:
        free.set()
    assert report.stopped
    assert watched.bodies == 0
    assert watched.app.store.units(None, "", 10).result() == []


def test_cancelling_it_in_the_first_phase_ends_it(watched: Watched) -> None:
    hangs, free = threading.Event(), threading.Event()

    def check(name: str) -> None:
        hangs.set()
        free.wait(60)

    watched.check = check

    async def main() -> None:
        running = asyncio.create_task(watched.app.run_async(daemon=True))
        await asyncio.to_thread(wait_until, hangs.is_set)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    try:
        asyncio.run(main())
    finally:
        free.set()
    assert watched.bodies == 0


def test_datasets_are_kept_current_inside_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = Penstock("kept", store=f"sqlite:///{tmp_path}/kept.db")
    moments = [datetime(2024, 1, day, tzinfo=UTC) for day in (1, 2, 3)]

    @app.dataset(calendar=Custom(moments))
    def days(ctx: Context, at: datetime) -> bytes:
        return at.isoformat().encode()

    app.keep_current(days, since="2024-01-02", every="1h")

    async def run_until_built() -> None:
        running = asyncio.create_task(app.run_async(daemon=True))
        while app.store.open_plans().result() or len(days.files()) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    try:
        asyncio.run(asyncio.wait_for(run_until_built(), 240))
        assert [path.parent.name[:10] for path in days.files()] == ["2024-01-02", "2024-01-03"]
        assert app.store.locks().result() == []
        assert app.store.check().result() == []
    finally:
        app.close()
