# SPDX-License-Identifier: Apache-2.0
"""Does a build inside a program go on where it was, wait for others, and run every kind of body?"""

from __future__ import annotations

import asyncio
import importlib
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import polars
import pyarrow
import pytest

from penstock import Context, Penstock, RunProgress, Slices
from penstock.calendars import Daily
from penstock.errors import UsageError
from penstock.model.plan import PlanState
from tests.building import DAY_1, DAY_3, DAY_4, SQLITE, Builder, Chain, builder

WAIT_SECONDS = 30.0


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def chain() -> Chain:
    return Chain()


@pytest.fixture
def made(chain: Chain) -> Iterator[Builder]:
    with builder(chain.app, SQLITE) as found:
        yield found
        found.check()


class Pause:
    """Holds bodies of one name until somebody lets them go."""

    def __init__(self, chain: Chain, name: str) -> None:
        self._name = name
        self.reached = threading.Event()
        self.go = threading.Event()
        chain.calls.stop_at = self._stop

    def _stop(self, name: str) -> None:
        if name.startswith(self._name):
            self.reached.set()
            assert self.go.wait(WAIT_SECONDS)


async def stopped(app: Penstock, pause: Pause) -> None:
    """A build that is stopped while bodies run; these may end."""
    build = asyncio.create_task(app.build_async("total", start=DAY_1, end=DAY_4))
    assert await asyncio.to_thread(pause.reached.wait, WAIT_SECONDS)
    build.cancel()
    await asyncio.sleep(0)
    pause.go.set()
    with pytest.raises(asyncio.CancelledError):
        await build


def test_a_build_that_was_stopped_goes_on_where_it_was(chain: Chain, made: Builder) -> None:
    asyncio.run(stopped(chain.app, Pause(chain, "mean")))
    (plan,) = made.store.open_plans().result()
    assert plan.state is PlanState.LEFT
    assert made.store.locks().result() == []
    assert made.committed("prices") == [31, 1, 2, 3]
    assert made.committed("mean") == []
    report = made.build("total", start=DAY_1, end=DAY_4)
    assert report.ok
    assert report.plan_id == plan.id
    assert report.slices == 10
    made_names = chain.calls.take()
    assert len(made_names) == len(set(made_names)) == 10


def test_a_build_tells_its_progress_while_it_works_and_at_the_end(
    chain: Chain, made: Builder
) -> None:
    pause, told = Pause(chain, "mean"), list[RunProgress]()

    def tell(progress: RunProgress) -> None:
        told.append(progress)
        pause.go.set()  # bodies wait for the first one

    report = chain.app.build("total", start=DAY_1, end=DAY_4, on_progress=tell)

    assert report.ok
    first, *_, last = told
    assert (first.is_last, first.left > 0, first.run_id) == (False, True, report.run_id)
    assert (last.is_last, last.left, last.errors) == (True, 0, 0)
    assert last.done > first.done


def test_a_worker_of_the_queue_lets_a_plan_that_was_left_rest(
    chain: Chain, made: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_RUNTIME__THREAD_SLOTS", "1")
    asyncio.run(stopped(chain.app, Pause(chain, "mean")))
    before = chain.calls.take()
    assert len(before) == 5  # four prices, and the only mean that ran
    chain.app.run(drain=True)
    assert chain.calls.take() == []
    assert made.build("total", start=DAY_1, end=DAY_4).ok
    assert len(chain.calls.take()) == 10 - len(before)


def test_the_second_of_two_builds_waits_and_finds_the_work_done(
    chain: Chain, made: Builder
) -> None:
    pause = Pause(chain, "mean")
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(made.build, "total", start=DAY_1, end=DAY_4)
        assert pause.reached.wait(WAIT_SECONDS)
        second = threads.submit(made.build, "mean", start=DAY_1, end=DAY_4)
        pause.go.set()
        assert first.result().slices == 10
        assert second.result().plan_id is None
        assert second.result().fresh == 7
    assert len(chain.calls.take()) == 10


def test_every_kind_of_output_can_be_read_back(tmp_path: Path) -> None:
    app = Penstock("kinds")

    @app.dataset(calendar=Daily())
    def rows(ctx: Context, at: datetime) -> list[dict[str, Any]]:
        return [{"day": at.day}]

    @app.dataset(calendar=Daily(), needs=[rows])
    def table(ctx: Context, at: datetime, rows: Slices) -> pyarrow.Table:
        return rows.table()

    @app.dataset(calendar=Daily(), needs=[table])
    async def frame(ctx: Context, at: datetime, table: Slices) -> polars.DataFrame:
        found = polars.from_arrow(table.table())
        assert isinstance(found, polars.DataFrame)
        return found.with_columns(twice=polars.col("day") * 2)

    @app.dataset(calendar=Daily(), needs=[frame])
    def raw(ctx: Context, at: datetime, frame: Slices) -> bytes:
        return str(frame.rows()).encode()

    @app.dataset(calendar=Daily(), needs=[raw])
    def length(ctx: Context, at: datetime, raw: Slices) -> list[dict[str, int]]:
        return [{"bytes": len(raw.bytes())}]

    with builder(app, SQLITE) as made:
        report = made.build(length, start=DAY_1, end="2024-01-02")
        assert report.ok
        assert made.rows("frame") == [{"day": 1, "twice": 2}]
        assert made.rows("length") == [{"bytes": len("[{'day': 1, 'twice': 2}]")}]
        (file,) = raw.files()
        assert file.read_bytes() == b"[{'day': 1, 'twice': 2}]"
        assert polars.read_parquet(frame.files()).to_dicts() == [{"day": 1, "twice": 2}]
        made.check()


PROCESSES = """
import os
from collections.abc import Sequence
from datetime import datetime
from penstock import Context, Penstock, RunProgress, Slices
from penstock.calendars import Daily

app = Penstock("processes")

@app.dataset(calendar=Daily(), executor="process", max_attempts=1)
def plain(ctx: Context, at: datetime) -> list[dict[str, int]]:
    if at.day == 3:
        raise ValueError("not on the third")
    return [{"day": at.day, "pid": os.getpid()}]

@app.dataset(calendar=Daily(), needs=[plain.exact()], executor="process", batch=2)
async def twice(
    ctx: Context, at: Sequence[datetime], plain: Slices
) -> dict[datetime, list[dict[str, int]]]:
    days = {t: plain.of(t).rows()[0]["day"] for t in at}
    return {t: [{"day": 2 * day, "pid": os.getpid()}] for t, day in days.items()}
"""


def test_bodies_in_other_processes_read_and_write_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "built_elsewhere.py").write_text(PROCESSES)
    monkeypatch.syspath_prepend(str(tmp_path))
    app = importlib.import_module("built_elsewhere").app
    with builder(app, SQLITE) as made:
        report = made.build("twice", start=DAY_1, end=DAY_3)
        assert report.ok
        assert [row["day"] for row in made.rows("twice")] == [2, 4]
        pids = {row["pid"] for row in made.rows("twice")}
        assert pids.isdisjoint({0, threading.get_native_id()})
        failed = made.build("twice", start=DAY_3, end=DAY_4)
        assert [x.error.message for x in failed.failed if x.error] == ["not on the third"]
        made.check()


def test_what_cannot_be_planned_makes_neither_store_nor_root(tmp_path: Path) -> None:
    app = Penstock("refused")

    @app.dataset(calendar=Daily("12:30"))
    def prices(ctx: Context, at: datetime) -> bytes:
        return b""

    @app.dataset(calendar=Daily(), needs=[prices.exact()])
    def report(ctx: Context, at: datetime, prices: Slices) -> bytes:
        return b""

    with pytest.raises(UsageError, match="needs prices at exactly"):
        app.build(report, start=DAY_1, end=DAY_3)

    assert list(tmp_path.iterdir()) == []


def test_a_second_store_sweeps_nothing_of_the_first_ones_root(
    made: Builder, chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.build("prices", start=DAY_1, end=DAY_3)
    files = made.app.datasets["prices"].files()
    other = Chain()
    monkeypatch.setenv("PENSTOCK_STORE", "sqlite:///other.db")

    try:
        with pytest.raises(UsageError, match="keeps the slices of another store"):
            other.app.build("prices", start=DAY_1, end=DAY_3)
        assert other.app.store.locks().result() == []
    finally:
        other.app.close()

    assert other.calls.take() == []
    assert all(path.exists() for path in files)


def test_a_root_that_was_removed_is_built_anew(made: Builder, chain: Chain, tmp_path: Path) -> None:
    made.build("mean", start=DAY_1, end=DAY_3)
    first = chain.calls.take()
    shutil.rmtree(tmp_path / "datasets")

    assert made.app.plan_build("mean", start=DAY_1, end=DAY_3).jobs == len(first)
    report = made.build("mean", start=DAY_1, end=DAY_3)

    assert report.ok
    assert chain.calls.take() == first
    assert [row["mean"] for row in made.rows("mean")] == [16.0, 1.5]
    assert made.build("mean", start=DAY_1, end=DAY_3).plan_id is None
    (row, _) = made.store.manifests("mean", -1 << 62, 1 << 62, 10).result().rows
    assert row.version == "1"


def test_slices_of_another_root_are_not_there(
    made: Builder, chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.build("prices", start=DAY_1, end=DAY_3)
    made.build("weather", start=DAY_1, end=DAY_3)
    chain.calls.take()
    monkeypatch.setenv("PENSTOCK_DATASETS__ROOT", "elsewhere")

    made.build("prices", start=DAY_1, end=DAY_3)

    assert chain.calls.take() == ["prices@01", "prices@02"]
    assert {path.parts[-4] for path in made.app.datasets["prices"].files()} == {"elsewhere"}
    monkeypatch.delenv("PENSTOCK_DATASETS__ROOT")
    made.build("prices", "weather", start=DAY_1, end=DAY_3)
    assert chain.calls.take() == ["prices@01", "prices@02"]
    assert made.rows("weather") == [{"rain": False}, {"rain": True}]


def test_limits_hold_for_datasets_and_may_be_configured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "penstock.toml").write_text("[limits.vendor]\nacme = 1\n")
    app = Penstock("limited")
    running: list[int] = []
    most: list[int] = []

    @app.dataset(calendar=Daily(), limits={"vendor": "acme"})
    async def prices(ctx: Context, at: datetime) -> bytes:
        running.append(at.day)
        most.append(len(running))
        await asyncio.sleep(0.01)
        running.remove(at.day)
        return b""

    with builder(app, SQLITE) as made:
        assert made.build("prices", start=DAY_1, end=DAY_4).ok
        assert set(most) == {1}


def test_a_signal_stops_a_build_and_the_same_one_goes_on(chain: Chain, made: Builder) -> None:
    signalled = threading.Event()

    def interrupt(name: str) -> None:
        if name.startswith("mean") and not signalled.is_set():
            signalled.set()
            os.kill(os.getpid(), signal.SIGINT)

    chain.calls.stop_at = interrupt
    first = made.build("total", start=DAY_1, end=DAY_4)
    assert first.stopped
    assert not first.ok
    assert made.committed("total") == []
    second = made.build("total", start=DAY_1, end=DAY_4)
    assert second.ok
    assert second.plan_id == first.plan_id
    names = chain.calls.take()
    assert len(names) == len(set(names)) == 10
