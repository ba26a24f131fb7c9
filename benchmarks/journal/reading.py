# SPDX-License-Identifier: Apache-2.0
"""Do the figures of the journal cost the same, however many calls have ended?"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from benchmarks.measuring import Answer, fresh
from benchmarks.postgres.server import new_database
from benchmarks.queue.workload import file_url
from benchmarks.runner import Check, Outcome, Sense, Setup, Table
from penstock import Penstock
from penstock.model.job import JobId, JobState, NewJob, WorkerId
from penstock.model.journal import Answer as CallAnswer
from penstock.model.journal import CallKey, Intent
from penstock.model.lease import ConfiguredCaps, JobEnd, LeaseRequest, WorkerInfo
from penstock.model.spending import Amount
from penstock.stores.protocol import Store

CALLS_EACH = 10
BATCH = 50  # jobs
LOOKS = 50
GROWTH = 2.0  # × what the figures cost with few calls
WORKER = WorkerId("w")


def look(store: str, few: int, many: int) -> Answer:
    """Probe: microseconds of one look at the figures, with few ended calls and with many."""
    app = Penstock("bench", store=store)
    kept = app.store
    kept.register(WorkerInfo(id=WORKER, run_id="r", tasks=("t",)), 3_600.0).result()
    answer: Answer = {}
    made = 0
    for name, calls in (("few", few), ("many", many)):
        while made < calls:
            made += _buy(kept, made)
        _vacuum(store)
        looks = []
        for _ in range(LOOKS):
            began = time.perf_counter()
            figures = kept.call_figures(None).result()
            looks.append(time.perf_counter() - began)
        answer[name] = statistics.median(looks) * 1e6
        if figures.bought != made:
            raise RuntimeError(f"{made} calls were bought, the figures say {figures}")
    app.close()
    return answer


def _vacuum(store: str) -> None:
    """What a burst leaves dead is another question, which the section `postgres` asks."""
    if store.startswith("postgresql:"):
        import psycopg

        with psycopg.connect(store, autocommit=True) as connection:
            connection.execute("vacuum analyze")


def _buy(store: Store, made: int) -> int:
    """A batch of jobs is leased, pays, and is done."""
    names = [f"{made}-{number}" for number in range(BATCH)]
    store.enqueue([NewJob(key=name, task="t", payload="{}", group="g") for name in names]).result()
    request = LeaseRequest(worker=WORKER, tasks=("t",), limit=BATCH, caps=ConfiguredCaps())
    jobs = store.lease(request).result().jobs
    keys = [(job, CallKey(JobId(job.id), str(n), 0)) for job in jobs for n in range(CALLS_EACH)]
    cost = Amount(10, 230)
    store.intend(
        [Intent(key, job.token, "r", "t", "p", "m", cost) for job, key in keys], ()
    ).result()
    store.answered([CallAnswer(key, 200, (), b"x" * 500, cost) for _, key in keys]).result()
    now = time.time_ns() // 1_000
    store.ack(WORKER, [JobEnd(job, JobState.DONE, now, now) for job in jobs]).result()
    return len(keys)


def measure(setup: Setup) -> Outcome:
    """On both stores."""
    few, many = setup.size(4_000, smoke=500), setup.size(200_000, smoke=5_000)
    found = {"SQLite": _on_sqlite(setup.folder, few, many)}
    with new_database(setup.url) as url:
        found["PostgreSQL"] = fresh(look, setup.folder, store=url, few=few, many=many)
    return Outcome(
        tuple(
            Check(
                f"journal on {name}: figures, × with {few:,} calls",
                one["many"] / one["few"],
                Sense.AT_MOST,
                GROWTH,
            )
            for name, one in found.items()
        ),
        (
            Table(
                "One look at the figures of all calls, µs (median)",
                ("store", f"{few:,} ended calls", f"{many:,} ended calls"),
                tuple((name, one["few"], one["many"]) for name, one in found.items()),
            ),
        ),
    )


def _on_sqlite(folder: Path, few: int, many: int) -> Answer:
    return fresh(look, folder, store=file_url("figures.db"), few=few, many=many)
