# SPDX-License-Identifier: Apache-2.0
"""Is a clone what a process that was started would be?"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.supervisor.worker_handle import worker_command
from penstock.worker.process_executor import task_command
from tests.forked import CLONE_NUMBER, Forked, _can_be_cloned, run_forked
from tests.processes import environment_of_tests

LOOK = """
import json, os, signal, sys, threading
def about(stream):
    buffer = type(stream.buffer).__name__
    return [stream.encoding, stream.errors, stream.line_buffering, stream.write_through, buffer]
print(json.dumps({
    "argv": sys.argv, "path": sys.path, "folder": os.getcwd(), "parent": os.getppid(),
    "environment": dict(os.environ), "mask": os.umask(0),
    "descriptors": [n for n in range(100) if os.path.exists(f"/proc/self/fd/{n}")],
    "leads": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
    "signals": [str(signal.getsignal(n)).split(" at ")[0] for n in (1, 2, 13, 15, 17)],
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "streams": [about(stream) for stream in (sys.stdout, sys.stderr)],
    "threads": threading.active_count(), "main": __name__,
    "name": open("/proc/self/comm").read(),
}))
sys.exit(7)
"""
pytestmark = pytest.mark.skipif(CLONE_NUMBER is None, reason="nothing is cloned on this machine")


def look(popen: type[subprocess.Popen[Any]], folder: Path, *command: str) -> dict[str, object]:
    process = popen(
        [sys.executable, *command],
        cwd=folder,
        env=environment_of_tests(SOME="thing"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    said, _ = process.communicate(timeout=240)
    assert process.returncode == 7
    seen: dict[str, object] = json.loads(said)
    return seen


@pytest.mark.parametrize("how", ["code", "safe code", "script", "module"])
def test_a_clone_sees_what_a_process_sees_that_was_started(tmp_path: Path, how: str) -> None:
    (tmp_path / "look.py").write_text(LOOK)
    commands = {
        "code": ("-c", LOOK),
        "safe code": ("-P", "-c", LOOK),
        "script": ("look.py",),
        "module": ("-m", "look"),
    }

    started = look(subprocess.Popen, tmp_path, *commands[how], "a", "b")
    cloned = look(Forked, tmp_path, *commands[how], "a", "b")

    assert cloned == started
    assert cloned["parent"] == os.getpid()


@pytest.mark.parametrize("command", [worker_command, task_command])
def test_what_a_run_starts_can_be_cloned(command: list[str]) -> None:
    named = {"preexec_fn": None, "shell": False}

    assert _can_be_cloned([*command, "7", "8"], dict(os.environ), named)


def test_a_clone_dies_of_a_signal_as_others_do() -> None:
    process = Forked([sys.executable, "-c", "import time; time.sleep(600)"])
    assert process.poll() is None

    process.send_signal(signal.SIGTERM)

    assert process.wait(60) == -signal.SIGTERM


def test_what_reads_and_fails_is_heard() -> None:
    code = "import sys; print(sys.stdin.read()); 1 / 0"

    ended = run_forked([sys.executable, "-c", code], input="hello", capture_output=True, text=True)

    assert (ended.returncode, ended.stdout) == (1, "hello\n")
    assert ended.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_another_program_is_started() -> None:
    ended = run_forked(["sh", "-c", "echo $0"], capture_output=True, text=True, check=True)

    assert ended.stdout == "sh\n"
