# SPDX-License-Identifier: Apache-2.0
"""A project in a folder, with real runs in it, for tests of deaths and stops.

A grace is short (1 s), a lease is not (30 s): a busy machine may stop everybody for some seconds,
and only tests about the end of a lease want one to end. Bodies leave a line at their start and
their end; the store tells the rest.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.faults.folder import ProjectFolder
from tests.forked import Forked
from tests.processes import environment_of_tests

IN_TIME_SECONDS = 200.0
CONFIG = """
app = "shop.py"
store = "{url}"
durability = "normal"
[runtime]
lease_ttl_seconds = 30.0
beat_seconds = 0.25
grace_seconds = 1.0
async_slots = 4
thread_slots = 2
[tasks]
max_crashes = 2
"""
#: The beginning of every app here.
NOTES = """
import asyncio, ctypes, os, signal, time
from penstock import Context, Penstock

app = Penstock("shop")

def note(word, ctx):
    line = f"{word} {ctx.job.key} {os.getpid()} {time.monotonic():.6f}\\n".encode()
    descriptor = os.open(HERE + "/bodies.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, line)
    os.close(descriptor)

HERE = os.path.dirname(os.path.abspath(__file__))
"""


class Shop(ProjectFolder):
    """A project whose app is a text; what its runs say can be read from their pipes."""

    def __init__(
        self, folder: Path, app: str, config: str = CONFIG, url: str = "sqlite:///shop.db"
    ) -> None:
        super().__init__(folder, config.replace("{url}", url), url)
        (folder / "shop.py").write_text(app)

    def run(
        self,
        *arguments: str,
        quick: bool = False,
        cloned: bool = True,
        entry: str = "tests.faults.quick",
        **environment: str,
    ) -> subprocess.Popen[str]:
        """Start a run; a quick one waits less long for what does not stop, or as `entry` says."""
        module = [entry, "supervisor"] if quick else ["penstock.cli.main"]
        process: subprocess.Popen[str] = (Forked if cloned else subprocess.Popen)(
            [sys.executable, "-m", *module, "queue", "run", *arguments],
            cwd=self.folder,
            env=environment_of_tests(**environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.running.append(process)
        return process

    def drain(self, *, quick: bool = False, seconds: float = 240.0) -> tuple[int, str]:
        process = self.run("--drain", quick=quick)
        _, err = process.communicate(timeout=seconds)
        return process.returncode, err


def ends_in_time(process: subprocess.Popen[str]) -> None:
    """Not when its bodies end, which takes minutes; a busy machine may need a minute more."""
    process.wait(IN_TIME_SECONDS)
