# SPDX-License-Identifier: Apache-2.0
"""A project in a folder, with real runs in it, for tests of deaths and stops.

Lease times are short (1 s, a beat every 0.25 s, a grace of 1 s). Bodies leave a line at their start
and their end; the store tells the rest.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from penstock.definitions.request import JobRequest, to_new_job
from penstock.model.job import Attempt, Job, JobId, JobState
from penstock.stores.sqlite.store import SqliteStore
from penstock.stores.store import JobFilter
from tests.faults.kill_campaign import children_of

ROOT = Path(__file__).parents[2]
GRACE = 1.0
CONFIG = """
app = "shop.py"
store = "sqlite:///shop.db"
durability = "normal"
[runtime]
lease_ttl_seconds = 1.0
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


class Shop:
    """One project folder, its store, and the runs in it."""

    def __init__(self, folder: Path, app: str, config: str = CONFIG) -> None:
        self.folder = folder
        (folder / "penstock.toml").write_text(config)
        (folder / "shop.py").write_text(app)
        self.store = SqliteStore.open(folder / "shop.db", durability="normal")
        self._running: list[subprocess.Popen[str]] = []

    def add(
        self,
        task: str,
        count: int = 1,
        *,
        name: str | None = None,
        limit_key: str | None = None,
        **arguments: object,
    ) -> list[str]:
        keys = [f"{name or task}-{n}" for n in range(count)]
        limits = () if limit_key is None else (limit_key,)
        requests = [
            JobRequest[None](task=task, payload=json.dumps(arguments), key=key, limit_keys=limits)
            for key in keys
        ]
        self.store.enqueue([to_new_job(request) for request in requests]).result()
        return keys

    def run(
        self, *arguments: str, quick: bool = False, **environment: str
    ) -> subprocess.Popen[str]:
        """Start a run; a quick one waits less long for what does not stop."""
        module = ["tests.faults.quick", "supervisor"] if quick else ["penstock.cli.main"]
        process = subprocess.Popen(
            [sys.executable, "-m", *module, "queue", "run", *arguments],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._running.append(process)
        return process

    def drain(self, *, quick: bool = False) -> tuple[int, str]:
        process = self.run("--drain", quick=quick)
        _, err = process.communicate(timeout=60)
        return process.returncode, err

    def bodies(self, word: str = "start") -> list[tuple[str, int, float]]:
        log = self.folder / "bodies.log"
        lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
        return [(key, int(pid), float(at)) for said, key, pid, at in lines if said == word]

    def starts(self) -> Counter[str]:
        return Counter(key for key, _, _ in self.bodies())

    def states(self) -> dict[str, JobState]:
        jobs = self.store.jobs(JobFilter(), JobId(0), 1_000).result()
        return {job.key: job.state for job in jobs}

    def job(self, key: str) -> Job:
        found = self.store.job(key).result()
        assert found is not None, key
        return found

    def attempts(self, key: str) -> list[Attempt]:
        return self.store.attempts(key).result()

    def close(self) -> None:
        for process in self._running:
            for pid in [*children_of(process.pid), process.pid]:
                if process.poll() is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
        self.store.close()


def wait_until(true: Callable[[], bool], seconds: float = 20.0) -> float:
    """Wait for something; how long it took."""
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < seconds, "it did not happen in time"
        time.sleep(0.01)
    return time.monotonic() - began


def ends_within(process: subprocess.Popen[str], seconds: float) -> float:
    began = time.monotonic()
    process.wait(seconds)
    return time.monotonic() - began
