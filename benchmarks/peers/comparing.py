# SPDX-License-Identifier: Apache-2.0
"""How do ours and the peers take turns, and what does the table of their speed say?"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from benchmarks.measuring import Answer, Probe, fresh, interleaved, paired_ratio, pick
from benchmarks.peers import catalogue, driver
from benchmarks.peers.catalogue import PeerEntry
from benchmarks.runner import Cell, Check, Outcome, Sense, Setup, Table

SEED = 20_240_602
LATENCY_ROUNDS = 2
SHOWN_ROUNDS = 3  # of a peer that no bound is about
IDLE_SECONDS = 1.0
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


class Bench(Protocol):
    """Runs probes of the drivers, each in a new place."""

    def ask(self, entry: PeerEntry, probe: Probe, **arguments: Any) -> Answer: ...


def find(setup: Setup, ours: PeerEntry, peers: Sequence[PeerEntry]) -> list[Measured]:
    """Ours first, then the peers, with the versions that are installed."""
    packages = [entry.package for entry in peers]
    found = fresh(driver.versions, setup.folder, python=catalogue.PYTHON, packages=packages)
    found |= fresh(driver.versions, setup.folder, packages=[ours.package])
    return [Measured(entry, found[entry.package]) for entry in (ours, *peers)]


def absent() -> Outcome:
    """What is said when the peers have no environment."""
    line = f"not measured: the peers are not installed here; `{catalogue.COMMAND}` does it"
    return Outcome((), (Table("Beside the peers", ("peers",), ((line,),)),))


def rounds_for(entry: PeerEntry, setup: Setup) -> int:
    """How often ours and this peer take turns."""
    if setup.smoke:
        return 1
    return SHOWN_ROUNDS if entry.at_least is None else setup.rounds


def jobs_of(entry: PeerEntry, setup: Setup) -> int:
    """How many jobs does a drain have?"""
    return setup.size(entry.jobs, smoke=max(entry.jobs // 10, 100))


def drain_in_turn(bench: Bench, ours: Measured, peer: Measured, setup: Setup) -> None:
    """Drain with ours and with the peer, several times over."""

    def drain(entry: PeerEntry) -> Answer:
        return bench.ask(entry, driver.drain, total=jobs_of(entry, setup))

    answers = interleaved(
        rounds_for(peer.entry, setup),
        {"ours": lambda: drain(ours.entry), "peer": lambda: drain(peer.entry)},
    )
    peer.ours, peer.drains = answers["ours"], answers["peer"]
    ours.drains += peer.ours


def measure_latencies(bench: Bench, all_of_them: Sequence[Measured], setup: Setup) -> None:
    """Give single jobs to an idle worker of each."""
    count = setup.size(50, smoke=5)
    for number in range(1 if setup.smoke else LATENCY_ROUNDS):
        for measured in all_of_them:
            measured.latencies.append(
                bench.ask(
                    measured.entry,
                    driver.latency,
                    count=count,
                    seed=SEED + number,
                    idle_seconds=IDLE_SECONDS,
                )
            )


def speed_checks(peers: Sequence[Measured], store: str) -> tuple[Check, ...]:
    """How many times faster ours must be than those peers that a bound is about."""
    return tuple(
        Check(
            f"peers: drain rate, × {peer.entry.name} on {store}",
            peer.ratio,
            Sense.AT_LEAST,
            peer.entry.at_least,
        )
        for peer in peers
        if peer.version is not None and peer.entry.at_least is not None
    )


def speed_table(everybody: Sequence[Measured], setup: Setup, store: str) -> Table:
    """Rates and idle latencies of all."""
    return Table(
        f"Beside the peers: no-op jobs on {store}, drained by one worker process; single jobs "
        "when idle",
        SPEED_COLUMNS,
        tuple(_speed(measured, jobs_of(measured.entry, setup)) for measured in everybody),
    )


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
