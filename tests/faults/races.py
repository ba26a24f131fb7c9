# SPDX-License-Identifier: Apache-2.0
"""Who wins when two connections want the same lease at the same moment?

A test runs some rounds, `make soak-races` ten thousand.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from penstock.model.job import JobState, LeasedJob, NewJob, WorkerId
from penstock.model.lease import ConfiguredCaps, JobEnd, LeaseRequest, Verdict, WorkerInfo
from penstock.stores.protocol import Store
from penstock.stores.sqlite.store import SqliteStore
from penstock.testing import ManualClock

CAPS = ConfiguredCaps()
PAUSE_SECONDS_MAX = 0.001  # before a lease expires; an acknowledgement takes a part of it


def together(count: int, act: Callable[[int], None]) -> None:
    """Run something in threads that start at one moment; the first error is raised here."""
    barrier = threading.Barrier(count)
    errors: list[BaseException] = []

    def run(number: int) -> None:
        barrier.wait()
        try:
            act(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def put(store: Store, *keys: str) -> None:
    store.enqueue([NewJob(key=key, task="t", payload="{}", group="g") for key in keys]).result()


def register(store: Store, name: str, ttl: float = 60.0) -> WorkerId:
    worker = WorkerId(name)
    store.register(WorkerInfo(id=worker, run_id="run", tasks=("t",)), ttl).result()
    return worker


def take(store: Store, worker: WorkerId, limit: int = 1) -> list[LeasedJob]:
    request = LeaseRequest(worker=worker, tasks=("t",), limit=limit, caps=CAPS)
    return store.lease(request).result().jobs


def done(job: LeasedJob, result: str | None = None) -> JobEnd:
    return JobEnd(job, JobState.DONE, 1, 2, result)


def race_ack_against_sweep(folder: Path, rounds: int) -> Counter[str]:
    """At the instant a lease expires one connection acknowledges, another one sweeps; who won."""
    clock = ManualClock()
    one, two = (
        SqliteStore.open(folder / "s.db", clock=clock, boot_clock=clock, durability="normal")
        for _ in range(2)
    )
    wins: Counter[str] = Counter()
    chance = random.Random(rounds)
    heir = register(two, "heir", ttl=1e9)
    for number in range(rounds):
        key = f"k{number}"
        put(one, key)
        worker = register(one, f"w{number}", ttl=10)
        (job,) = take(one, worker)
        verdicts: list[Verdict] = []
        swept: list[LeasedJob] = []
        clock.advance(9.999999)

        def act(
            who: int,
            worker: WorkerId = worker,
            job: LeasedJob = job,
            verdicts: list[Verdict] = verdicts,
            swept: list[LeasedJob] = swept,
            pause: float = PAUSE_SECONDS_MAX * chance.random(),
        ) -> None:
            if who == 0:
                verdicts.extend(one.ack(worker, [done(job)]).result())
            elif who == 1:
                swept.extend(take(two, heir))
            else:
                time.sleep(pause)
                clock.advance(0.000001)  # the moment of expiry itself

        together(3, act)
        if not swept and verdicts == [Verdict.STALE]:
            swept = take(two, heir)  # the sweep had come before the expiry
        row = two.job(key).result()
        assert row is not None
        if verdicts == [Verdict.ACCEPTED]:
            wins["ack"] += 1
            assert swept == []
            assert row.state is JobState.DONE
        else:
            wins["sweep"] += 1
            assert verdicts == [Verdict.STALE]
            assert [again.token for again in swept] == [job.token + 1]
            assert row.state is JobState.IN_PROGRESS
            assert two.ack(heir, [done(swept[0])]).result() == [Verdict.ACCEPTED]
        outcomes = [attempt.outcome for attempt in two.attempts(key).result()]
        assert outcomes == (["done"] if verdicts == [Verdict.ACCEPTED] else ["lost", "done"])
    assert one.stats().result().states[JobState.DONE] == rounds
    assert one.check().result() == []
    one.close()
    two.close()
    return wins


def race_two_acks(folder: Path, rounds: int) -> None:
    """The same acknowledgement from two connections at once: accepted once, then known."""
    stores = [SqliteStore.open(folder / "s.db", durability="normal") for _ in range(2)]
    put(stores[0], *(f"k{n}" for n in range(rounds)))
    worker = register(stores[0], "w", ttl=1e6)
    for _ in range(rounds):
        (job,) = take(stores[0], worker)
        verdicts: list[Verdict] = []

        def act(number: int, job: LeasedJob = job, verdicts: list[Verdict] = verdicts) -> None:
            verdicts.extend(stores[number].ack(worker, [done(job, '"same"')]).result())

        together(2, act)

        assert sorted(verdicts) == [Verdict.ACCEPTED, Verdict.DUPLICATE]
        assert [a.outcome for a in stores[0].attempts(job.key).result()] == ["done"]
    assert stores[1].stats().result().states[JobState.DONE] == rounds
    assert stores[1].check().result() == []
    for store in stores:
        store.close()
