# SPDX-License-Identifier: Apache-2.0
"""How do the other durable queues do on the same work, in the same run?

Ours and a peer take turns, so that a drifting load falls on both. The peers have an environment of
their own; without it this scenario says which command makes it, and checks nothing.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.measuring import MEMORY, Answer, Probe, fresh
from benchmarks.peers import catalogue, comparing, driver
from benchmarks.peers.catalogue import OURS, PEERS, PeerEntry
from benchmarks.peers.comparing import NOTHING, Measured
from benchmarks.runner import Cell, Outcome, Setup, Table

STORE = "SQLite"
TAKEOVER_SECONDS = 60.0  # twice our lease
PROMISE_COLUMNS = (
    "who",
    "journal",
    "synchronous",
    "what was acknowledged, after a power cut",
    "a job whose worker dies",
    "run again after SIGKILL",
)


class _Folders:
    """Runs probes of the drivers, each in a new folder and with its marks in memory."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup

    def ask(self, entry: PeerEntry, probe: Probe, **arguments: Any) -> Answer:
        folder = Path(tempfile.mkdtemp(dir=self._setup.folder))
        with tempfile.TemporaryDirectory(dir=MEMORY) as memory:
            return fresh(
                probe,
                folder,
                python=sys.executable if entry is OURS else catalogue.PYTHON,
                peer=driver.target(entry.module, str(folder)),
                marks=str(Path(memory, "marks")),
                **arguments,
            )


def measure(setup: Setup) -> Outcome:
    """Drain beside each peer, then measure latencies, then kill a worker of each."""
    if not catalogue.READY.exists():
        return comparing.absent()
    ours, *peers = comparing.find(setup, OURS, PEERS)
    present = [peer for peer in peers if peer.version is not None]
    bench = _Folders(setup)
    for peer in present:
        comparing.drain_in_turn(bench, ours, peer, setup)
    comparing.measure_latencies(bench, [ours, *present], setup)
    if not setup.smoke:
        _measure_takeovers(bench, [ours, *present])
    return to_outcome(ours, peers, setup)


def _measure_takeovers(bench: _Folders, all_of_them: Sequence[Measured]) -> None:
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


def to_outcome(ours: Measured, peers: Sequence[Measured], setup: Setup) -> Outcome:
    """The checks and both tables."""
    everybody = (ours, *peers)
    promises = Table(
        "Beside the peers: what each promises, with the settings that were measured",
        PROMISE_COLUMNS,
        tuple(_promise(measured) for measured in everybody if measured.version is not None),
    )
    return Outcome(
        comparing.speed_checks(peers, STORE),
        (comparing.speed_table(everybody, setup, STORE), promises),
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
