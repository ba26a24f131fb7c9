# SPDX-License-Identifier: Apache-2.0
"""Two daemons on one store; kill -9 one of them, again and again; then ask what is left.

The oracle: each occurrence was committed once, cursors and nominal times only grew, each event that
a cursor has passed is in the queue once and no other is, no unit and no job ended in error.
"""

from __future__ import annotations

import random
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.daemon_project import (
    LONG_GRACE_SECONDS,
    SHORT_TTL_SECONDS,
    DaemonProject,
    kill_now,
)
from tests.processes import children_of, is_alive
from tests.waiting import wait_until

TARGETS = ("worker", "supervisor", "both")
WORKER_POINTS = (
    "lease.committed",
    "exec.before",
    "exec.during",
    "exec.after",
    "ack.in_tx",
    "ack.committed",
    "arm.in_tx",
    "arm.committed",
)
BEFORE_WORK = frozenset({"arm.in_tx", "arm.committed"})


@dataclass
class DaemonCampaign:
    """Owns the project and the two daemons."""

    folder: Path
    seed: int
    url: str | None = None
    kills: dict[str, int] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.project = DaemonProject(
            self.folder,
            self.url,
            ttl_seconds=SHORT_TTL_SECONDS,
            grace_seconds=LONG_GRACE_SECONDS,
            hosts="a b c",
            interval="0.1",
        )
        self.pair = [self.project.start(), self.project.start()]

    def cycle(self) -> None:
        """Kill one of the two, see that the other goes on, and start it anew."""
        victim = self.random.randrange(2)
        if self.random.random() < 0.5:
            self._at_a_point(victim)
        else:
            target = self.random.choice(TARGETS)
            self.project.await_bodies("ticked", self.random.randint(1, 4))
            if target == "worker":  # one that checks would end its run, sooner or later
                wait_until(lambda: self._works(self.pair[victim]))
            self._count(target)
            workers = kill_now(self.pair[victim], target)
            if target != "worker":
                self.pair[victim].wait(240)
                if self.project.left(workers):
                    self.broken.append("a worker outlived its supervisor")
        self._goes_on()
        if self.pair[victim].poll() is not None:
            self.pair[victim] = self.project.start()
        if self.pair[1 - victim].poll() is not None:
            self.broken.append(f"the other one ended: {self.project.errors()[-500:]}")

    def _at_a_point(self, victim: int) -> None:
        """Let a worker die at a failpoint, in a daemon that is started for that.

        It meets most points while it checks, too, and would end with its worker: it is to die when
        it works, so that who is dead is known before the next one is killed.
        """
        point = self.random.choice(WORKER_POINTS)
        self.pair[victim].terminate()
        self.pair[victim].wait(240)
        mark = self.folder / f"once-{sum(self.kills.values())}"  # successors stay armed: not theirs
        points: dict[str, object] = {"worker": {point: {"at": 1, "once": str(mark)}}}
        if point in BEFORE_WORK:
            mark.touch()
        self.pair[victim] = self.project.start(failpoints=points)
        if point not in BEFORE_WORK:
            wait_until(lambda: self._works(self.pair[victim]))
            self.project.await_bodies("ticked", self.random.randint(1, 6))
            mark.touch()
        wait_until(lambda: not mark.exists())
        self._count(point)
        if point in BEFORE_WORK and self.pair[victim].wait(240) != 3:
            self.broken.append(f"exit code {self.pair[victim].returncode} after a death at {point}")

    def _works(self, process: subprocess.Popen[str]) -> bool:
        """Whether a worker that it has now has ticked."""
        workers = set(map(str, children_of(process.pid)))
        return any(pid in workers for *_, pid, _ in self.project.bodies("tick"))

    def _count(self, what: str) -> None:
        self.kills[what] = self.kills.get(what, 0) + 1

    def _goes_on(self) -> None:
        """Each unit ticks again: what the dead one held, after its lease."""
        hosts = {"a", "b", "c"}
        seen = len(self.project.bodies("ticked"))

        def all_tick() -> bool:
            return {words[0] for words in self.project.bodies("ticked")[seen:]} >= hosts

        wait_until(all_tick, 240 + SHORT_TTL_SECONDS)

    def finish(self) -> list[str]:
        """Stop both; what does not hold."""
        for process in self.pair:
            process.terminate()
        codes = [process.wait(240) for process in self.pair]
        # One that was started just now may be ended by the system: it does not listen yet.
        if not {0, -signal.SIGTERM}.issuperset(codes):
            self.broken.append(f"exit codes {codes}: {self.project.errors()[-1000:]}")
        self.project.close()
        if "Traceback" in self.project.errors():
            self.broken.append(f"a traceback: {self.project.errors()}")
        return [*self.broken, *self.project.broken()]


def race(folder: Path, url: str | None = None) -> list[str]:
    """Two daemons are started at once and arm the same units; what does not hold at their end."""
    project = DaemonProject(
        folder, url, grace_seconds=LONG_GRACE_SECONDS, hosts="a b", interval="0.1"
    )
    pair: list[subprocess.Popen[str]] = []
    try:
        project.say("barrier", "2")
        pair = [project.start(), project.start()]
        project.await_bodies("ticked", 6)
        for process in pair:
            process.terminate()
        codes = [process.wait(240) for process in pair]
    finally:
        project.close()
    found = [] if codes == [0, 0] else [f"exit codes {codes}: {project.errors()[-1000:]}"]
    found += [f"{p.pid} still lives" for p in pair if is_alive(p.pid)]
    return [*found, *project.broken()]
