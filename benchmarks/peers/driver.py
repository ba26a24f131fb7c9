# SPDX-License-Identifier: Apache-2.0
"""How is one peer driven? Its probes, which run in the peer's own environment.

A worker is always another process than the producer. The drain rate counts from the moment the
first job begins until the last one is done for the peer, so that nobody's start-up counts.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from benchmarks.measuring import Answer, ProbeFailed, Running, cpu_of, quantile, running
from benchmarks.peers.marks import Marks

GAP_SECONDS = (0.02, 0.12)  # between two single jobs: no multiple of any polling interval
LOOK_SECONDS = 0.002  # between two looks at the marks
DRAIN_SECONDS = 200.0  # a drain that takes longer has failed
QUIET_SECONDS = 0.5  # after the first job, before idleness is measured
NEVER_SECONDS = 3_600.0
WARM_UP = 3  # single jobs before the clock counts
JOURNAL_MODE, SYNCHRONOUS = "journal_mode", "synchronous"  # of SQLite
FSYNC, SYNCHRONOUS_COMMIT = "fsync", "synchronous_commit"  # of PostgreSQL
SYNCHRONOUS_NAMES = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}

Mark = Callable[[int], None]


class Peer(Protocol):
    """One queue in one place, with a task that marks the number it is given."""

    def put(self, number: int) -> None:
        """Accept one job, durably as far as the peer can."""
        ...

    def put_many(self, numbers: range) -> None:
        """Accept many jobs in the fastest way that the peer has."""
        ...

    def unfinished(self) -> int:
        """How many jobs are not done for the peer?"""
        ...

    def durability(self) -> dict[str, str]:
        """The settings that decide it, as they are in force on the peer's own connection."""
        ...

    def work(self) -> None:
        """Be a worker until the process is killed."""
        ...


def target(module: str, place: str, **options: int) -> Answer:
    """Which driver, where (a folder, or the URL of a database), and with which settings?"""
    return {"module": module, "place": place, "options": options}


def open_peer(target: Answer, mark: Mark) -> Peer:
    """The peer that is driven by this module, in this place."""
    module = importlib.import_module(f"benchmarks.peers.{target['module']}")
    opened: Peer = module.open_peer(target["place"], mark, **target["options"])
    return opened


def read_pragmas(ask: Callable[[str], object]) -> dict[str, str]:
    """Both settings, given a function that asks the peer's connection for one."""
    level = int(str(ask(SYNCHRONOUS)))
    return {JOURNAL_MODE: str(ask(JOURNAL_MODE)), SYNCHRONOUS: SYNCHRONOUS_NAMES[level]}


def read_server_settings(ask: Callable[[str], object]) -> dict[str, str]:
    """Both settings of a PostgreSQL server, given a function that asks it for one."""
    return {name: str(ask(f"show {name}")) for name in (FSYNC, SYNCHRONOUS_COMMIT)}


def versions(packages: Iterable[str]) -> Answer:
    """Probe: which version of each package is installed? Null for one that is missing."""
    found: Answer = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def work(peer: Answer, marks: str, hang: bool = False) -> Answer:
    """Probe: a worker of this peer, until it is killed; with `hang` its jobs never end."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    board = Marks(marks)

    def mark_and_hang(number: int) -> None:
        board.mark(number)
        time.sleep(NEVER_SECONDS)

    open_peer(peer, mark_and_hang if hang else board.mark).work()
    return {}


def _end_with_parent() -> None:
    """The input ends when whoever started this process is gone."""
    sys.stdin.read()
    os._exit(1)


def drain(peer: Answer, marks: str, total: int) -> Answer:
    """Probe: enqueue no-op jobs, then have one worker process drain them."""
    board = Marks.create(marks, total)
    queue = open_peer(peer, board.mark)
    start = time.perf_counter()
    queue.put_many(range(total))
    enqueueing = time.perf_counter() - start
    if queue.unfinished() != total:
        raise ProbeFailed(f"{peer['module']} holds {queue.unfinished()} of {total} jobs.")
    with running(work, Path.cwd(), peer=peer, marks=marks) as worker:
        _wait(board.all_begun, worker)
        _wait(lambda: not queue.unfinished(), worker)
        end = time.monotonic()
    return {
        "rate": total / (end - min(board.times())),
        "enqueue_rate": total / enqueueing,
        **queue.durability(),
    }


def enqueue(peer: Answer, marks: str, total: int) -> Answer:
    """Probe: enqueue many jobs that nobody runs."""
    queue = open_peer(peer, Marks.create(marks, total).mark)
    start = time.perf_counter()
    queue.put_many(range(total))
    spent = time.perf_counter() - start
    if queue.unfinished() != total:
        raise ProbeFailed(f"{peer['module']} holds {queue.unfinished()} of {total} jobs.")
    return {"rate": total / spent}


def latency(peer: Answer, marks: str, count: int, seed: int, idle_seconds: float) -> Answer:
    """Probe: single jobs at random moments for an idle worker in another process."""
    board = Marks.create(marks, WARM_UP + count)
    queue = open_peer(peer, board.mark)
    gaps = random.Random(seed)
    called: list[float] = []
    with running(work, Path.cwd(), peer=peer, marks=marks) as worker:
        queue.put(0)
        called.append(0.0)
        _wait(lambda: bool(board.times()[0]), worker)
        time.sleep(QUIET_SECONDS)
        before = cpu_of(worker.pid)
        time.sleep(idle_seconds)
        idle_cpu = cpu_of(worker.pid) - before
        for number in range(1, WARM_UP + count):
            time.sleep(gaps.uniform(*GAP_SECONDS))
            called.append(time.monotonic())
            queue.put(number)
        _wait(board.all_begun, worker)
    begun = board.times()
    waits = [(begun[n] - called[n]) * 1e3 for n in range(WARM_UP, WARM_UP + count)]
    return {
        "p50": quantile(waits, 0.5),
        "p99": quantile(waits, 0.99),
        "idle_percent": idle_cpu / idle_seconds * 100,
    }


def takeover(peer: Answer, marks: str, limit_seconds: float) -> Answer:
    """Probe: a worker is killed with a job running; when does the next worker run it again?

    Null if it does not within the limit. A second job shows that the next worker works.
    """
    board = Marks.create(marks, 2)
    queue = open_peer(peer, board.mark)
    with running(work, Path.cwd(), peer=peer, marks=marks, hang=True) as worker:
        queue.put(0)
        _wait(lambda: bool(board.times()[0]), worker)
        time.sleep(QUIET_SECONDS)
        worker.kill()
    killed = time.monotonic()
    with running(work, Path.cwd(), peer=peer, marks=marks) as worker:
        queue.put(1)
        _wait(lambda: bool(board.times()[1]), worker)
        while time.monotonic() < killed + limit_seconds:
            worker.check_alive()
            if board.times()[0] > killed:
                return {"seconds": board.times()[0] - killed}
            time.sleep(LOOK_SECONDS)
    return {"seconds": None}


def _wait(until: Callable[[], bool], worker: Running) -> None:
    deadline = time.monotonic() + DRAIN_SECONDS
    while not until():
        worker.check_alive()
        if time.monotonic() > deadline:
            raise ProbeFailed(f"{worker.name} did not finish within {DRAIN_SECONDS:g} s.")
        time.sleep(LOOK_SECONDS)
