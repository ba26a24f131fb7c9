# SPDX-License-Identifier: Apache-2.0
"""Does each occurrence happen once where two daemons arm and tick the same units?"""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import pytest

from penstock.clock import MICROSECONDS, SystemClock
from penstock.model.job import JobState, LeasedJob, NewJob, WorkerId
from penstock.model.lease import (
    ConfiguredCaps,
    EnqueueJobs,
    JobEnd,
    LeaseRequest,
    Rearm,
    SetCursor,
    Verdict,
    WorkerInfo,
)
from penstock.model.schedule import ArmReport, UnitPlan
from penstock.stores.protocol import Store
from penstock.stores.sqlite.store import SqliteStore
from tests.faults.races import together

TASK = "schedule:poll"
UNITS, TICKS = 20, 200
CAPS = ConfiguredCaps({"host:*": 3})


def now() -> int:
    return round(SystemClock().now() * MICROSECONDS)


def plans(round_: int) -> list[UnitPlan]:
    """The units of a daemon, each time with another timing, and in another group."""
    return [
        UnitPlan(
            key=f"{TASK}:{n}",
            task=TASK,
            payload="{}",
            group=f"{n}-{round_ % 2}",
            partition=str(n),
            limit_keys=(f"host:{n % 4}",) if n % 2 else (),
            timing=f"every {round_} s",
            first_at=now(),
        )
        for n in range(UNITS)
    ]


def opened(kind: str, folder: Path, url: str | None) -> Store:
    if kind == "sqlite":
        return SqliteStore.open(folder / "store.db", durability="normal")
    from penstock.stores.postgres.open import open_postgres

    assert url is not None
    return open_postgres(url, durability="normal")


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_two_daemons_tick_each_occurrence_once(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("empty_store")() if kind == "postgres" else None
    stores = [opened(kind, tmp_path, url) for _ in range(2)]
    ticked: list[tuple[str, int]] = []
    order: list[str] = []
    reports: list[ArmReport] = []
    lock = threading.Lock()

    def tick(store: Store, worker: WorkerId, job: LeasedJob) -> None:
        new = NewJob(key=f"{job.key}@{job.due_at}", task="work", payload="{}", group="g")
        at = max(job.due_at + 1, now())
        effects = (SetCursor(job.key, str(job.due_at)), EnqueueJobs((new,)), Rearm(at))
        end = JobEnd(job, JobState.DONE, now(), now(), effects=effects)
        (verdict,) = store.ack(worker, [end]).result(60)
        if verdict is Verdict.ACCEPTED:
            with lock:
                ticked.append((job.key, job.due_at))
        else:
            order.append(f"{job.key} was {verdict}")

    def daemon(number: int) -> None:
        store, worker = stores[number], WorkerId(f"w{number}")
        reports.append(store.arm("app", plans(0)).result(60))
        store.register(WorkerInfo(id=worker, run_id="r", tasks=(TASK,)), 600).result(60)
        round_ = number
        while len(ticked) < TICKS:
            request = LeaseRequest(worker=worker, tasks=(TASK,), limit=5, caps=CAPS)
            for job in store.lease(request).result(60).jobs:
                tick(store, worker, job)
            if len(ticked) // 40 > round_:
                round_ += 1
                store.arm("app", plans(round_)).result(60)

    together(2, daemon)

    store = stores[1]
    assert order == []
    assert sum(report.new for report in reports) == UNITS
    assert set(Counter(ticked).values()) == {1}
    views = {view.key: view for view in store.units("app", "", 100).result(60)}
    assert sum(view.ticks for view in views.values()) == len(ticked)
    last: dict[str, int] = {}
    for key, due_at in ticked:
        last[key] = max(last.get(key, 0), due_at)
    assert store.cursors(sorted(views)).result(60) == {key: str(at) for key, at in last.items()}
    assert all(views[key].due_at > at for key, at in last.items())
    assert store.stats().result(60).tasks["work"] == {JobState.QUEUED: len(ticked)}
    assert store.check().result(60) == []
    for one in stores:
        one.close()
