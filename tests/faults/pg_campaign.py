# SPDX-License-Identifier: Apache-2.0
"""Does a fleet that does everything at once on one PostgreSQL lose, repeat or forget anything?

Several stores, each with a thread that chooses at random. What they may hold is counted by the
clients and in the store; at the end everything is worked off, and the books are compared.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import psycopg

from penstock.errors import EnqueueRefused, LeaseLost
from penstock.model.job import (
    AttemptError,
    Edge,
    EdgeKind,
    ErrorCategory,
    JobState,
    LeasedJob,
    NewJob,
    WorkerId,
)
from penstock.model.lease import (
    ConfiguredCaps,
    EnqueueJobs,
    JobEnd,
    JobFailure,
    JobRef,
    LeaseRequest,
    SetCursor,
    StageManifest,
    Verdict,
    WorkerInfo,
)
from penstock.model.views import FIRST_END
from penstock.retry.policy import is_last
from penstock.stores.postgres.open import open_postgres
from penstock.stores.protocol import Store
from tests.running_plan import run_plan

CAPS = {"one:a": 1, "one:b": 1, "two:a": 2}  # these never change
FLEX = "flex:a"  # this one does
TASKS = ("x", "y")
LIMITS: list[tuple[str, ...]] = [
    (),
    (),
    ("one:a",),
    ("one:b",),
    ("two:a",),
    ("one:a", "two:a"),
    (FLEX,),
]
ERROR = AttemptError(ErrorCategory.OWN, "ValueError", "no")
FOR_EVER = 1e6
SHORT_TTL = 0.2
CALLS_MAX = 20_000


@dataclass
class Books:
    """What the clients know, under one lock."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    created: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    holding: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    recent: deque[str] = field(default_factory=lambda: deque(maxlen=60))
    leases: deque[JobRef] = field(default_factory=lambda: deque(maxlen=60))  # to be revoked
    wrong: list[str] = field(default_factory=list)


def limits_of(key: str) -> tuple[str, ...]:
    return LIMITS[int(key.rpartition("-")[2]) % len(LIMITS)]


class Client:
    """One store and what its thread holds."""

    def __init__(self, url: str, number: int, seed: int, books: Books) -> None:
        self.store: Store = open_postgres(url, durability="normal")
        self.number, self.books = number, books
        self.chance = random.Random(seed * 1000 + number)
        self.worker = self._register(f"w{number}", FOR_EVER)
        self.mine: list[LeasedJob] = []
        self.serial = 0
        self.acts: list[tuple[int, Callable[[], None]]] = [
            (8, self.lease),
            (8, self.finish),
            (4, self.enqueue),
            (1, self.cancel),
            (1, self.revoke),
            (1, self.chore),
            (1, self.die),
            (1, self.change),
        ]

    def _register(self, name: str, ttl: float) -> WorkerId:
        worker = WorkerId(name)
        self.store.register(WorkerInfo(id=worker, run_id="r", tasks=TASKS), ttl).result()
        return worker

    def run(self, until: float, leases: int) -> None:
        weights = [weight for weight, _ in self.acts]
        try:
            while time.monotonic() < until or self.books.calls["lease"] < leases:
                (_, act) = self.chance.choices(self.acts, weights)[0]
                act()
                with self.books.lock:
                    self.books.calls[act.__name__] += 1
        except BaseException as error:
            with self.books.lock:
                self.books.wrong.append(f"client {self.number}: {error!r}")
            raise

    def take(self, worker: WorkerId, limit: int, *, quarantine: bool = False) -> tuple[Any, bool]:
        caps = ConfiguredCaps({**CAPS, "flex:*": 2})
        request = LeaseRequest(
            worker=worker, tasks=TASKS, limit=limit, caps=caps, quarantine=quarantine
        )
        batch = self.store.lease(request).result()
        with self.books.lock:
            for job in batch.jobs:
                self.books.leases.append(JobRef(job.id, job.token))
                for key in limits_of(job.key):
                    self.books.holding[key] += 1
                    if self.books.holding[key] > CAPS.get(key, 1_000):
                        self.books.wrong.append(f"{key} is held {self.books.holding[key]} times")
        return batch.jobs, batch.more

    def put_down(self, job: LeasedJob) -> None:
        """The body has ended; the store learns of it afterwards."""
        with self.books.lock:
            for key in limits_of(job.key):
                self.books.holding[key] -= 1

    def lease(self) -> None:
        if len(self.mine) < 12:
            jobs, _ = self.take(self.worker, self.chance.randint(1, 6))
            self.mine += jobs
        if self.chance.random() < 0.1:
            self.mine += self.take(self.worker, 1, quarantine=True)[0]

    def finish(self) -> None:
        count = min(len(self.mine), self.chance.randint(1, 3))
        jobs = [self.mine.pop(self.chance.randrange(len(self.mine))) for _ in range(count)]
        if not jobs:
            return
        for job in jobs:
            self.put_down(job)
        way = self.chance.randrange(8)
        if way == 0:
            self.store.release(self.worker, [JobRef(job.id, job.token) for job in jobs]).result()
        elif way == 1:
            failures = [self._failure(job) for job in jobs]
            self.store.fail_and_retry(self.worker, failures).result()
        elif way == 2:
            self.end(jobs[:1], JobState.DONE, *self._effects())
            self.end(jobs[1:], JobState.ERROR)
        else:
            self.end(jobs, JobState.DONE)
        refs = [JobRef(job.id, job.token) for job in jobs]
        self.store.release(self.worker, refs).result()  # what was revoked or cancelled is detached

    def end(self, jobs: list[LeasedJob], state: JobState, *effects: Any) -> None:
        now = time.time_ns() // 1000
        error = ERROR if state is JobState.ERROR else None
        ends = [JobEnd(job, state, now, now, "1", error, effects) for job in jobs]
        try:
            verdicts = self.store.ack(self.worker, ends).result()
        except EnqueueRefused:  # a parent of an effect was purged: all of it is refused
            self.store.release(self.worker, [JobRef(job.id, job.token) for job in jobs]).result()
            return
        with self.books.lock:
            for job, verdict in zip(jobs, verdicts, strict=True):
                if verdict is Verdict.ACCEPTED and state is JobState.DONE:
                    self.books.done[job.key] += 1
            if verdicts and verdicts[0] is Verdict.ACCEPTED:
                for effect in effects:
                    if isinstance(effect, EnqueueJobs):
                        self._note(job.key for job in effect.jobs)

    def _note(self, keys: Any) -> None:
        for key in keys:
            self.books.created[key] += 1
            self.books.recent.append(key)

    def _failure(self, job: LeasedJob) -> JobFailure:
        now = time.time_ns() // 1000
        charge = self.chance.random() < 0.5
        return JobFailure(
            JobRef(job.id, job.token),
            job.key,
            job.task,
            ERROR,
            now,
            now,
            self.chance.choice([0.0, 0.0, 0.05]),
            charge,
            charge and is_last(job.attempts, 3),
            detached=self.chance.random() < 0.3,
        )

    def _effects(self) -> list[Any]:
        return [
            EnqueueJobs(tuple(self._batch(2))),
            SetCursor("mark", str(self.serial)),
            StageManifest(
                dataset="d",
                at=self.chance.randint(1, 3),
                version="1",
                basis=0,
                document="{}",
                plan_id="p",
                level=0,
                commit=True,
            ),
        ]

    def _batch(self, most: int) -> list[NewJob]:
        with self.books.lock:
            recent = list(self.books.recent)
        batch: list[NewJob] = []
        for _ in range(self.chance.randint(1, most)):
            self.serial += 1
            key = f"c{self.number}-{self.serial}"
            parents = self.chance.sample(recent, min(len(recent), self.chance.choice([0, 0, 1, 3])))
            kinds = [EdgeKind.SUCCESS, EdgeKind.SUCCESS, EdgeKind.FINISHED]
            edges = tuple(Edge(parent, self.chance.choice(kinds)) for parent in parents)
            batch.append(self._job(key, edges))
            recent.append(key)
        return batch

    def _job(self, key: str, edges: tuple[Edge, ...] = ()) -> NewJob:
        return NewJob(
            key=key,
            task=self.chance.choice("xxy"),
            payload="{}",
            group=self.chance.choice("ghi"),
            limit_keys=limits_of(key),
            priority=self.chance.randint(0, 2),
            delay_seconds=self.chance.choice([0.0, 0.0, 0.0, 0.03]),
            after=edges,
        )

    def enqueue(self) -> None:
        batch = self._batch(5)
        if self.chance.random() < 0.3:  # what somebody else may be enqueueing just now
            other = f"c{1 - self.number % 2}-{self.serial + self.chance.randint(0, 3)}"
            batch.insert(0, self._job(other))
            batch.append(
                self._job(f"c{self.number}-{self.serial + 1}", (Edge(other, EdgeKind.SUCCESS),))
            )
            self.serial += 1
        with suppress(EnqueueRefused):  # a parent was purged meanwhile
            report = self.store.enqueue(batch).result()
            with self.books.lock:
                self._note(report.created)

    def cancel(self) -> None:
        with self.books.lock:
            keys = list(self.books.recent)[:: self.chance.randint(7, 20)]
        self.store.cancel(keys[:3]).result()

    def revoke(self) -> None:
        with self.books.lock:
            ref = self.chance.choice(self.books.leases) if self.books.leases else None
        if ref is not None:
            self.store.revoke(ref, "why").result()

    def chore(self) -> None:
        way = self.chance.randrange(3)
        if way == 0:
            self.store.settle().result()
        elif way == 1:
            self.store.retry_failed(self.chance.choice([None, "x"]), None).result()
        else:
            border = time.time_ns() // 1000 - 1_000_000
            self.store.purge(border, FIRST_END).result()

    def die(self) -> None:
        """A worker takes something and is not heard of again, or is reaped."""
        self.serial += 1
        name = f"d{self.number}-{self.serial}"
        worker = self._register(name, self.chance.choice([SHORT_TTL, FOR_EVER]))
        request = LeaseRequest(worker=worker, tasks=TASKS, limit=3, caps=ConfiguredCaps(CAPS))
        try:  # not counted here: its time may be over before the answer is
            jobs = self.store.lease(request).result().jobs
        except LeaseLost:
            return
        refs = [JobRef(job.id, job.token) for job in jobs]
        if self.chance.random() < 0.5:
            self.store.reap(worker, refs[:1], "killed", 3).result()
        else:
            time.sleep(SHORT_TTL * self.chance.random())
            self.store.beat([self.worker], FOR_EVER).result()
            self.store.retire(worker).result()

    def change(self) -> None:
        way = self.chance.randrange(3)
        if way == 0:
            self.store.set_cap(FLEX, self.chance.choice([None, 0, 1, 3])).result()
        elif way == 1:
            self.store.set_paused(True).result()
            self.store.set_paused(False).result()
        else:
            self.store.stats().result()

    def give_up(self) -> None:
        for job in self.mine:
            self.put_down(job)
        self.end(self.mine, JobState.DONE)
        self.store.release(self.worker, [JobRef(j.id, j.token) for j in self.mine]).result()
        self.mine = []

    def work_off(self) -> int:
        """Alone, until nothing is left; how many calls that took."""
        self.store.set_paused(False).result()
        self.store.set_cap(FLEX, None).result()
        idle = 0
        for call in range(CALLS_MAX):
            jobs, more = self.take(self.worker, 50)
            jobs += self.take(self.worker, 1, quarantine=True)[0]
            self.mine = jobs
            self.give_up()
            idle = 0 if jobs or more else idle + 1
            if idle > 1:
                if not self.store.stats().result().states.get(JobState.QUEUED):
                    return call
                time.sleep(0.02)  # delayed ones, and workers whose time is not over yet
        raise AssertionError("it does not come to an end")


@contextmanager
def _sampling(url: str, books: Books) -> Any:
    """Look again and again whether the store itself lets too many hold a key."""
    ended = threading.Event()

    def look() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            while not ended.wait(0.002):
                rows = connection.execute(
                    "select limit_key, count(*) from penstock.held group by limit_key"
                ).fetchall()
                for key, count in rows:
                    if count > CAPS.get(key, 1_000):
                        with books.lock:
                            books.wrong.append(f"{count} rows hold {key}")

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def run_campaign(
    url: str, *, clients: int, seconds: float, seed: int, leases: int = 0
) -> Counter[str]:
    """Let clients loose, work off what they leave, and compare the books; counts of calls.

    Clients go on after their time until there were so many leases: a machine may be slow.
    """
    first = open_postgres(url)
    run_plan(first)
    first.close()
    books = Books()
    fleet = [Client(url, n, seed, books) for n in range(clients)]
    try:
        with _sampling(url, books):
            until = time.monotonic() + seconds
            threads = [threading.Thread(target=c.run, args=(until, leases)) for c in fleet]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert books.wrong == [], f"seed {seed}: {books.wrong[:5]}"
            for client in fleet:
                client.give_up()
            books.calls["work off"] = fleet[0].work_off()
        _compare(url, fleet[0].store, books, seed)
    finally:
        for client in fleet:
            client.store.close()
    return books.calls


def _compare(url: str, store: Store, books: Books, seed: int) -> None:
    said = f"seed {seed}"
    assert books.wrong == [], f"{said}: {books.wrong[:5]}"
    assert store.check().result() == [], said
    twice = [key for key, count in books.done.items() if count > books.created[key]]
    assert twice == [], f"{said}: done more often than accepted: {twice[:5]}"
    with psycopg.connect(url, autocommit=True) as connection:
        left = {
            name: count
            for name in ("hot", "held", "detached", "settling", "reviving", "revivable")
            if (
                row := connection.execute(
                    f"select count(*) from penstock.{name}".encode()
                ).fetchone()
            )
            and (count := row[0])
        }
        assert left == {}, f"{said}: {left}"
        known = {key for (key,) in connection.execute("select key from penstock.jobs")}
        stats = connection.execute(
            "select deadlocks, xact_commit from pg_stat_database where datname = current_database()"
        ).fetchone()
    assert known <= set(books.created), said
    if stats:
        books.calls["deadlocks"], books.calls["commits"] = stats
