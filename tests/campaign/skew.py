# SPDX-License-Identifier: Apache-2.0
"""Workers of two versions on one store: either of them works, or is refused in one sentence.

The other version is checked out and installed in a folder of its own. Whichever comes first, a run
and a producer of it work when those of the other come; at the end today's version works on what is
left, and the oracle of the campaign judges.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from tests.campaign.crew import Crew, Run
from tests.processes import REPOSITORY

SECONDS_TOGETHER = 10.0
SECONDS_TO_WORK = 60.0
APP = "alpha"


def check_out(ref: str, folder: Path) -> Path:
    """Another version, installed; where its programs are."""
    subprocess.run(["git", "clone", "-q", str(REPOSITORY), str(folder)], check=True)
    subprocess.run(["git", "checkout", "-q", ref], cwd=folder, check=True)
    subprocess.run(["make", "setup"], cwd=folder, check=True, capture_output=True)
    return folder / ".venv" / "bin"


class Skew:
    """A crew of two versions, of which one was there first."""

    def __init__(self, crew: Crew, first: Path, second: Path) -> None:
        self._crew = crew
        self._first = first
        self._second = second
        self.fates: dict[str, str] = {}

    def play(self, today: Path) -> None:
        """Let both work together, then let today's version end the work."""
        crew = self._crew
        crew.programs = self._first
        runs = {"the first": crew.start(APP), "its producer": crew.start_producer(APP)}
        crew.runs += runs.values()
        self._await_work(runs["the first"])
        before = time.monotonic()
        crew.programs = self._second
        runs |= {"the second": crew.start(APP), "its other producer": crew.start_producer(APP)}
        crew.runs += runs.values()
        self._await_work(runs["the second"])
        time.sleep(SECONDS_TOGETHER)
        for name, run in runs.items():
            self.fates[name] = self._fate(name, run)
        crew.programs = today
        crew.line.tell(enough=True)
        for run in runs.values():
            self._end(run, before)
        crew.drain(APP)

    def _await_work(self, run: Run) -> None:
        """Until a run has begun a body, or has ended, and a little longer."""
        until = time.monotonic() + SECONDS_TO_WORK
        while run.process.poll() is None and time.monotonic() < until:
            if self._crew.works(run):
                break
            time.sleep(0.1)
        time.sleep(2)

    def _fate(self, name: str, run: Run) -> str:
        """How one stands: at work, or ended with a sentence, which may be no traceback."""
        code = run.process.poll()
        if code is None:
            return "works" if run.is_producer or self._crew.works(run) else "waits"
        words = self._crew.last_words(run)
        if code < 0 or "Traceback" in self._crew.log(run):
            self._crew.unexpected.append(f"{name} ended with {code}: {words}")
        return f"{code}: {words}"

    def _end(self, run: Run, before: float) -> None:
        """Kill what has not ended by itself; what has may have done so since the other came."""
        if run.process.poll() is None:
            before = time.monotonic()
        pids = run.kill_all()
        self._crew.note("kill", kind="run", runs=[run.name], pids=pids, before=before)
