# SPDX-License-Identifier: Apache-2.0
"""Kill worker, supervisor, producer or all of them, again and again; then ask the oracle.

The oracle: every accepted job is done, each was finalised once, no job ended in error, all
invariants of the store hold. Attempts and crashes have their default limits; only lease times
are short.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.model.job import JobId, JobState
from penstock.stores.protocol import JobFilter
from penstock.stores.sqlite.store import SqliteStore
from tests.faults.launcher import VARIABLE
from tests.processes import REPOSITORY, children_of, environment_of_tests, is_alive, kill_run

WORKER_POINTS = (
    "lease.in_tx",
    "lease.committed",
    "exec.before",
    "exec.during",
    "exec.after",
    "ack.in_tx",
    "ack.committed",
    "settle.in_tx",
    "sweep.in_tx",
)
SUPERVISOR_POINTS = ("beat.in_tx", "reap.in_tx")
PRODUCER_POINTS = ("enqueue.begin", "enqueue.in_tx", "enqueue.committed")
RARE_POINTS = frozenset({*SUPERVISOR_POINTS, "sweep.in_tx", "settle.in_tx"})
TARGETS = ("worker", "supervisor", "both")
QUICK_BEAT_SECONDS = "0.02"
END_SECONDS = 120.0  # of a run, however busy the machine is
GONE_SECONDS = 120.0
CONFIG = """
app = "kill_app.py"
store = "sqlite:///kill.db"
[runtime]
lease_ttl_seconds = 1.0
beat_seconds = 0.25
grace_seconds = 1.0
async_slots = 8
thread_slots = 4
[limits.host]
"*" = 2
"""


@dataclass
class Outcome:
    """What a campaign found."""

    cycles: int = 0
    kills: dict[str, int] = field(default_factory=dict)
    points: dict[str, int] = field(default_factory=dict)  # kills at each failpoint
    jobs: int = 0
    lost: int = 0
    finalised_twice: int = 0
    errors: int = 0
    repeats: int = 0
    recovery_seconds: list[float] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    @property
    def kill_count(self) -> int:
        return sum(self.kills.values())

    def sound(self) -> bool:
        return not (self.lost or self.finalised_twice or self.errors or self.broken)

    def lines(self) -> list[str]:
        times = sorted(self.recovery_seconds) or [0.0]

        def at(share: float) -> float:
            return times[min(len(times) - 1, int(share * len(times)))]

        return [
            f"{self.cycles} cycles, {self.kill_count} kills: "
            + ", ".join(f"{n} {name}" for name, n in sorted(self.kills.items())),
            "at failpoints: " + ", ".join(f"{n} {name}" for name, n in sorted(self.points.items())),
            f"{self.jobs} jobs: lost {self.lost}, finalised twice {self.finalised_twice}, "
            f"error {self.errors}",
            f"repeats per kill {self.repeats / max(self.kill_count, 1):.2f}",
            f"recovery of a killed job (lease ttl 1 s): p50 {at(0.5):.2f} s, p99 {at(0.99):.2f} s, "
            f"max {times[-1]:.2f} s",
            *(f"BROKEN: {sentence}" for sentence in self.broken),
        ]


class Campaign:
    """Owns one folder with a store, and the processes that are killed in it."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        jobs_per_cycle: int = 24,
        popen: type[subprocess.Popen[Any]] = subprocess.Popen,
    ) -> None:
        self.folder = folder
        self._popen = popen
        self.random = random.Random(seed)
        self.jobs_per_cycle = jobs_per_cycle
        self.outcome = Outcome()
        self._kills: list[tuple[float, set[str]]] = []
        shutil.copy(REPOSITORY / "tests/faults/kill_app.py", folder / "kill_app.py")
        (folder / "penstock.toml").write_text(CONFIG)
        self._environment = environment_of_tests()

    def _launch(
        self, role: str, *args: str, failpoints: dict[str, object]
    ) -> subprocess.Popen[bytes]:
        environment = {**self._environment, VARIABLE: json.dumps(failpoints)}
        if "beat.in_tx" in json.dumps(failpoints):  # a drained run is over before its first beat
            environment["PENSTOCK_RUNTIME__BEAT_SECONDS"] = QUICK_BEAT_SECONDS
        with (self.folder / "processes.log").open("ab") as log:
            return self._popen(
                [sys.executable, "-m", "tests.faults.launcher", role, *args],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _armed(self, role: str, point: str, at: int) -> dict[str, object]:
        once = self.folder / "once"
        once.touch()
        return {role: {point: {"at": at, "once": str(once)}}}

    def produce(self, point: str | None) -> None:
        """Enqueue a cycle's jobs; if the producer dies, another one repeats the same calls."""
        failpoints = self._armed("producer", point, self.random.randint(1, 20)) if point else {}
        args = (str(self.outcome.cycles), str(self.jobs_per_cycle))
        code = self._launch("producer", *args, failpoints=failpoints).wait(60)
        if code == -signal.SIGKILL:
            self._count_kill("producer", point)
            code = self._launch("producer", *args, failpoints={}).wait(60)
        if code:
            self.outcome.broken.append("a producer failed without being killed")

    def _count_kill(self, target: str, point: str | None = None) -> None:
        self.outcome.kills[target] = self.outcome.kills.get(target, 0) + 1
        if point is not None:
            self.outcome.points[point] = self.outcome.points.get(point, 0) + 1
        self._kills.append((time.monotonic(), self._running_now()))

    def _running_now(self) -> set[str]:
        running: set[str] = set()
        for word, key, _ in self._body_lines():
            (running.add if word == "start" else running.discard)(key)
        return running

    def _body_lines(self) -> list[tuple[str, str, float]]:
        log = self.folder / "bodies.log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [(w, k, float(t)) for w, k, t in (line.split(" ") for line in lines)]

    def cycle(self) -> None:
        """One kill: at a random moment, or at a failpoint."""
        self.outcome.cycles += 1
        choice = self.random.random()
        if choice < 0.15:
            self.produce(self.random.choice(PRODUCER_POINTS))
            self._run_until_drained()
            return
        self.produce(None)
        if choice < 0.55:
            role = "worker" if choice < 0.50 else "supervisor"
            points = WORKER_POINTS if role == "worker" else SUPERVISOR_POINTS
            point = self.random.choice(points)
            if point == "sweep.in_tx":  # somebody must have died with his supervisor, and expired
                self._run_and_kill("both")
                time.sleep(1.1)
            self._run_until_drained(role, point)
        else:
            self._run_and_kill(self.random.choice(TARGETS))

    def _run_until_drained(self, role: str | None = None, point: str | None = None) -> None:
        """Let a run go on to its end; whoever meets the failpoint dies on the way."""
        failpoints: dict[str, object] = {}
        if role is not None and point is not None:
            at = 1 if point in RARE_POINTS else self.random.randint(1, 6)
            failpoints = self._armed(role, point, at)
            if point == "reap.in_tx":  # a worker must die first
                other = self.folder / "once-worker"
                other.touch()
                failpoints["worker"] = {"exec.during": {"at": 1, "once": str(other)}}
        process = self._launch("supervisor", "queue", "run", "--drain", failpoints=failpoints)
        once = self.folder / "once"
        armed = once.exists() and bool(failpoints)
        deadline = time.monotonic() + END_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            if armed and not once.exists():
                armed = False
                self._count_kill(role or "", point)
            time.sleep(0.005)
        if armed and not once.exists():
            self._count_kill(role or "", point)
        once.unlink(missing_ok=True)
        if process.poll() is None:
            self.outcome.broken.append(
                f"a run did not end within {END_SECONDS:g} s (armed: {failpoints})"
            )
            kill_run(process)
        process.wait()

    def _run_and_kill(self, target: str) -> None:
        process = self._launch("supervisor", "queue", "run", "--drain", failpoints={})
        lines = len(self._body_lines())
        deadline = time.monotonic() + 30
        while len(self._body_lines()) == lines and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(self.random.uniform(0, 0.05))
        workers = children_of(process.pid)
        if target == "both":  # or it might reap its workers before it dies itself
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGSTOP)
        if target in ("worker", "both"):
            for pid in workers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if target in ("supervisor", "both"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        self._count_kill(target)
        if target == "worker":
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self.outcome.broken.append(
                    f"a run did not end within {END_SECONDS:g} s after its worker was killed"
                )
                kill_run(process)
        process.wait()
        self._wait_gone(workers)

    def _wait_gone(self, pids: list[int]) -> None:
        """Orphaned workers must be gone within a second (and what a slow machine adds)."""
        deadline = time.monotonic() + GONE_SECONDS
        while any(is_alive(pid) for pid in pids) and time.monotonic() < deadline:
            time.sleep(0.01)
        for pid in pids:
            if is_alive(pid):
                self.outcome.broken.append(
                    f"a worker outlived its supervisor by {GONE_SECONDS:g} s"
                )
                os.kill(pid, signal.SIGKILL)

    def finish(self) -> Outcome:
        """Let everything come to its end, then count."""
        self._run_until_drained()
        outcome = self.outcome
        store = SqliteStore.open(self.folder / "kill.db")
        try:
            self._ask(store)
        except PenstockError as error:
            outcome.broken.append(f"the store cannot be read: {error}")
        finally:
            store.close()
        return outcome

    def _ask(self, store: SqliteStore) -> None:
        outcome = self.outcome
        outcome.broken += store.check().result()
        accepted = set((self.folder / "accepted.log").read_text().split())
        known: dict[str, JobState] = {}
        last = JobId(0)
        while page := store.jobs(JobFilter(), last, 500).result():
            for job in page:
                known[job.key] = job.state
                ends = [a for a in store.attempts(job.key).result() if a.outcome in set(JobState)]
                outcome.finalised_twice += len(ends) > 1
                outcome.errors += job.state is JobState.ERROR
            last = page[-1].id
        outcome.jobs = len(known)
        outcome.lost = len(accepted - set(known))
        outcome.lost += sum(
            state not in (JobState.DONE, JobState.ERROR) for state in known.values()
        )
        children = [key for key in known if "/child-" in key]
        if len(children) != 3 * len({key.partition("/")[0] for key in children}):
            outcome.broken.append("a fan-out is there in part")
        starts = [key for word, key, _ in self._body_lines() if word == "start"]
        outcome.repeats = len(starts) - len(set(starts))
        self._measure_recovery()

    def _measure_recovery(self) -> None:
        """From a kill to the next start of each job that ran at that moment."""
        lines = self._body_lines()
        for at, running in self._kills:
            for key in running:
                again = [t for word, k, t in lines if word == "start" and k == key and t > at]
                if again:
                    self.outcome.recovery_seconds.append(again[0] - at)
