# SPDX-License-Identifier: Apache-2.0
"""Do the programs that tasks start end with their task and with their worker?

They are counted from outside, by a mark in their command line: plain children, such with a session
of their own, and daemons that nobody waits for.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.model.job import JobState
from tests.faults.shop import CONFIG, NOTES, Shop
from tests.processes import children_of
from tests.waiting import wait_until

pytestmark = pytest.mark.faults

WINDOW_SECONDS = 2.0  # programs of two bodies may be seen at once for so long
KINDS = 3  # of programs that each body starts
APP = (
    NOTES
    + """
import shutil, subprocess

MARK = os.path.basename(HERE) + "-program"
SLEEP = shutil.which("sleep")

def start_programs():
    subprocess.Popen([MARK, "300"], executable=SLEEP)
    subprocess.Popen([MARK, "300"], executable=SLEEP, start_new_session=True)
    code = (
        "import os\\nif os.fork() == 0:\\n os.setsid()\\n"
        f" if os.fork() == 0: os.execve({SLEEP!r}, [{MARK!r}, '300'], {{}})"
    )
    subprocess.run([sys.executable, "-S", "-c", code], check=True)

@app.task(executor="process", max_attempts=1, timeout=0.7, limits={"door": "one"})
def starts(ctx: Context, how: str) -> int:
    start_programs()
    note("start", ctx)
    if how == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "raise":
        raise ValueError("no")
    if how == "hang":
        time.sleep(600)
    return os.getpid()

@app.task(executor="process", limits={"door": "one"})
def stays(ctx: Context) -> None:
    start_programs()
    note("start", ctx)
    time.sleep(600)

@app.task()
def stays_in_thread(ctx: Context) -> None:
    start_programs()
    note("start", ctx)
    time.sleep(600)

@app.task()
def hoards(ctx: Context) -> None:
    start_programs()
    note("start", ctx)
    ctypes.PyDLL(None).sleep(600)  # a C call that keeps the GIL
"""
).replace("import asyncio", "import sys, asyncio", 1)


class Watch:
    """Counts programs all the time, and how long there were more than one body may start."""

    def __init__(self, mark: str) -> None:
        self._mark = mark.encode()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        self.seen_max = 0
        self.crowded_seconds = 0.0

    def count(self) -> int:
        found = 0
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    found += (entry / "cmdline").read_bytes().startswith(self._mark)
                except OSError:
                    continue
        return found

    def _watch(self) -> None:
        since: float | None = None
        while not self._over.wait(0.02):
            now, count = time.monotonic(), self.count()
            self.seen_max = max(self.seen_max, count)
            since = (since or now) if count > KINDS else None
            self.crowded_seconds = max(self.crowded_seconds, 0.0 if since is None else now - since)

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path, APP, CONFIG + "[limits.door]\none = 1\n")
    yield shop
    shop.close()


@pytest.fixture
def watch(shop: Shop) -> Iterator[Watch]:
    watch = Watch(f"{shop.folder.name}-program")
    yield watch
    watch.stop()


def test_f75_programs_of_a_process_task_end_with_it_however_it_ends(
    shop: Shop, watch: Watch
) -> None:
    ways = ("hang", "crash", "raise", "return")
    for how in ways:
        shop.add("starts", name=how, limit_key="door:one", how=how)

    code, err = shop.drain()

    assert watch.count() == 0
    assert code == 1, err
    states = {how: shop.job(f"{how}-0").state for how in ways}
    assert states == {**dict.fromkeys(ways, JobState.ERROR), "return": JobState.DONE}
    assert watch.seen_max >= 1
    assert watch.crowded_seconds < WINDOW_SECONDS


@pytest.mark.parametrize(
    ("victims", "task"),
    [
        ("worker", "stays"),
        ("worker", "stays_in_thread"),
        ("supervisor", "stays"),
        ("supervisor", "hoards"),
        ("supervisor and worker", "stays_in_thread"),
    ],
)
def test_f75_programs_end_with_their_worker_whoever_dies_first(
    shop: Shop, watch: Watch, victims: str, task: str
) -> None:
    shop.add(task, limit_key="door:one")
    run = shop.run()
    wait_until(lambda: bool(shop.bodies()))
    (worker,) = children_of(run.pid)
    wait_until(lambda: watch.count() == KINDS)

    if "supervisor" in victims:
        os.kill(run.pid, signal.SIGKILL)
        run.wait()
    if "worker" in victims:
        os.kill(worker, signal.SIGKILL)
    if victims == "worker":
        wait_until(lambda: shop.starts()[f"{task}-0"] == 2)
        wait_until(lambda: watch.count() == KINDS)
        run.kill()

    wait_until(lambda: watch.count() == 0, WINDOW_SECONDS * 10)  # a busy machine
    assert watch.crowded_seconds < WINDOW_SECONDS
