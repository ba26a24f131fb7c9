# SPDX-License-Identifier: Apache-2.0
"""F62: signals end a run and a command in good order, at whatever moment they come."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.definitions.request import JobRequest, to_new_job
from penstock.model.job import JobState
from penstock.stores.sqlite.store import SqliteStore
from tests.faults.folder import states_in
from tests.faults.signal_matrix import COVER, SIGNALS, Case
from tests.forked import Forked, run_forked
from tests.waiting import wait_until

pytestmark = pytest.mark.faults

PENSTOCK = [sys.executable, "-m", "penstock_command"]
CONFIG = 'app = "shop.py"\nstore = "sqlite:///shop.db"\ndurability = "normal"\n'
APP = """
import os, signal, sys, time
from penstock import Context, Penstock

app = Penstock("shop")
if os.path.exists("slow"):
    open("importing", "w").close()
    time.sleep(20)

@app.task(max_attempts=1)
async def prints(ctx: Context, n: int) -> int:
    for _ in range(3):
        print("x" * 1000, flush=True)
    return n

@app.task()
async def quiet(ctx: Context, n: int) -> int:
    return n
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "penstock.toml").write_text(CONFIG)
    (tmp_path / "shop.py").write_text(APP)
    return tmp_path


def fill(folder: Path, task: str, count: int) -> None:
    store = SqliteStore.open(folder / "shop.db", durability="normal")
    requests = (
        JobRequest[int](task=task, payload=f'{{"n":{n}}}', key=f"k{n}") for n in range(count)
    )
    store.enqueue([to_new_job(request) for request in requests]).result()
    store.close()


def test_f62_a_signal_at_any_stage_ends_a_run_in_good_order(tmp_path: Path) -> None:
    cases = [
        Case(tmp_path / f"case-{n}", stage, signals) for n, (stage, signals) in enumerate(COVER)
    ]
    with ThreadPoolExecutor(4) as pool:
        broken = [sentence for found in pool.map(Case.broken, cases) for sentence in found]

    assert broken == []
    assert {signals for _, signals in COVER} == set(SIGNALS)


COMMANDS = [
    ["enqueue", "quiet", "k", '{"n": 1}'],
    ["import", "jobs.jsonl"],
    ["stats"],
    ["show", "k"],
]


def interrupted(folder: Path, command: list[str]) -> subprocess.CompletedProcess[bytes]:
    """Press Ctrl-C while a short command reads the app."""
    process = Forked(
        [*PENSTOCK, "queue", *command],
        cwd=folder,
        env={**os.environ, "PENSTOCK_APP": "shop.py"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    wait_until((folder / "importing").exists)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=240)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def test_f62_ctrl_c_in_a_short_command_is_130_without_a_traceback(tmp_path: Path) -> None:
    folders = []
    for n, _ in enumerate(COMMANDS):
        folder = tmp_path / f"command-{n}"
        folder.mkdir()
        (folder / "penstock.toml").write_text("")  # no store: every command needs the app
        (folder / "shop.py").write_text(APP)
        (folder / "jobs.jsonl").write_text('{"id": 1, "task": "quiet", "n": 1}\n')
        (folder / "slow").touch()
        folders.append(folder)

    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(interrupted, folders, COMMANDS))

    for each in ended:
        assert each.returncode == 130, each
        assert each.stdout == b""
        assert each.stderr == b"Interrupted.\n"


@pytest.mark.parametrize("imported", ["typer", "apsw"])  # by the command line, by a command
def test_f62_ctrl_c_before_anything_is_imported_is_130_without_a_word(
    folder: Path, imported: str
) -> None:
    late = folder / "late"
    late.mkdir()
    (late / f"{imported}.py").write_text(
        "import pathlib, time\npathlib.Path('importing').touch()\ntime.sleep(60)\n"
    )
    process = subprocess.Popen(
        [*PENSTOCK, "queue", "stats"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(late)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    wait_until((folder / "importing").exists)  # in the middle of our imports
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=240)

    assert (process.returncode, out, err) == (130, b"", b"")


def test_f62_a_reader_that_leaves_early_changes_no_exit_code(folder: Path) -> None:
    fill(folder, "quiet", 2_000)
    command = " ".join([*PENSTOCK, "queue", "stats", "--json"])

    ended = run_forked(
        ["bash", "-c", f"{command} | head -1; exit ${{PIPESTATUS[0]}}"],
        cwd=folder,
        capture_output=True,
        timeout=240,
    )

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"{\n", b"")


def test_f62_a_task_that_prints_to_nobody_fails_by_its_own_fault_and_the_run_goes_on(
    folder: Path,
) -> None:
    fill(folder, "prints", 3)
    reading, writing = os.pipe()
    os.close(reading)

    ended = run_forked(
        [*PENSTOCK, "queue", "run", "--drain"],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=writing,
        stderr=subprocess.PIPE,
        timeout=240,
    )
    os.close(writing)

    assert set(states_in(folder / "shop.db").values()) == {JobState.ERROR}  # not waited for
    assert ended.returncode == 1
    assert b"Traceback" not in ended.stderr


def test_f62_a_run_whose_log_nobody_reads_does_its_work(folder: Path) -> None:
    fill(folder, "quiet", 50)
    reading, writing = os.pipe()
    os.close(reading)

    ended = run_forked(
        [*PENSTOCK, "queue", "run", "--drain", "--log-level", "debug"],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=writing,
        stderr=writing,
        timeout=240,
    )
    os.close(writing)

    assert ended.returncode == 0
    assert set(states_in(folder / "shop.db").values()) == {JobState.DONE}


def test_f62_a_run_whose_terminal_is_gone_does_its_work(folder: Path) -> None:
    fill(folder, "quiet", 50)
    main_fd, terminal = pty.openpty()
    process = Forked(
        [*PENSTOCK, "queue", "run", "--drain"],
        cwd=folder,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,  # not its controlling terminal: no SIGHUP, only errors
    )
    os.close(terminal)
    os.close(main_fd)

    assert process.wait(60) == 0
    assert set(states_in(folder / "shop.db").values()) == {JobState.DONE}


def test_f62_nohup_is_obeyed(folder: Path) -> None:
    fill(folder, "quiet", 5)
    code = (
        "import os, signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); import penstock_command"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", f"{code}; penstock_command.run()", "queue", "run"],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        wait_until(lambda: set(states_in(folder / "shop.db").values()) == {JobState.DONE})
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()


PROGRAM = """
import asyncio, os, signal
from penstock import Context, Penstock

heard = []
def theirs(number, frame):
    heard.append(signal.Signals(number).name)

app = Penstock("host")

@app.task()
async def sends(ctx: Context) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(60)

for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, theirs)
app.enqueue(sends.job(), key="k")

reading, writing = os.pipe()
os.set_blocking(writing, False)
signal.set_wakeup_fd(writing)
report = app.run()
assert signal.set_wakeup_fd(-1) == writing

assert report.stopped
assert heard == [], heard
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    assert signal.getsignal(number) is theirs, number
    os.kill(os.getpid(), number)
print(heard)
"""


def test_f62_the_host_gets_its_own_handlers_back_after_an_embedded_run(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text('durability = "normal"\n[runtime]\ngrace_seconds = 0\n')
    (tmp_path / "program.py").write_text(PROGRAM)

    ended = run_forked(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )

    assert (ended.stdout, ended.stderr) == ("['SIGINT', 'SIGTERM', 'SIGHUP']\n", "")


HOST = """
import asyncio, os, signal
from penstock import Context, Penstock

app = Penstock("host")

@app.task()
async def works(ctx: Context, n: int) -> int:
    if n == 0:
        os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(0.2)
    return n

async def ended(*keys):
    for _ in range(6_000):
        jobs = [app.store.job(key).result() for key in keys]
        if all(job.state == "done" for job in jobs):
            return True
        await asyncio.sleep(0.01)
    return False

async def main():
    loop, signalled = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, signalled.set)
    installed = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    running = asyncio.create_task(app.run_async())
    await app.enqueue_async(works.job(n=0), key="first")
    await signalled.wait()
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == installed
    await app.enqueue_async(works.job(n=1), key="accepted after the signal")
    assert await ended("first", "accepted after the signal")
    await app.enqueue_async(works.job(n=2), key="runs while it stops")
    while app.store.job("runs while it stops").result().state != "in_progress":
        await asyncio.sleep(0.001)
    running.cancel()  # the host's own end
    await asyncio.wait([running])
    assert running.cancelled()
    assert await ended("runs while it stops")
    print("fine")

asyncio.run(main())
"""


def test_a_host_of_run_async_keeps_its_signals_and_stops_it_by_cancelling(
    tmp_path: Path,
) -> None:
    (tmp_path / "penstock.toml").write_text('durability = "normal"\n')
    (tmp_path / "host.py").write_text(HOST)

    ended = run_forked(
        [sys.executable, "host.py"], cwd=tmp_path, capture_output=True, text=True, timeout=240
    )

    assert (ended.stdout, ended.stderr, ended.returncode) == ("fine\n", "", 0)
