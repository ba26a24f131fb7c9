# SPDX-License-Identifier: Apache-2.0
"""Do the commands of an operator reach real workers at once?"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.model.job import JobState, NewJob
from penstock.stores.sqlite.store import SqliteStore
from tests.forked import Forked
from tests.processes import children_of, cpu_seconds, kill_run
from tests.waiting import wait_until

CONFIG = """
app = "shop.py"
store = "sqlite:///shop.db"
durability = "normal"
[runtime]
async_slots = 2
grace_seconds = 1.0
[limits.host]
"*" = 2
"""
APP = """
import asyncio
from penstock import Context, Penstock

app = Penstock("shop")

@app.task(limits={"host": "h"})
async def nap(ctx: Context, seconds: float = 0.02) -> None:
    await asyncio.sleep(seconds)
"""


class Shop:
    """One project folder, its store, and one run in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "penstock.toml").write_text(CONFIG)
        (folder / "shop.py").write_text(APP)
        self.store = SqliteStore.open(folder / "shop.db", durability="normal")
        self.run: subprocess.Popen[str] | None = None

    def add(self, count: int, payload: str = "{}") -> None:
        def job(n: int) -> NewJob:
            return NewJob(
                key=f"k{n}", task="nap", payload=payload, group="nap", limit_keys=("host:h",)
            )

        self.store.enqueue([job(n) for n in range(count)]).result()

    def _popen(self, *arguments: str) -> subprocess.Popen[str]:
        return Forked(
            [sys.executable, "-m", "penstock.cli.main", "queue", *arguments],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        self.run = self._popen("run", *arguments)
        return self.run

    def command(self, *arguments: str) -> None:
        process = self._popen(*arguments)
        _, err = process.communicate(timeout=240)
        assert process.returncode == 0, err

    def states(self) -> dict[JobState, int]:
        return self.store.stats().result().states

    def close(self) -> None:
        if self.run is not None:
            kill_run(self.run)
        assert self.store.check().result() == []
        self.store.close()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    yield shop
    shop.close()


def test_a_running_worker_stops_and_goes_on_at_once(shop: Shop) -> None:
    """Not one job is leased after a pause; what was leased before still runs."""
    shop.add(2_000)
    shop.start()
    wait_until(lambda: shop.states()[JobState.DONE] > 10)

    shop.store.set_paused(True).result()
    taken = shop.store.stats().result().states
    wait_until(lambda: shop.states()[JobState.IN_PROGRESS] == 0)
    time.sleep(0.5)
    done = shop.states()[JobState.DONE]
    shop.store.set_paused(False).result()
    wait_until(lambda: shop.states()[JobState.DONE] > done)

    assert done == taken[JobState.DONE] + taken[JobState.IN_PROGRESS] < 2_000


def test_a_paused_drain_says_so_and_waits(shop: Shop) -> None:
    shop.add(3)
    shop.store.set_paused(True).result()
    run = shop.start("--drain")
    assert run.stderr is not None
    said = next(line for line in run.stderr if "queue is paused" in line)
    assert run.poll() is None

    shop.command("resume")
    run.communicate(timeout=240)

    assert "the queue is paused; 'penstock queue resume" in said
    assert run.returncode == 0
    assert shop.states()[JobState.DONE] == 3


def test_a_paused_worker_rests(shop: Shop) -> None:
    """It must not ask the store in a circle while work is there that it may not take."""
    shop.add(10)
    shop.store.set_paused(True).result()
    run = shop.start()
    wait_until(lambda: shop.store.stats().result().workers == 1)
    (worker,) = children_of(run.pid)

    def rests() -> bool:
        before = cpu_seconds(worker)
        time.sleep(1.0)
        return cpu_seconds(worker) - before < 0.1

    wait_until(rests, 30)  # its start takes some seconds on a busy machine


def test_a_limit_that_is_changed_holds_for_a_running_worker(shop: Shop) -> None:
    shop.add(6, '{"seconds": 0.1}')
    shop.store.set_cap("host:h", 0).result()
    shop.start()
    wait_until(lambda: shop.store.stats().result().workers == 1)
    time.sleep(0.3)
    assert shop.states()[JobState.QUEUED] == 6

    shop.store.set_cap("host:h", 1).result()
    wait_until(lambda: shop.states()[JobState.DONE] >= 2)
    assert shop.store.holders(10).result().get("host:h", 0) <= 1

    shop.store.set_cap("host:h", None).result()
    wait_until(lambda: shop.states()[JobState.DONE] == 6)
