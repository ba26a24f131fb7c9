# SPDX-License-Identifier: Apache-2.0
"""A folder with a daemon's app in it, the daemons that run there, and what must hold of both."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from penstock.model.job import JobId, JobState
from penstock.stores.open import open_store
from penstock.stores.protocol import JobFilter, Store
from tests.faults.launcher import VARIABLE
from tests.forked import Forked
from tests.processes import children_of, environment_of_tests, is_alive, kill_run
from tests.waiting import wait_until

GRACE_SECONDS = 1.0  # for those who wait for its end
LONG_GRACE_SECONDS = 60.0  # that a busy machine does not use up
TTL_SECONDS = 20.0  # that a busy machine does not use up
SHORT_TTL_SECONDS = 1.5  # for those who wait for its end
CONFIG = """
app = "daemon_app.py"
durability = "normal"
[runtime]
lease_ttl_seconds = {ttl_seconds}
beat_seconds = 0.2
grace_seconds = {grace_seconds}
preflight_timeout = 30.0
async_slots = 8
thread_slots = 4
"""
UNIT = "schedule:poll:"


class DaemonProject:
    """Owns one folder, and the daemons in it."""

    def __init__(
        self,
        folder: Path,
        url: str | None = None,
        *,
        ttl_seconds: float = TTL_SECONDS,
        grace_seconds: float = GRACE_SECONDS,
        **files: str,
    ) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.url = url or f"sqlite:///{folder}/daemon.db"
        config = CONFIG.format(ttl_seconds=ttl_seconds, grace_seconds=grace_seconds)
        (folder / "penstock.toml").write_text(config)
        shutil.copy(Path(__file__).with_name("daemon_app.py"), folder)
        for name, text in files.items():
            self.say(name.replace("_", "-"), text)
        self.running: list[subprocess.Popen[Any]] = []
        self._noted: dict[str, list[list[str]]] = {}
        self._read = 0

    def say(self, name: str, text: str) -> None:
        """Tell the app how to behave, at once and as a whole."""
        path = self.folder / name
        path.with_suffix(".new").write_text(text)
        path.with_suffix(".new").rename(path)

    def unsay(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)

    def start(
        self,
        *arguments: str,
        failpoints: dict[str, object] | None = None,
        url: str | None = None,
        quick: bool = False,
        **environment: str,
    ) -> subprocess.Popen[str]:
        """Start `penstock run`; a quick one waits less long for what does not stop."""
        command = ["tests.faults.quick", "supervisor"] if quick else ["penstock_command"]
        more = {"PENSTOCK_STORE": url or self.url, **environment}
        if failpoints is not None:
            command = ["tests.faults.launcher", "supervisor"]
            more[VARIABLE] = json.dumps(failpoints)
        with (self.folder / "errors.log").open("a") as errors:
            process = Forked(
                [sys.executable, "-m", *command, "run", *arguments],
                cwd=self.folder,
                env=environment_of_tests(**more),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self.running.append(process)
        return process

    def ended(
        self, *arguments: str, quick: bool = False, **environment: str
    ) -> tuple[int, str, str]:
        """Run to the end: the exit code, what was printed, and what was said beside that."""
        self.unsay("errors.log")
        process = self.start(*arguments, failpoints=None, url=None, quick=quick, **environment)
        out, _ = process.communicate(timeout=240)
        return process.returncode, out, self.errors()

    def stop(self, process: subprocess.Popen[str], number: int = signal.SIGTERM) -> int:
        """Send a signal, and wait for the end."""
        process.send_signal(number)
        return process.wait(240)

    def errors(self) -> str:
        return (self.folder / "errors.log").read_text()

    def bodies(self, word: str) -> list[list[str]]:
        """What bodies noted with this word: its other words, the pid, and when."""
        with contextlib.suppress(FileNotFoundError), (self.folder / "bodies.log").open() as log:
            log.seek(self._read)  # only what is new: it is asked for again and again
            for line in log.read().splitlines():
                first, *words = line.split()
                self._noted.setdefault(first, []).append(words)
            self._read = log.tell()
        return list(self._noted.get(word, ()))

    def await_bodies(self, word: str, count: int = 1) -> list[list[str]]:
        """Wait until there are so many more of these."""
        wanted = len(self.bodies(word)) + count
        wait_until(lambda: len(self.bodies(word)) >= wanted)
        return self.bodies(word)

    def open(self) -> Store:
        return open_store(self.url, durability="normal", folder=self.folder)

    def broken(self) -> list[str]:
        """What does not hold, after everybody has gone."""
        store = self.open()
        try:
            found = list(store.check().result())
            events = Counter[tuple[str, int]]()
            last = JobId(0)
            while page := store.jobs(JobFilter(task="event"), last, 1_000).result():
                last = page[-1].id
                for job in page:
                    payload = json.loads(job.payload)
                    events[payload["host"], payload["number"]] += 1
                    if job.state is JobState.ERROR:
                        found.append(f"{job.key} ended in error: {job.last_error}")
            for unit in store.units(None, "", 1_000).result():
                host = unit.key.removeprefix(UNIT)
                cursor = int(store.cursor(unit.key).result() or 0)
                found += self._unit(host, unit.ticks, cursor)
                wanted = [(host, number) for number in range(1, cursor + 1)]
                for wrong in wanted:
                    if events.pop(wrong, 0) != 1:
                        found.append(f"the event {wrong} is not there exactly once")
            if events:
                found.append(f"events that no cursor knows of: {sorted(events)[:5]}")
            return found
        finally:
            store.close()

    def _unit(self, host: str, ticks: int, cursor: int) -> list[str]:
        """An occurrence that was committed is not run again; cursors and times only grow."""
        found = []
        if ticks != cursor:
            found.append(f"{host}: {ticks} ticks, and the cursor is {cursor}")
        seen = [(int(due), int(n)) for name, due, n, *_ in self.bodies("tick") if name == host]
        by_number: dict[int, set[int]] = {}
        for due, number in seen:
            by_number.setdefault(number, set()).add(due)
        if seen != sorted(seen):
            found.append(f"{host}: times or cursors moved backwards: {seen}")
        for number, dues in by_number.items():
            if number <= cursor and len(dues) != 1:
                found.append(f"{host}: the cursor {number} was read for several occurrences")
        if len({due for dues in by_number.values() for due in dues}) != len(by_number):
            found.append(f"{host}: an occurrence ran with several cursors: {seen}")
        if set(range(1, cursor + 1)) - by_number.keys():
            found.append(f"{host}: the cursor moved without a tick")
        return found

    def close(self) -> None:
        for process in self.running:
            kill_run(process)

    def left(self, pids: list[int]) -> list[int]:
        """Which of these processes still live after a while."""
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not any(map(is_alive, pids)), 30)
        return [pid for pid in pids if is_alive(pid)]


def kill_now(process: subprocess.Popen[str], target: str) -> list[int]:
    """kill -9 of a supervisor, its workers, or both at once; the workers that it had."""
    workers = children_of(process.pid)
    pids = {"worker": workers, "supervisor": [process.pid], "both": [process.pid, *workers]}
    if target == "both":  # or it might reap its workers before it dies itself
        os.kill(process.pid, signal.SIGSTOP)
    for pid in pids[target]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return workers
