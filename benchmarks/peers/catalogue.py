# SPDX-License-Identifier: Apache-2.0
"""Which queues are we compared with, how long do they run, and what does each promise?"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.measuring import ROOT

PYTHON = ROOT / ".venv-peers" / "bin" / "python"
READY = ROOT / ".venv-peers" / "ok"  # made last
COMMAND = "make bench-peers"


@dataclass(frozen=True, slots=True)
class PeerEntry:
    """One queue of the comparison."""

    name: str
    package: str
    module: str  # of its driver, in this package
    jobs: int  # of a full drain: seconds of work, and a smaller number only favours it
    death: str  # what becomes of a job whose worker dies, as its code says
    at_least: float | None = None  # how many times faster a drain of ours must be


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
