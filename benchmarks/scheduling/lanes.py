# SPDX-License-Identifier: Apache-2.0
"""How long does a lease take when a hundred thousand lanes have work?"""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.measuring import Answer, fresh, quantile
from benchmarks.queue.workload import enqueue
from benchmarks.runner import Check, Outcome, Sense, Setup, Table
from penstock.model.job import WorkerId
from penstock.model.lease import ConfiguredCaps, LeaseRequest, WorkerInfo
from penstock.stores.sqlite.store import SqliteStore

FILE = "lanes.db"
LIMIT = 64  # jobs of one lease
WARM_UP = 20
TTL_SECONDS = 300.0
JOBS_PER_LANE = 2
P99_MS = 20.0
WORKER = WorkerId("w-bench")


def lease(path: str, count: int) -> Answer:
    """Probe: time leases by the wall and by the processor, all threads of the process."""
    store = SqliteStore.open(Path(path))
    store.register(WorkerInfo(id=WORKER, run_id="bench", tasks=("noop",)), TTL_SECONDS).result()
    request = LeaseRequest(worker=WORKER, tasks=("noop",), limit=LIMIT, caps=ConfiguredCaps())
    wall, cpu, lanes = [], [], set()
    for _ in range(WARM_UP + count):
        wall_start, cpu_start = time.perf_counter(), time.process_time()
        jobs = store.lease(request).result().jobs
        wall.append((time.perf_counter() - wall_start) * 1e3)
        cpu.append((time.process_time() - cpu_start) * 1e3)
        if not jobs:
            raise RuntimeError("A lease found no job")
        lanes |= {job.lane_id for job in jobs}
    store.close()
    wall, cpu = wall[WARM_UP:], cpu[WARM_UP:]
    return {
        "wall_p50": quantile(wall, 0.5),
        "wall_p99": quantile(wall, 0.99),
        "cpu_p50": quantile(cpu, 0.5),
        "cpu_p99": quantile(cpu, 0.99),
        "lanes": len(lanes),
    }


def measure(setup: Setup) -> Outcome:
    """Fill a file with lanes, and lease from it."""
    lanes, count = setup.size(100_000, smoke=5_000), setup.size(1_000, smoke=60)
    fresh(enqueue, setup.folder, path=FILE, count=lanes * JOBS_PER_LANE, groups=lanes)
    answer = fresh(lease, setup.folder, path=FILE, count=count)
    figures = ("wall_p50", "wall_p99", "cpu_p50", "cpu_p99", "lanes")
    return Outcome(
        (
            Check(
                f"lanes: lease among {lanes:,} lanes, p99 in ms",
                answer["wall_p99"],
                Sense.BELOW,
                P99_MS,
            ),
        ),
        (
            Table(
                f"{count:,} leases of up to {LIMIT} jobs among {lanes:,} lanes, each a durable "
                "transaction",
                ("wall p50, ms", "wall p99, ms", "CPU p50, ms", "CPU p99, ms", "lanes served"),
                (tuple(answer[figure] for figure in figures),),
            ),
        ),
    )
