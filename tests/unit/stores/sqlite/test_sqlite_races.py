# SPDX-License-Identifier: Apache-2.0
"""Who wins when threads and processes meet at one file?"""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

from penstock.model.job import JobState, LeasedJob, NewJob, WorkerId
from penstock.model.lease import (
    ConfiguredCaps,
    JobEnd,
    JobRef,
    LeaseRequest,
    Verdict,
)
from penstock.stores.sqlite.store import SqliteStore
from tests.faults.races import register, together

THREADS = 8
CAPS = ConfiguredCaps({"host:*": 3})


def take(store: SqliteStore, worker: WorkerId, limit: int) -> list[LeasedJob]:
    request = LeaseRequest(worker=worker, tasks=("t",), limit=limit, caps=CAPS)
    return store.lease(request).result().jobs


def done(job: LeasedJob) -> JobEnd:
    return JobEnd(job, JobState.DONE, 1, 2)


def test_no_job_is_leased_twice_by_eight_threads_on_two_stores(tmp_path: Path) -> None:
    stores = [SqliteStore.open(tmp_path / "s.db", durability="normal") for _ in range(2)]
    stores[0].enqueue(
        [
            NewJob(
                key=f"k{n}",
                task="t",
                payload="{}",
                group=f"g{n % 5}",
                limit_keys=(f"host:h{n % 7}",) if n % 2 else (),
            )
            for n in range(600)
        ]
    ).result()
    leased: list[str] = []
    holders: Counter[str] = Counter()
    lock = threading.Lock()
    too_many: list[str] = []

    def work(number: int) -> None:
        store = stores[number % 2]
        worker = register(store, f"w{number}")
        while True:
            jobs = take(store, worker, 7)
            with lock:
                for job in jobs:
                    leased.append(job.key)
                    if job.limited:
                        host = f"h{int(job.key[1:]) % 7}"
                        holders[host] += 1
                        if holders[host] > 3:
                            too_many.append(host)
            if not jobs and store.stats().result().states[JobState.QUEUED] == 0:
                return
            with lock:  # before the store knows, so that nobody is counted twice
                for job in jobs:
                    if job.limited:
                        holders[f"h{int(job.key[1:]) % 7}"] -= 1
            assert store.ack(worker, [done(job) for job in jobs]).result() == (
                [Verdict.ACCEPTED] * len(jobs)
            )

    together(THREADS, work)

    assert Counter(leased) == Counter({f"k{n}": 1 for n in range(600)})
    assert too_many == []
    assert stores[1].stats().result().states[JobState.DONE] == 600
    assert stores[0].check().result() == []
    for store in stores:
        store.close()


def test_one_key_is_created_once_by_eight_threads(tmp_path: Path) -> None:
    stores = [SqliteStore.open(tmp_path / "s.db", durability="normal") for _ in range(2)]
    created: list[str] = []

    def put(number: int) -> None:
        for n in range(40):
            job = NewJob(key=f"k{n}", task="t", payload=f"{number}", group="g")
            created.extend(stores[number % 2].enqueue([job]).result().created)

    together(THREADS, put)

    assert sorted(created) == sorted(f"k{n}" for n in range(40))
    for store in stores:
        store.close()


def test_release_reap_and_acknowledgement_of_one_lease_have_one_winner(tmp_path: Path) -> None:
    stores = [SqliteStore.open(tmp_path / "s.db", durability="normal") for _ in range(3)]
    stores[0].enqueue(
        [NewJob(key=f"k{n}", task="t", payload="{}", group="g") for n in range(60)]
    ).result()

    for number in range(60):
        worker = register(stores[0], f"w{number}")
        (job,) = take(stores[0], worker, 1)
        ref = JobRef(job.id, job.token)
        outcome: dict[int, int] = {}

        def act(
            who: int,
            worker: WorkerId = worker,
            job: LeasedJob = job,
            ref: JobRef = ref,
            outcome: dict[int, int] = outcome,
        ) -> None:
            if who == 0:
                verdicts = stores[0].ack(worker, [done(job)]).result()
                outcome[0] = verdicts.count(Verdict.ACCEPTED)
            elif who == 1:
                outcome[1] = stores[1].release(worker, [ref]).result()
            else:
                outcome[2] = stores[2].reap(worker, [ref], "killed", 3).result().count

        together(3, act)

        assert sum(outcome.values()) == 1, outcome
    assert stores[0].check().result() == []
    for store in stores:
        store.close()
