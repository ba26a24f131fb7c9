# SPDX-License-Identifier: Apache-2.0
"""Starts the processes of a campaign, kills them at random, and starts them again."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.campaign.shop import FOLDER, RUN, SEATS, Line
from tests.processes import REPOSITORY, environment_of_tests

APPS = ("alpha", "beta")
SECONDS_TO_START = 20.0
STALL_SECONDS = 120.0  # a drain in which nothing has ended for so long is stuck
#: What is killed, and how often of a hundred times.
KINDS = {"worker": 50, "supervisor": 18, "any": 8, "run": 12, "all": 6, "producer": 6}
LEASE_SECONDS = 10  # where runs are frozen; they are thawed when it is over
#: How a run may end when it is stopped; by the signal itself if that came in its first moment.
STOPPED = {0, 4, -signal.SIGKILL, -signal.SIGTERM}
LOOKS = (("queue", "list"), ("budget", "show"))
RESERVE_MICRO_USD = 12_000  # more than one call may cost


@dataclass
class Store:
    """Where the jobs are, and what may happen to it beside the kills."""

    url: str
    disturbances: Mapping[str, Callable[[], None]] = field(default_factory=dict)


@dataclass
class Run:
    """A `penstock queue run`, or a producer, under a name that its processes inherit.

    No other process on the machine has that name, not those of another campaign, either.
    """

    name: str
    app: str
    process: subprocess.Popen[bytes]

    @property
    def is_producer(self) -> bool:
        return self.name.startswith("producer")

    def pids(self) -> list[int]:
        """All processes that carry its name, whoever their parent is."""
        mark = f"{RUN}={self.name}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
        return found

    def freeze(self) -> list[int]:
        """Stop every process of it."""
        pids = self.pids()
        for pid in pids:
            _signal(pid, signal.SIGSTOP)
        return pids

    def kill_all(self) -> list[int]:
        """Kill every process of it, the first one first; none is left."""
        killed: list[int] = []
        while pids := [pid for pid in self.pids() if _is_alive(pid)]:
            for pid in sorted(pids, key=lambda pid: pid != self.process.pid):
                _signal(pid, signal.SIGKILL)
            killed += pids
        self.process.wait()
        return killed


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    return False


@dataclass
class Frozen:
    """A run that stands still, until when."""

    run: Run
    pids: list[int]
    before: float
    until: float


class Crew:
    """All processes of one round, in one folder, on one store."""

    def __init__(
        self, folder: Path, store: Store, seed: int, programs: Path, freezes: bool = False
    ) -> None:
        self.folder = folder
        self.store = store
        self.random = random.Random(seed)
        self.programs = programs
        self.kills = 0
        self.unexpected: list[str] = []
        self.runs: list[Run] = []
        self._budgets = dict.fromkeys(APPS, 0)
        self._started = 0
        self._freezes = freezes
        self._frozen: list[Frozen] = []
        self._events = (folder / "kills.jsonl").open("a", buffering=1)
        self._write_project()
        self._ledger = subprocess.Popen(
            [sys.executable, "-m", "tests.campaign.ledger", str(folder), "--seed", str(seed)],
            stdin=subprocess.PIPE,
            env=environment_of_tests(),
        )
        while not (folder / "ports").exists():
            assert self._ledger.poll() is None, "the ledger does not start"
            time.sleep(0.01)
        os.environ[FOLDER] = str(folder)
        self.line = Line()

    def _write_project(self) -> None:
        for app in APPS:
            text = f"from tests.campaign.shop import make_app\n\napp = make_app({app!r})\n"
            (self.folder / f"{app}.py").write_text(text)
        seats = "\n".join(f"{seat} = {limit}" for seat, limit in SEATS.items())
        (self.folder / "penstock.toml").write_text(
            f'store = "{self.store.url}"\n\n[limits.seat]\n{seats}\n\n[tasks]\nmax_attempts = 3\n'
            + f"\n[runtime]\nlease_ttl_seconds = {LEASE_SECONDS}\nbeat_seconds = 2\n"
            * self._freezes
        )

    def note(self, what: str, **facts: Any) -> None:
        line = {"at": time.monotonic(), "what": what, **facts}
        self._events.write(json.dumps(line) + "\n")

    # ── starting ─────────────────────────────────────────────────────────────────────────────────

    def environment(self, name: str, app: str) -> dict[str, str]:
        more = {FOLDER: str(self.folder), RUN: name, "PYTHONPATH": str(REPOSITORY)}
        if self._budgets[app]:
            more["PENSTOCK_BUDGET__TOTAL__USD"] = f"{self._budgets[app] / 1e6:.6f}"
        return environment_of_tests() | more

    def start(self, app: str, *words: str) -> Run:
        """A run of an app, with the budget that there is by now."""
        self._started += 1
        name = f"run-{app}-{self._started}@{self.folder.name}"
        self.note("start", run=name, app=app, budget=self._budgets[app])
        command = [str(self.programs / "penstock"), "queue", "run", f"{app}.py", *words]
        return self._start(name, app, command)

    def start_producer(self, app: str) -> Run:
        self._started += 1
        python = str(self.programs / "python")
        command = [python, "-m", "tests.campaign.producer", app]
        return self._start(f"producer-{app}-{self._started}@{self.folder.name}", app, command)

    def _start(self, name: str, app: str, command: list[str]) -> Run:
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment(name, app),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return Run(name, app, process)

    def raise_budget(self, app: str) -> None:
        """Allow some calls more than what was billed, and than what may be in doubt."""
        status = json.loads(self.line.tell(status=app))
        calls = self.random.randint(5, self.random.choice((60, 400)))
        more = calls * 4_000 + status["undelivered"] * RESERVE_MICRO_USD
        self._budgets[app] = max(self._budgets[app], status["billed"] + more)

    def lift_budget(self, app: str) -> None:
        self._budgets[app] = 1_000_000_000

    # ── killing ──────────────────────────────────────────────────────────────────────────────────

    def storm(self, kills: int, is_short: bool) -> None:
        """Let two runs of one app and one of the other work, and kill until it is enough."""
        apps = [*APPS, *self.random.choices(APPS, k=0 if is_short else 1)]
        for app in APPS:
            self.raise_budget(app)
            self.runs.append(self.start_producer(app))
        self.runs += [self.start(app, *self._size()) for app in apps]
        for _ in range(kills):
            self._wait_for_a_moment()
            self._disturb()
            self._freeze()
            self._kill_something()
            self._start_again()
        self._thaw(all_of_them=True)
        self.line.tell(enough=True)

    def _freeze(self) -> None:
        """Let a run stand still for longer than its lease, while another of its app goes on."""
        if self._freezes and not self._frozen and self.random.random() < 0.3:
            apps = [run.app for run in self._workers()]
            run = self.random.choice([r for r in self._workers() if apps.count(r.app) > 1])
            before = time.monotonic()
            seconds = LEASE_SECONDS + self.random.uniform(-1.0, 6.0)
            self._frozen.append(Frozen(run, run.freeze(), before, before + seconds))

    def _thaw(self, all_of_them: bool = False) -> None:
        """Let those go on whose time has come."""
        for frozen in list(self._frozen):
            if all_of_them:
                time.sleep(max(frozen.until - time.monotonic(), 0.0))
            if time.monotonic() >= frozen.until:
                self._frozen.remove(frozen)
                for pid in frozen.pids:
                    _signal(pid, signal.SIGCONT)
                runs = [frozen.run.name]
                facts = {"runs": runs, "pids": frozen.pids, "before": frozen.before}
                self.note("freeze", kind="freeze", **facts)

    def _disturb(self) -> None:
        """Do something to the database of which nobody may take harm, if there is such a thing."""
        if self.store.disturbances and self.random.random() < 0.3:
            disturbance = self.random.choice(list(self.store.disturbances))
            self.note("disturbed", how=disturbance)
            self.store.disturbances[disturbance]()
            time.sleep(self.random.random())

    def _size(self) -> tuple[str, ...]:
        words = ["--slots", str(self.random.choice((4, 12, 40)))]
        if self.random.random() < 0.15:
            words += ["--processes", "2"]
        return tuple(words)

    def _wait_for_a_moment(self) -> None:
        """Until some run works, mostly, and then some time; or into a start."""
        until = time.monotonic() + SECONDS_TO_START
        if self.random.random() < 0.8:
            while time.monotonic() < until and not all(self.works(run) for run in self._workers()):
                time.sleep(0.05)
                self._start_again()
        time.sleep(min(4.0, self.random.expovariate(1.0)))
        self._start_again()

    def _workers(self) -> list[Run]:
        return [run for run in self.runs if not run.is_producer]

    def works(self, run: Run) -> bool:
        return self._last_visit(run) is not None

    def _last_visit(self, run: Run) -> tuple[float, int] | None:
        found: dict[str, tuple[float, int]] = json.loads(self.line.tell(status=""))["last_visit"]
        return found.get(run.name)

    def _kill_something(self) -> None:
        kind = self.random.choices(list(KINDS), list(KINDS.values()))[0]
        if kind in ("producer", "all"):
            chosen = [run for run in self.runs if kind == "all" or run.is_producer]
            if kind == "producer":
                chosen = [self.random.choice(chosen)]
        else:
            chosen = [self.random.choice(self._workers())]
        before = time.monotonic()
        pids = [pid for run in chosen for pid in self._kill(kind, run)]
        self.kills += 1
        self.note("kill", kind=kind, runs=[run.name for run in chosen], pids=pids, before=before)

    def _kill(self, kind: str, run: Run) -> list[int]:
        if kind == "worker" and (visit := self._last_visit(run)) is not None:
            pids = [visit[1]]
        elif kind == "supervisor":
            pids = [run.process.pid]
        elif kind in ("worker", "any"):
            pids = [self.random.choice(run.pids() or [run.process.pid])]
        else:
            return run.kill_all()
        for pid in pids:
            _signal(pid, signal.SIGKILL)
        return pids

    def _start_again(self) -> None:
        """Replace what has ended: killed, out of budget, or for a reason that nobody gave."""
        self._thaw()
        for n, run in enumerate(self.runs):
            code = run.process.poll()
            if code is None:
                continue
            if code not in (-signal.SIGKILL, 4):
                self.unexpected.append(f"{run.name} ended with {code}: {self.last_words(run)}")
            if run.is_producer:
                self.runs[n] = self.start_producer(run.app)
            else:
                self.raise_budget(run.app)
                self.runs[n] = self.start(run.app, *self._size())

    def log(self, run: Run) -> str:
        return (self.folder / f"{run.name}.log").read_text(errors="replace")

    def last_words(self, run: Run) -> str:
        return " / ".join(self.log(run).strip().splitlines()[-3:])

    # ── coming to an end ─────────────────────────────────────────────────────────────────────────

    def calm(self, is_short: bool) -> None:
        """End the storm: producers finish, runs stop in good order, then all is drained."""
        for run in self.runs:
            if not run.is_producer:
                self.note("stop", run=run.name)
                run.process.terminate()
        for run in self.runs:
            try:
                code = run.process.wait(60)
            except subprocess.TimeoutExpired:
                self.unexpected.append(f"{run.name} did not stop within 60 s")
                run.kill_all()
                continue
            if code not in (
                0,
                4,
                -signal.SIGKILL,
                -signal.SIGTERM,
            ):  # the last: in its first moment
                self.unexpected.append(f"{run.name} stopped with {code}: {self.last_words(run)}")
        if not is_short:  # within the budgets first
            for run in [self.start(app, "--drain") for app in APPS]:
                self._await(run, {0, 1, 4})
        for app in APPS:
            self.lift_budget(app)
        self.drain(*APPS)

    def drain(self, *apps: str) -> None:
        """Work on all that is left."""
        for run in [self.start(app, "--drain") for app in apps]:
            self._await(run, {0, 1})

    def _await(self, run: Run, codes: set[int]) -> None:
        code, ends, since = run.process.poll(), -1, time.monotonic()
        while code is None:
            time.sleep(0.05)
            now = json.loads(self.line.tell(status=run.app))["ends"]
            if now != ends:
                ends, since = now, time.monotonic()
            if time.monotonic() - since > STALL_SECONDS:
                self.unexpected.append(f"{run.name} ended nothing for {STALL_SECONDS:g} s")
                run.kill_all()
                return
            code = run.process.poll()
        if code not in codes:
            self.unexpected.append(f"{run.name} drained with {code}: {self.last_words(run)}")
        left = run.pids()
        if left:
            self.unexpected.append(f"{run.name} has left {len(left)} processes behind")

    def write_down_what_is_told(self) -> None:
        """Keep what the command line says at the end, for who judges."""
        with ThreadPoolExecutor() as at_once:
            looks = [
                (app, at_once.submit(self._ask, app, *words)) for app in APPS for words in LOOKS
            ]
        told: dict[str, dict[str, Any]] = {app: {} for app in APPS}
        for app, look in looks:
            told[app] |= look.result()
        (self.folder / "told.json").write_text(json.dumps(told))

    def _ask(self, app: str, *words: str) -> dict[str, Any]:
        told = subprocess.run(
            [str(self.programs / "penstock"), *words, f"{app}.py", "--json"],
            cwd=self.folder,
            env=self.environment(f"look-{app}", app),
            check=True,
            capture_output=True,
            timeout=120,
        )
        document: dict[str, Any] = json.loads(told.stdout)
        return document

    def close(self) -> None:
        for run in self.runs:
            run.kill_all()
        self.line.close()
        assert self._ledger.stdin is not None
        self._ledger.stdin.close()
        self._ledger.wait(30)
        self._events.close()
