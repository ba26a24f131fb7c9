# SPDX-License-Identifier: Apache-2.0
"""What an attacker once found, and must not find again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.model.job import JobState
from penstock.stores.sqlite.store import SqliteStore
from penstock.supervisor.protocol import LINE_BYTES_MAX, Lines
from tests.faults.folder import states_in
from tests.forked import Forked, run_forked

pytestmark = pytest.mark.faults

PENSTOCK = [sys.executable, "-m", "penstock.cli.main"]
CONFIG = """
app = "shop.py"
store = "sqlite:///shop.db"
durability = "normal"
[runtime]
lease_ttl_seconds = 30.0
beat_seconds = 0.25
grace_seconds = 1.0
[tasks]
max_crashes = 2
"""
APP = """
import asyncio, os, subprocess, sys
from penstock import Context, Penstock

app = Penstock("shop")

@app.task()
async def good(ctx: Context, n: int) -> int:
    await asyncio.sleep(0.01)
    return n

@app.task()
async def kills_late(ctx: Context) -> int:
    asyncio.get_running_loop().call_soon(os._exit, 7)
    return 1

@app.task()
async def cancels_everybody(ctx: Context) -> int:
    for task in asyncio.all_tasks():
        if task is not asyncio.current_task():
            task.cancel()
    return 1

@app.task()
async def stops_the_loop(ctx: Context) -> int:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(1)
    return 1

@app.task()
def forks(ctx: Context) -> int:
    return os.fork()

@app.task()
async def writes_everywhere(ctx: Context) -> int:
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            if "socket" in os.readlink(f"/proc/self/fd/{fd}"):
                os.write(fd, b"nonsense\\n")
        except OSError:
            pass
    await asyncio.sleep(600)
    return 1

@app.task()
async def leaves_a_child(ctx: Context) -> int:
    return subprocess.Popen(["sleep", "300"], start_new_session=True).pid
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "penstock.toml").write_text(CONFIG)
    (tmp_path / "shop.py").write_text(APP)
    return tmp_path


def enqueue(folder: Path, *calls: str) -> None:
    lines = [f"app.enqueue({call})" for call in calls]
    code = "from shop import *\n" + "\n".join(lines)
    run_forked([sys.executable, "-c", code], cwd=folder, check=True)


def drain(folder: Path) -> subprocess.CompletedProcess[str]:
    return run_forked(
        [*PENSTOCK, "queue", "run", "--drain"],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.parametrize("culprit", ["kills_late", "cancels_everybody", "stops_the_loop"])
def test_a_task_that_breaks_its_worker_is_found_and_its_neighbours_are_done(
    folder: Path, culprit: str
) -> None:
    enqueue(
        folder,
        f"{culprit}.job(), key='bad'",
        *(f"good.job(n={n}), key='{n}'" for n in range(10)),
    )

    ended = drain(folder)

    found = states_in(folder / "shop.db")
    assert {found[str(n)] for n in range(10)} == {JobState.DONE}
    assert found["bad"] in (JobState.ERROR, JobState.DONE)
    if culprit == "kills_late":
        assert (found["bad"], ended.returncode) == (JobState.ERROR, 1)


def test_a_task_that_writes_to_its_supervisor_costs_its_worker_and_not_the_run(
    folder: Path,
) -> None:
    enqueue(folder, "writes_everywhere.job(), key='bad'", "good.job(n=1), key='good'")

    ended = drain(folder)

    assert "our bug" not in ended.stderr
    assert "written to a descriptor that is not its own" in ended.stderr
    assert ended.returncode == 1
    assert states_in(folder / "shop.db") == {"bad": JobState.ERROR, "good": JobState.DONE}


def test_a_forked_child_that_comes_back_from_a_body_is_not_a_second_worker(folder: Path) -> None:
    enqueue(folder, "forks.job(), key='fork'", "good.job(n=1), key='good'")

    ended = drain(folder)

    assert (ended.returncode, ended.stderr.count("Traceback")) == (0, 0)
    assert states_in(folder / "shop.db") == {"fork": JobState.DONE, "good": JobState.DONE}


def test_a_process_that_a_task_left_behind_does_not_hold_the_run_on_a_terminal(
    folder: Path,
) -> None:
    import pty

    enqueue(folder, "leaves_a_child.job(), key='k'")

    main_fd, terminal = pty.openpty()
    try:
        process = Forked(
            [*PENSTOCK, "queue", "run", "--drain"],
            cwd=folder,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
        )
        code = process.wait(timeout=240)
    finally:
        os.close(main_fd)
        os.close(terminal)

    assert code == 0
    assert states_in(folder / "shop.db") == {"k": JobState.DONE}
    with contextlib.closing(SqliteStore.open(folder / "shop.db")) as store:
        job = store.job("k").result()
    assert job is not None
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(job.result or ""), signal.SIGKILL)


def test_a_run_whose_streams_are_closed_does_its_work(folder: Path) -> None:
    enqueue(folder, "good.job(n=1), key='k'")

    command = " ".join([*PENSTOCK, "queue", "run", "--drain"])
    closed = subprocess.run(f"{command} <&- >&- 2>&-", shell=True, cwd=folder, timeout=240)

    assert closed.returncode == 0
    assert states_in(folder / "shop.db") == {"k": JobState.DONE}


def test_ctrl_c_in_a_waiting_enqueue_leaves_no_transaction_open(folder: Path) -> None:
    code = """
import apsw
from shop import app, good

app.enqueue(good.job(n=0), key="0")
holder = apsw.Connection("shop.db")
holder.execute("begin immediate").fetchall()
try:
    print("ready", flush=True)
    app.enqueue(good.job(n=1), key="1")
except KeyboardInterrupt:
    print("interrupted", flush=True)
holder.execute("rollback").fetchall()
print(app.enqueue(good.job(n=2), key="2").created, flush=True)
"""
    process = Forked([sys.executable, "-c", code], cwd=folder, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    rest = process.communicate(timeout=240)[0]

    assert rest.splitlines() == ["interrupted", "True"]
    assert {"0", "2"} <= set(states_in(folder / "shop.db"))


def test_a_line_without_an_end_is_cut() -> None:
    lines = Lines()

    found = lines.feed(b"x" * (LINE_BYTES_MAX + 1))

    assert [len(line) for line in found] == [LINE_BYTES_MAX + 1]
    assert lines.flush() == []
