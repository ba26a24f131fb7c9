# SPDX-License-Identifier: Apache-2.0
"""Send signals to a run at a chosen stage of its life; then ask what is left.

The oracle: the exit code is that of the first signal, nothing is told as a traceback, no process
and no lease is left, nothing was charged, and the store is sound.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from penstock.definitions.request import JobRequest, to_new_job
from penstock.model.job import JobId, JobState, NewJob
from penstock.stores.protocol import JobFilter
from penstock.stores.sqlite.store import SqliteStore
from tests.faults.launcher import VARIABLE
from tests.forked import Forked
from tests.processes import children_of, environment_of_tests, is_alive, kill_run

GRACE_SECONDS = 1.0
PAUSE_SECONDS = 0.2  # how long a process stands at a failpoint; a busy machine adds to it
PATIENCE_SECONDS = 60.0  # a slow machine
CONFIG = f"""
app = "busy.py"
store = "sqlite:///busy.db"
durability = "normal"
[runtime]
lease_ttl_seconds = 20.0
beat_seconds = 0.2
grace_seconds = {GRACE_SECONDS}
async_slots = 4
thread_slots = 2
"""
APP = """
import asyncio, os, time
from penstock import Context, Penstock

app = Penstock("busy")
if os.path.exists("slow-import"):
    os.remove("slow-import")
    time.sleep(0.6)

@app.task()
async def sleeps(ctx: Context, seconds: float) -> None:
    open("running", "w").close()
    await asyncio.sleep(seconds)

@app.task()
def waits(ctx: Context, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and not ctx.cancelled:
        time.sleep(0.01)
    if ctx.cancelled:
        raise KeyboardInterrupt  # whatever it raises, it was stopped from outside
"""

#: stage → role and failpoint at which a process stands when the signal comes
FAILPOINTS = {
    "registering": ("worker", "register.in_tx"),
    "leasing": ("worker", "lease.in_tx"),
    "leased": ("worker", "lease.committed"),
    "starting": ("worker", "exec.before"),
    "acking": ("worker", "ack.in_tx"),
    "committing": ("worker", "commit.begin"),
    "checkpointing": ("worker", "checkpoint.begin"),  # it has the turn; nobody else can write
    "beating": ("supervisor", "beat.in_tx"),
}
STAGES = ("booting", "importing", *FAILPOINTS, "running", "draining", "grace")
SIGNALS: dict[str, tuple[signal.Signals, ...]] = {
    "TERM": (signal.SIGTERM,),
    "INT": (signal.SIGINT,),
    "HUP": (signal.SIGHUP,),
    "TERM TERM": (signal.SIGTERM, signal.SIGTERM),
    "INT INT": (signal.SIGINT, signal.SIGINT),
    "TERM INT": (signal.SIGTERM, signal.SIGINT),
}
#: Each stage once, each sequence of signals at least once: the part of `make test`.
COVER = (
    ("importing", "INT INT"),
    ("registering", "TERM"),
    ("leasing", "INT"),
    ("leased", "TERM TERM"),
    ("acking", "HUP"),
    ("checkpointing", "TERM INT"),
    ("beating", "INT"),
    ("running", "INT INT"),
    ("draining", "TERM"),
)


@dataclass
class Case:
    """One run, one stage, some signals."""

    folder: Path
    stage: str
    signals: str

    def broken(self) -> list[str]:
        """Do it; every promise that was not kept."""
        self.folder.mkdir(exist_ok=True)
        (self.folder / "penstock.toml").write_text(CONFIG)
        (self.folder / "busy.py").write_text(APP)
        store = self._open()
        store.enqueue(list(self._jobs())).result()
        store.close()
        process = self._start()
        try:
            self._await_stage(process)
            workers = self._send(process)
            try:
                _, err = process.communicate(timeout=PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                return [f"{self}: the run does not end"]
        finally:
            kill_run(process)
        return [f"{self}: {broken}" for broken in self._ask(process.returncode, err, workers)]

    def __str__(self) -> str:
        return f"{self.signals} while {self.stage}"

    def _jobs(self) -> Iterator[NewJob]:
        def job(key: str, task: str, seconds: float, delay: float = 0.0) -> NewJob:
            request = JobRequest[None](task=task, payload=f'{{"seconds": {seconds}}}', key=key)
            return to_new_job(request.with_options(delay=delay))

        if self.stage == "draining":
            yield job("later", "sleeps", 0.0, delay=600.0)
            return
        for n in range(8):
            yield job(f"short-{n}", "sleeps", 0.0)
            yield job(f"long-{n}", "sleeps" if n % 2 else "waits", 60.0)

    def _start(self) -> subprocess.Popen[str]:
        armed: dict[str, object] = {}
        if self.stage in FAILPOINTS:
            role, point = FAILPOINTS[self.stage]
            rule = {"at": 1, "once": str(self._mark), "pause": PAUSE_SECONDS}
            armed = {role: {point: rule}}
            self._mark.touch()
        if self.stage == "importing":
            self._mark.touch()
        command = ["tests.faults.launcher", "supervisor"]
        if self.stage == "booting":  # the launcher would import everything first
            command = ["penstock_command"]
        drain = ["--drain"] if self.stage == "draining" else []
        return Forked(
            [sys.executable, "-m", *command, "queue", "run", *drain],
            cwd=self.folder,
            env=environment_of_tests(**{VARIABLE: json.dumps(armed)}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    @property
    def _mark(self) -> Path:
        return self.folder / ("slow-import" if self.stage == "importing" else "mark")

    def _await_stage(self, process: subprocess.Popen[str]) -> None:
        """Wait until the run is where the signal shall meet it."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            if self._is_there(process):
                return
            time.sleep(0.002)

    def _is_there(self, process: subprocess.Popen[str]) -> bool:
        if self.stage in FAILPOINTS or self.stage == "importing":
            return not self._mark.exists()
        if self.stage == "booting":  # in the middle of our imports
            return "msgspec" in Path(f"/proc/{process.pid}/maps").read_text()
        if self.stage == "draining":
            return self._registered()
        return (self.folder / "running").exists()

    def _registered(self) -> bool:
        store = self._open()
        try:
            return any(worker.alive for worker in store.workers().result())
        finally:
            store.close()

    def _send(self, process: subprocess.Popen[str]) -> list[int]:
        workers = children_of(process.pid)
        for index, number in enumerate(SIGNALS[self.signals]):
            if index or self.stage == "grace":
                time.sleep(GRACE_SECONDS / 4)
            if process.poll() is None:
                process.send_signal(number)
        return workers

    def _ask(self, code: int, err: str, workers: list[int]) -> Iterator[str]:
        first = SIGNALS[self.signals][0]
        expected = {130 if first is signal.SIGINT else 0}
        if self.stage == "booting" and first is not signal.SIGINT:
            expected.add(-first)  # the system's own way to end what does not listen yet
        if code not in expected:
            yield f"exit code {code} instead of {expected}: {err[-1500:]}"
        if "Traceback" in err:
            yield f"a traceback: {err[-1500:]}"
        deadline = time.monotonic() + PATIENCE_SECONDS
        while any(map(is_alive, workers)) and time.monotonic() < deadline:
            time.sleep(0.01)
        if any(map(is_alive, workers)):
            yield "a worker outlived the run"
        store = self._open()
        try:
            yield from store.check().result()
            if any(worker.alive for worker in store.workers().result()):
                yield "a worker is still registered"
            for job in store.jobs(JobFilter(), JobId(0), 100).result():
                if job.state not in (JobState.QUEUED, JobState.DONE) or job.attempts or job.crashes:
                    yield (
                        f"{job.key} is {job.state} after {job.attempts} charged attempts and "
                        f"{job.crashes} crashes: {job.last_error}"
                    )
        finally:
            store.close()

    def _open(self) -> SqliteStore:
        return SqliteStore.open(self.folder / "busy.db", durability="normal")


def all_cases() -> Iterator[tuple[str, str]]:
    """Every stage with every sequence of signals."""
    yield from product(STAGES, SIGNALS)
