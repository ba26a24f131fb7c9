# SPDX-License-Identifier: Apache-2.0
"""How do the other durable queues do on the same work, in the same run?

Ours and a peer take turns, so that a drifting load falls on both. The peers have an environment of
their own; without it this scenario says which command makes it, and checks nothing.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.measuring import MEMORY, Answer, Probe, fresh, interleaved, paired_ratio, pick
from benchmarks.peers import catalogue, driver
from benchmarks.peers.catalogue import OURS, PEERS, PeerEntry
from benchmarks.runner import Cell, Check, Outcome, Sense, Setup, Table

SEED = 20_240_602
LATENCY_ROUNDS = 2
SHOWN_ROUNDS = 3  # of a peer that no bound is about
TAKEOVER_SECONDS = 60.0  # twice our lease
NOTHING = "–"
SPEED_COLUMNS = (
    "who",
    "version",
    "jobs",
    "drain, jobs/s",
    "ours, ×",
    "idle p50, ms",
    "idle p99, ms",
    "idle CPU, %",
)
PROMISE_COLUMNS = (
    "who",
    "journal",
    "synchronous",
    "what was acknowledged, after a power cut",
    "a job whose worker dies",
    "run again after SIGKILL",
)


@dataclass(slots=True)
class Measured:
    """What is known of one queue."""

    entry: PeerEntry
    version: str | None  # None: not installed
    drains: list[Answer] = field(default_factory=list)
    ours: list[Answer] = field(default_factory=list)  # our drains, each beside one of its own
    latencies: list[Answer] = field(default_factory=list)
    takeover: Answer | None = None  # None: not measured

    @property
    def ratio(self) -> float:
        """How many times faster ours is."""
        return paired_ratio(pick(self.ours, "rate"), pick(self.drains, "rate"))


class _Bench:
    """Runs probes of the drivers, each in a new folder and with its marks in memory."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup

    def ask(self, entry: PeerEntry, probe: Probe, **arguments: float) -> Answer:
        folder = Path(tempfile.mkdtemp(dir=self._setup.folder))
        with tempfile.TemporaryDirectory(dir=MEMORY) as memory:
            marks = str(Path(memory, "marks"))
            python = Path(sys.executable) if entry is OURS else catalogue.PYTHON
            return fresh(
                probe, folder, python=python, module=entry.module, marks=marks, **arguments
            )

    def drain(self, entry: PeerEntry) -> Answer:
        return self.ask(entry, driver.drain, total=self.jobs(entry))

    def jobs(self, entry: PeerEntry) -> int:
        return self._setup.size(entry.jobs, smoke=max(entry.jobs // 10, 100))


def measure(setup: Setup) -> Outcome:
    """Drain beside each peer, then measure latencies, then kill a worker of each."""
    if not catalogue.READY.exists():
        return absent()
    packages = [entry.package for entry in PEERS]
    found = fresh(driver.versions, setup.folder, python=catalogue.PYTHON, packages=packages)
    ours = Measured(OURS, fresh(driver.versions, setup.folder, packages=[OURS.package])["penstock"])
    peers = [Measured(entry, found[entry.package]) for entry in PEERS]
    present = [peer for peer in peers if peer.version is not None]
    bench = _Bench(setup)
    for peer in present:
        _drain_in_turn(bench, peer, rounds_for(peer.entry, setup))
        ours.drains += peer.ours
    _measure_latencies(bench, [ours, *present], setup)
    if not setup.smoke:
        _measure_takeovers(bench, [ours, *present])
    return to_outcome(ours, peers, {entry.name: bench.jobs(entry) for entry in (OURS, *PEERS)})


def absent() -> Outcome:
    """What is said when the peers have no environment."""
    line = f"not measured: the peers are not installed here; `{catalogue.COMMAND}` does it"
    return Outcome((), (Table("Beside the peers", ("peers",), ((line,),)),))


def rounds_for(entry: PeerEntry, setup: Setup) -> int:
    """How often ours and this peer take turns."""
    if setup.smoke:
        return 1
    return SHOWN_ROUNDS if entry.at_least is None else setup.rounds


def _drain_in_turn(bench: _Bench, peer: Measured, rounds: int) -> None:
    answers = interleaved(
        rounds,
        {"ours": lambda: bench.drain(OURS), "peer": lambda: bench.drain(peer.entry)},
    )
    peer.ours, peer.drains = answers["ours"], answers["peer"]


def _measure_latencies(bench: _Bench, all_of_them: Sequence[Measured], setup: Setup) -> None:
    count, idle_seconds = setup.size(50, smoke=5), 1.0
    for number in range(1 if setup.smoke else LATENCY_ROUNDS):
        for measured in all_of_them:
            measured.latencies.append(
                bench.ask(
                    measured.entry,
                    driver.latency,
                    count=count,
                    seed=SEED + number,
                    idle_seconds=idle_seconds,
                )
            )


def _measure_takeovers(bench: _Bench, all_of_them: Sequence[Measured]) -> None:
    """All at the same time: they only wait."""
    with ThreadPoolExecutor(len(all_of_them)) as threads:
        answers = threads.map(
            lambda measured: bench.ask(
                measured.entry, driver.takeover, limit_seconds=TAKEOVER_SECONDS
            ),
            all_of_them,
        )
        for measured, answer in zip(all_of_them, answers, strict=True):
            measured.takeover = answer


def to_outcome(ours: Measured, peers: Sequence[Measured], jobs: Mapping[str, int]) -> Outcome:
    """The checks and both tables."""
    checks = tuple(
        Check(
            f"peers: drain rate, × {peer.entry.name} on SQLite",
            peer.ratio,
            Sense.AT_LEAST,
            peer.entry.at_least,
        )
        for peer in peers
        if peer.version is not None and peer.entry.at_least is not None
    )
    everybody = (ours, *peers)
    speed = Table(
        "Beside the peers: no-op jobs on SQLite, drained by one worker process; single jobs when "
        "idle",
        SPEED_COLUMNS,
        tuple(_speed(measured, jobs[measured.entry.name]) for measured in everybody),
    )
    promises = Table(
        "Beside the peers: what each promises, with the settings that were measured",
        PROMISE_COLUMNS,
        tuple(_promise(measured) for measured in everybody if measured.version is not None),
    )
    return Outcome(checks, (speed, promises))


def _speed(measured: Measured, jobs: int) -> tuple[Cell, ...]:
    if measured.version is None:
        return (measured.entry.name, "not installed", *[NOTHING] * (len(SPEED_COLUMNS) - 2))
    return (
        measured.entry.name,
        measured.version,
        jobs,
        statistics.median(pick(measured.drains, "rate")),
        measured.ratio if measured.ours else 1.0,
        *(
            statistics.median(pick(measured.latencies, figure))
            for figure in ("p50", "p99", "idle_percent")
        ),
    )


def _promise(measured: Measured) -> tuple[Cell, ...]:
    pragmas = measured.drains[-1]
    return (
        measured.entry.name,
        pragmas[driver.JOURNAL_MODE],
        pragmas[driver.SYNCHRONOUS],
        after_power_cut(pragmas[driver.SYNCHRONOUS]),
        measured.entry.death,
        _takeover(measured.takeover),
    )


def after_power_cut(synchronous: str) -> str:
    """What does SQLite promise at this level?"""
    return "is there" if synchronous in ("FULL", "EXTRA") else "may be lost"


def _takeover(answer: Answer | None) -> str:
    if answer is None:
        return NOTHING
    if answer["seconds"] is None:
        return f"not within {TAKEOVER_SECONDS:g} s"
    return f"{answer['seconds']:.1f} s"
