# SPDX-License-Identifier: Apache-2.0
"""Which queues are we compared with, how long do they run, and what does each promise?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.measuring import ROOT

PYTHON = ROOT / ".venv-peers" / "bin" / "python"
READY = ROOT / ".venv-peers" / "ok"  # made last
COMMAND = "make bench-peers"


Options = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PeerEntry:
    """One queue of the comparison."""

    name: str
    package: str
    module: str  # of its driver, in this package
    jobs: int  # of a full drain: seconds of work, and a smaller number only favours it
    death: str  # what becomes of a job whose worker dies, as its code says
    at_least: float | None = None  # how many times faster a drain of ours must be
    goal: float | None = None  # and how many times faster it should be
    settings: tuple[Options, ...] = ()  # of its own that are tried; the best one is compared with


OURS = PeerEntry(
    name="Penstock",
    package="penstock",
    module="penstock_sqlite",
    jobs=20_000,
    death="a lease that expires; at once with a supervisor",
)

PEERS = (
    PeerEntry(
        name="huey",
        package="huey",
        module="huey_sqlite",
        jobs=20_000,
        death="lost: at most once, the row is deleted before the task runs",
        at_least=7.0,
    ),
    PeerEntry(
        name="DBOS",
        package="dbos",
        module="dbos_sqlite",
        jobs=1_500,
        death="no lease: waits until an executor of the same id starts again",
        at_least=20.0,
    ),
    PeerEntry(
        name="FlexiQ",
        package="flexiq",
        module="flexiq_sqlite",
        jobs=5_000,
        death="taken over when the worker's heartbeat is missed",
    ),
    PeerEntry(
        name="litequeue",
        package="litequeue",
        module="litequeue_sqlite",
        jobs=4_000,
        death="no lease, no worker: stays locked until the application calls retry()",
    ),
    PeerEntry(
        name="persist-queue",
        package="persist-queue",
        module="persistqueue_sqlite",
        jobs=4_000,
        death="no lease, no worker: comes back with all others when one process opens the file",
    ),
)

OURS_ON_POSTGRES = PeerEntry(
    name="Penstock",
    package="penstock",
    module="penstock_postgres",
    jobs=50_000,
    death="a lease that expires; at once with a supervisor",
)

PGQUEUER = PeerEntry(
    name="PgQueuer",
    package="pgqueuer",
    module="pgqueuer_postgres",
    jobs=50_000,
    death="taken over when its heartbeat is missed",
    at_least=1.3,
    goal=1.6,
    settings=(
        {"batch": 1_000},
        {"batch": 10},
        {"batch": 100},
        {"batch": 500},
        {"batch": 2_000},
        {"batch": 1_000, "pooled": 1},
    ),
)

POSTGRES_PEERS = (
    PGQUEUER,
    PeerEntry(
        name="Procrastinate",
        package="procrastinate",
        module="procrastinate_postgres",
        jobs=1_500,
        death="stays `doing` until the application looks for stalled jobs and retries them",
        at_least=20.0,
        settings=(
            {"concurrency": 50, "delete": 1},
            {"concurrency": 10, "delete": 1},
            {"concurrency": 200, "delete": 1},
            {"concurrency": 50},
        ),
    ),
    PeerEntry(
        name="DBOS",
        package="dbos",
        module="dbos_postgres",
        jobs=1_500,
        death="no lease: waits until an executor of the same id starts again",
        at_least=20.0,
        settings=({"concurrency": 300}, {"concurrency": 100}, {"concurrency": 1_000}),
    ),
)
