# SPDX-License-Identifier: Apache-2.0
"""How long does a fair lease take when a hundred thousand groups have work?"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.measuring import Answer, fresh, interleaved, pick, quantile
from benchmarks.queue.workload import enqueue
from benchmarks.report import SPREAD_COLUMNS, spread
from benchmarks.runner import Check, Outcome, Sense, Setup, Table
from penstock.model.job import WorkerId
from penstock.model.lease import ConfiguredCaps, LeaseRequest, WorkerInfo
from penstock.stores.protocol import GROUPS_PER_LEASE
from penstock.stores.sqlite.store import SqliteStore

LIMIT = GROUPS_PER_LEASE  # jobs of one lease: one of each group that a lease visits
WARM_UP = 20  # leases before the clock counts
TTL_SECONDS = 300.0
JOBS_PER_GROUP = 2  # so that every group is still ready after its first job was leased
WORKER = WorkerId("w-bench")


def lease(path: str, count: int) -> Answer:
    """Probe: time single lease transactions, from the call to the durable answer."""
    store = SqliteStore.open(Path(path))
    store.register(WorkerInfo(id=WORKER, run_id="bench", tasks=("noop",)), TTL_SECONDS).result()
    request = LeaseRequest(worker=WORKER, tasks=("noop",), limit=LIMIT, caps=ConfiguredCaps())

    def lease_once() -> None:
        found = len(store.lease(request).result().jobs)
        if not found:
            raise RuntimeError("A lease found no job")

    _times_ms(lease_once, WARM_UP)
    leases = _times_ms(lease_once, count)
    beats = _times_ms(lambda: store.beat([WORKER], TTL_SECONDS).result(), count)
    stats = _times_ms(lambda: store.stats().result(), WARM_UP)
    store.close()
    return {
        "p50": statistics.median(leases),
        "p99": quantile(leases, 0.99),
        "commit": statistics.median(beats),
        "stats": statistics.median(stats),
    }


def _times_ms(call: Callable[[], object], count: int) -> list[float]:
    times = []
    for _ in range(count):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e3)
    return times


def _flush(path: Path) -> None:
    """Have the file on the disk, so that the commits measured next do not wait for it."""
    descriptor = os.open(path, os.O_RDWR)
    os.fsync(descriptor)
    os.close(descriptor)


def measure(setup: Setup) -> Outcome:
    """Lease from a file with many groups, and for comparison from one with few."""
    groups, count = setup.size(100_000, smoke=4_000), setup.size(400, smoke=50)
    few = 8
    total = groups * JOBS_PER_GROUP
    fresh(enqueue, setup.folder, path="many.db", count=total, groups=groups)
    fresh(enqueue, setup.folder, path="few.db", count=total, groups=few)

    def on_copy(name: str) -> Callable[[], Answer]:
        def run() -> Answer:
            copy = setup.folder / "copy.db"
            for old in setup.folder.glob("copy.db*"):
                old.unlink()
            shutil.copyfile(setup.folder / name, copy)
            _flush(copy)
            return fresh(lease, setup.folder, path=copy.name, count=count)

        return run

    answers = interleaved(setup.rounds, {"many": on_copy("many.db"), "few": on_copy("few.db")})
    rows = [
        spread(f"{label} groups: {what}", "ms", pick(answers[name], figure))
        for name, label in (("many", f"{groups:,}"), ("few", f"{few:,}"))
        for figure, what in (
            ("p50", f"lease of up to {LIMIT} jobs, p50"),
            ("p99", f"lease of up to {LIMIT} jobs, p99"),
            ("commit", "transaction of one row, p50"),
            ("stats", "stats(), p50"),
        )
    ]
    value = statistics.median(pick(answers["many"], "p50"))
    return Outcome(
        (Check(f"fairness: lease with {groups:,} groups, p50 in ms", value, Sense.BELOW, 1.0),),
        (
            Table(
                f"Fair leases, {count} per run, each a durable transaction",
                SPREAD_COLUMNS,
                tuple(rows),
            ),
        ),
    )
