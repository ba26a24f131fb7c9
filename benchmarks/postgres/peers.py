# SPDX-License-Identifier: Apache-2.0
"""How do the other queues on PostgreSQL do on the same work, in the same run?

Each peer is first tried with several settings of its own; the best one then takes turns with ours.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measuring import (
    MEMORY,
    Answer,
    Probe,
    fresh,
    interleaved,
    paired_ratio,
    pick,
)
from benchmarks.peers import catalogue, comparing, driver
from benchmarks.peers.catalogue import (
    OURS_ON_POSTGRES,
    PGQUEUER,
    POSTGRES_PEERS,
    Options,
    PeerEntry,
)
from benchmarks.peers.comparing import Measured
from benchmarks.postgres.server import new_database, rounds_of
from benchmarks.report import SPREAD_COLUMNS, spread
from benchmarks.runner import Cell, Check, Kind, Outcome, Sense, Setup, Table

STORE = "PostgreSQL"
TRIAL_ROUNDS = 2
PADDING = 100  # characters that a job carries when bulk enqueueing is compared
CHUNKS = (1_000, 5_000, 50_000)  # jobs of one call of PgQueuer's
SETTING_COLUMNS = ("who", "setting", "drain, jobs/s", "runs", "compared with ours")
PROMISE_COLUMNS = ("who", driver.FSYNC, driver.SYNCHRONOUS_COMMIT, "a job whose worker dies")


class _Databases:
    """Runs probes of the drivers, each on a new database and with its marks in memory."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self.chosen: dict[str, Options] = {}  # by the name of a peer

    def ask(self, entry: PeerEntry, probe: Probe, **arguments: Any) -> Answer:
        return self.ask_with(self.chosen.get(entry.name, {}), entry, probe, **arguments)

    def ask_with(
        self, options: Options, entry: PeerEntry, probe: Probe, **arguments: Any
    ) -> Answer:
        with (
            new_database(self._setup.url) as url,
            tempfile.TemporaryDirectory(dir=MEMORY) as memory,
            tempfile.TemporaryDirectory(dir=self._setup.folder) as folder,
        ):
            return fresh(
                probe,
                Path(folder),
                python=sys.executable if entry is OURS_ON_POSTGRES else catalogue.PYTHON,
                peer=driver.target(entry.module, url, **options),
                marks=str(Path(memory, "marks")),
                **arguments,
            )


def measure(setup: Setup) -> Outcome:
    """Find each peer's best setting, drain beside it, measure latencies, enqueue in bulk."""
    if not catalogue.READY.exists():
        return comparing.absent()
    ours, *peers = comparing.find(setup, OURS_ON_POSTGRES, POSTGRES_PEERS)
    present = [peer for peer in peers if peer.version is not None]
    bench = _Databases(setup)
    trials = [_choose(bench, peer.entry, setup) for peer in present]
    for peer in present:
        comparing.drain_in_turn(bench, ours, peer, setup)
    comparing.measure_latencies(bench, [ours, *present], setup)
    outcome = to_outcome(ours, peers, trials, setup)
    if any(peer.entry is PGQUEUER for peer in present):
        outcome = Outcome.joined((outcome, _enqueue_in_bulk(bench, setup)))
    return outcome


def _choose(bench: _Databases, entry: PeerEntry, setup: Setup) -> list[tuple[Cell, ...]]:
    """Try the settings of a peer, and keep the best for later; a row for each."""
    if setup.smoke:
        bench.chosen[entry.name] = entry.settings[0]
        return []
    total = comparing.jobs_of(entry, setup)
    answers = interleaved(
        TRIAL_ROUNDS,
        {
            name_of(options): partial(bench.ask_with, options, entry, driver.drain, total=total)
            for options in entry.settings
        },
    )
    rates = {name: statistics.median(pick(runs, "rate")) for name, runs in answers.items()}
    best = max(entry.settings, key=lambda options: rates[name_of(options)])
    bench.chosen[entry.name] = best
    return [
        (entry.name, name, rate, TRIAL_ROUNDS, "yes" if name == name_of(best) else "")
        for name, rate in rates.items()
    ]


def name_of(options: Options) -> str:
    """A setting as people read it."""
    return ", ".join(f"{name} {value:,}" for name, value in options.items())


def to_outcome(
    ours: Measured,
    peers: Sequence[Measured],
    trials: Sequence[Sequence[tuple[Cell, ...]]],
    setup: Setup,
) -> Outcome:
    """The checks and tables of the drains."""
    everybody = (ours, *peers)
    goals = tuple(
        Check(
            f"peers: drain rate, × {peer.entry.name} on {STORE}, to aim for",
            peer.ratio,
            Sense.AT_LEAST,
            peer.entry.goal,
            Kind.GOAL,
        )
        for peer in peers
        if peer.version is not None and peer.entry.goal is not None
    )
    promises = Table(
        "Beside the peers: what was in force on their own connections",
        PROMISE_COLUMNS,
        tuple(_promise(measured) for measured in everybody if measured.version is not None),
    )
    rows = tuple(row for trial in trials for row in trial)
    tried = (Table("Beside the peers: which of their settings", SETTING_COLUMNS, rows),)
    return Outcome(
        comparing.speed_checks(peers, STORE) + goals,
        (*(tried if rows else ()), comparing.speed_table(everybody, setup, STORE), promises),
    )


def _promise(measured: Measured) -> tuple[Cell, ...]:
    settings: Mapping[str, str] = measured.drains[-1]
    return (
        measured.entry.name,
        settings[driver.FSYNC],
        settings[driver.SYNCHRONOUS_COMMIT],
        measured.entry.death,
    )


def _enqueue_in_bulk(bench: _Databases, setup: Setup) -> Outcome:
    """Ours and PgQueuer accept the same jobs, in turn; the best size of its lists counts."""
    total = setup.size(50_000, smoke=2_000)
    ours = partial(
        bench.ask_with, {"padding": PADDING}, OURS_ON_POSTGRES, driver.enqueue, total=total
    )
    theirs = {
        f"PgQueuer, lists of {chunk:,}": partial(
            bench.ask_with,
            {"padding": PADDING, "chunk": chunk},
            PGQUEUER,
            driver.enqueue,
            total=total,
        )
        for chunk in (CHUNKS[:1] if setup.smoke else CHUNKS)
    }
    answers = interleaved(rounds_of(setup), {"Penstock": ours, **theirs})
    rates = {name: pick(runs, "rate") for name, runs in answers.items()}
    best = max(theirs, key=lambda name: statistics.median(rates[name]))
    table = Table(
        f"Accepting {total:,} jobs of about {PADDING} bytes at once",
        SPREAD_COLUMNS,
        tuple(spread(name, "jobs/s", values) for name, values in rates.items()),
    )
    check = Check(
        "peers: bulk enqueue, × PgQueuer",
        paired_ratio(rates["Penstock"], rates[best]),
        Sense.AT_LEAST,
        1.0,
    )
    return Outcome((check,), (table,))
