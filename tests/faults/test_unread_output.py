# SPDX-License-Identifier: Apache-2.0
"""Nobody reads what a run writes: its jobs end, its time limits hold, and it obeys signals."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.model.job import ErrorCategory, JobState
from tests.faults.folder import ProjectFolder
from tests.forked import Forked
from tests.processes import environment_of_tests
from tests.waiting import wait_until

pytestmark = pytest.mark.faults

CONFIG = """
app = "shop.py"
store = "sqlite:///shop.db"
durability = "normal"
[runtime]
grace_seconds = 0.5
"""
APP = """
import asyncio, pathlib
from penstock import Context, Penstock

app = Penstock("shop")

@app.task()
async def speaks(ctx: Context) -> None:
    for _ in range(5):
        ctx.log.info("x" * 1000)

@app.task()
def speaks_in_a_thread(ctx: Context) -> None:
    for _ in range(5):
        ctx.log.info("x" * 1000)

@app.task(executor="process")
def speaks_in_a_process(ctx: Context) -> None:
    for _ in range(20):
        ctx.log.info("x" * 1000)

@app.task(max_attempts=1, timeout=0.2)
async def is_late(ctx: Context) -> None:
    await asyncio.sleep(600)

@app.task()
async def stays(ctx: Context) -> None:
    pathlib.Path("stays").touch()
    await asyncio.sleep(600)

@app.task()
async def prints(ctx: Context) -> None:
    pathlib.Path("prints").touch()
    print("x" * 100_000, flush=True)
"""
DONE, ERROR, QUEUED = JobState.DONE, JobState.ERROR, JobState.QUEUED


class Unread(ProjectFolder):
    """A project whose runs write to what nobody reads."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, CONFIG, "sqlite:///shop.db")
        (folder / "shop.py").write_text(APP)
        self._kept: list[int] = []

    def start(self, output: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start `penstock queue run`; its output is a pipe or a terminal."""
        ours, theirs = self._pipe() if output == "pipe" else self._terminal()
        self._kept.append(ours)
        process = Forked(
            [sys.executable, "-m", "penstock.cli.main", "queue", "run", *arguments],
            cwd=self.folder,
            env=environment_of_tests(TERM="xterm"),
            stdin=theirs if output == "terminal" else subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self.running.append(process)
        return process

    def read(self) -> str:
        """Read at last what was written."""
        text = b""
        while part := os.read(self._kept[0], 65536):
            text += part
        return text.decode()

    def _pipe(self) -> tuple[int, int]:
        ours, theirs = os.pipe()
        fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, 4096)
        return ours, theirs

    def _terminal(self) -> tuple[int, int]:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        return ours, theirs

    def close(self) -> None:
        super().close()
        for fd in self._kept:
            os.close(fd)


@pytest.fixture
def unread(tmp_path: Path) -> Iterator[Unread]:
    project = Unread(tmp_path)
    yield project
    project.close()


@pytest.mark.parametrize("output", ["pipe", "terminal"])
def test_f76_a_run_whose_output_nobody_reads_ends_its_jobs(unread: Unread, output: str) -> None:
    good = [
        *unread.add("speaks", 10),
        *unread.add("speaks_in_a_thread", 10),
        *unread.add("speaks_in_a_process"),
    ]
    (late,) = unread.add("is_late")

    code = unread.start(output, "--drain").wait(120)

    assert unread.states() == {**dict.fromkeys(good, DONE), late: ERROR}
    error = unread.attempts(late)[-1].error
    assert error is not None
    assert error.category is ErrorCategory.TIMEOUT
    assert code == 1


@pytest.mark.parametrize("output", ["pipe", "terminal"])
def test_f76_a_run_whose_output_nobody_reads_obeys_sigterm(unread: Unread, output: str) -> None:
    good, (stays,) = unread.add("speaks", 10), unread.add("stays")
    process = unread.start(output)
    wait_until((unread.folder / "stays").exists)
    wait_until(lambda: all(unread.states()[key] is DONE for key in good))

    process.send_signal(signal.SIGTERM)

    assert process.wait(120) == 0
    assert unread.states()[stays] is QUEUED


def test_a_body_that_prints_what_nobody_reads_is_ended_by_two_signals(unread: Unread) -> None:
    (prints,) = unread.add("prints")
    process = unread.start("pipe")
    wait_until((unread.folder / "prints").exists)

    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)

    assert process.wait(120) == 1
    assert unread.states()[prints] is QUEUED


def test_f76_lines_that_were_dropped_are_counted_when_somebody_reads_again(unread: Unread) -> None:
    good, _ = unread.add("speaks", 400), unread.add("stays")
    process = unread.start("pipe")
    wait_until(lambda: unread.states()[good[-1]] is DONE)

    process.send_signal(signal.SIGTERM)
    text = unread.read()

    assert process.wait(120) == 0
    assert "log lines were dropped" in text
