# SPDX-License-Identifier: Apache-2.0
"""How does a fault test run real supervisors with their workers?"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.definitions.request import JobRequest, to_new_job
from penstock.model.job import Attempt, Job, JobId, JobState
from penstock.stores.sqlite.store import SqliteStore
from penstock.stores.store import JobFilter
from tests.faults.kill_campaign import children_of
from tests.faults.roles import STORE

REPOSITORY = Path(__file__).resolve().parents[2]
CONFIG = f"""
app = "fault_app.py"
store = "sqlite:///{STORE}"
durability = "normal"
[runtime]
lease_ttl_seconds = 1.0
beat_seconds = 0.25
grace_seconds = 1.0
async_slots = 4
thread_slots = 2
"""


class Project:
    """Owns one project folder, its store, and the runs in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "penstock.toml").write_text(CONFIG)
        (folder / "imports.log").touch()
        shutil.copy(Path(__file__).with_name("fault_app.py"), folder)
        self.store = SqliteStore.open(folder / STORE, durability="normal")
        self._running: list[subprocess.Popen[bytes]] = []

    def add(self, task: str, count: int = 1, **arguments: float) -> list[str]:
        keys = [f"{task}-{n}" for n in range(count)]
        payload = json.dumps(arguments)
        requests = [JobRequest[None](task=task, payload=payload, key=key) for key in keys]
        self.store.enqueue([to_new_job(request) for request in requests]).result()
        return keys

    def run(
        self, *arguments: str, before: Sequence[str] = (), **environment: str
    ) -> subprocess.Popen[bytes]:
        """Start `penstock queue run`, perhaps through another program."""
        with (self.folder / "errors.log").open("a") as errors:
            process = subprocess.Popen(
                [*before, sys.executable, "-m", "penstock.cli.main", "queue", "run", *arguments],
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), **environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
        self._running.append(process)
        return process

    def drain(self, *arguments: str, **environment: str) -> tuple[int, str]:
        """Run until nothing is left; the exit code, and what was said."""
        code = self.run("--drain", *arguments, **environment).wait(90)
        return code, self.errors()

    def errors(self) -> str:
        return (self.folder / "errors.log").read_text()

    def bodies(self, word: str = "start") -> list[tuple[str, int, float]]:
        """Key, pid and time of each start (or end) of a body."""
        log = self.folder / "bodies.log"
        lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
        return [(key, int(pid), float(at)) for said, key, pid, at in lines if said == word]

    def starts(self) -> Counter[str]:
        return Counter(key for key, _, _ in self.bodies())

    def imports(self) -> list[tuple[int, float]]:
        """Pid and time of each worker process that imported the app."""
        lines = [line.split() for line in (self.folder / "imports.log").read_text().splitlines()]
        return [(int(pid), float(at)) for pid, at in lines]

    def states(self) -> dict[str, JobState]:
        jobs = self.store.jobs(JobFilter(), JobId(0), 1_000).result()
        return {job.key: job.state for job in jobs}

    def job(self, key: str) -> Job:
        found = self.store.job(key).result()
        assert found is not None, key
        return found

    def attempts(self, key: str) -> list[Attempt]:
        return self.store.attempts(key).result()

    def outcomes(self, key: str) -> list[str]:
        return [attempt.outcome for attempt in self.attempts(key)]

    def close(self) -> None:
        for process in self._running:
            if process.poll() is None:
                for pid in [*children_of(process.pid), process.pid]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            process.wait()
        self.store.close()


def wait_until(true: Callable[[], bool], seconds: float = 30.0) -> float:
    """Wait for something; how long it took."""
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < seconds, "it did not happen in time"
        time.sleep(0.005)
    return time.monotonic() - began
