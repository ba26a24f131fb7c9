# SPDX-License-Identifier: Apache-2.0
"""What does the run do whose power is cut?

One producer and one worker, each with a store object of its own on the same file, driven by a
seed. Every step notes when it was handed over, when it was answered, and what the store then
held. It is a program of its own, because it records everything its process does to files.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import apsw

from penstock.clock import MICROSECONDS, BootClock, SystemClock
from penstock.model.job import (
    AttemptError,
    Edge,
    ErrorCategory,
    JobState,
    LeasedJob,
    NewJob,
    WorkerId,
    finished,
)
from penstock.model.lease import (
    ConfiguredCaps,
    Effect,
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
from penstock.model.plan import PlanRow
from penstock.model.views import FIRST_END
from penstock.retry.policy import is_last
from penstock.stores.sqlite.store import SqliteStore
from penstock.stores.store_future import Reply
from tests.faults.power.log import Acked, Began, Snapshot, Step
from tests.faults.power.recorder import Recorder, RecordingVFS, record_own_calls

DATABASE = "new/folder/store.db"  # the store makes its folders, too
TASKS = ("fetch", "parse")
CAPS = ConfiguredCaps({"host:*": 3})
TTL_SECONDS = 600.0
TROUBLE = AttemptError(ErrorCategory.OWN, "ValueError", "trouble")
_SNAPSHOT = (
    "select 'job ' || key, row_state, token, attempts, crashes, pending, result, finished_at "
    "from job_rows union all "
    "select 'cursor ' || name, value, null, null, null, null, null, null from cursors"
)
DATASETS_SINCE = 9  # this schema
_DATASETS = (
    "select 'slice ' || dataset || '@' || at, document, seq, job_id, null, null, null, null "
    "from manifests union all "
    "select 'plan ' || id, state, null, null, null, null, null, null from plans union all "
    "select 'fact ' || name, value, null, null, null, null, null, null from meta "
    "where name = 'commit_seq' and value <> '0'"
)


def snapshot(connection: apsw.Connection) -> Snapshot:
    """Everything that was promised to somebody, by name."""
    rows: list[tuple[Any, ...]] = connection.execute(_SNAPSHOT).fetchall()
    ((version,),) = connection.execute("pragma user_version").fetchall()
    if int(str(version)) >= DATASETS_SINCE:
        rows += connection.execute(_DATASETS).fetchall()
    return {str(row[0]): list(row[1:]) for row in rows}


class Run:
    """Owns the two stores of a recorded run and what the worker holds."""

    def __init__(
        self,
        path: Path,
        recorder: Recorder,
        seed: int,
        durability: str,
        *,
        boot_clock: BootClock | None = None,
        sizes: Sequence[int] = (10, 10, 300, 3_000),
    ) -> None:
        self._path = path
        self._recorder = recorder
        self._random = Random(seed)
        self._durability = durability
        self._boot_clock = boot_clock
        self._sizes = sizes
        self._clock = SystemClock()
        self._keys: list[str] = []
        self.held: list[LeasedJob] = []
        self._names = 0
        self._open()

    def _open(self) -> None:
        self.producer, self.consumer = (
            SqliteStore.open(self._path, boot_clock=self._boot_clock, durability=self._durability)
            for _ in range(2)
        )
        self._reader = apsw.Connection(str(self._path), flags=apsw.SQLITE_OPEN_READONLY)

    def close(self) -> None:
        self._reader.close()
        self.producer.close()
        self.consumer.close()

    def go(self, steps: int) -> None:
        self.register()
        self.plan()
        choices: list[tuple[int, Callable[[], None]]] = [
            (16, self.enqueue_one),
            (8, self.enqueue_batch),
            (14, self.lease),
            (14, self.acknowledge),
            (6, self.acknowledge_with_effects),
            (6, self.fail),
            (4, self.cancel),
            (3, self.release),
            (3, self.revoke),
            (3, self.retry_failed),
            (2, self.purge),
            (6, self.enqueue_and_acknowledge),
            (2, self.checkpoint),
            (2, self.reap),
            (1, self.reopen),
        ]
        weights, actions = [weight for weight, _ in choices], [action for _, action in choices]
        for _ in range(steps):
            self._random.choices(actions, weights)[0]()
        for action in (self.purge, self.checkpoint, self.reopen, self.enqueue_one):
            action()

    # Steps

    def register(self) -> None:
        self._names += 1
        self.worker = WorkerId(f"w{self._names}")
        info = WorkerInfo(id=self.worker, run_id="r", tasks=TASKS)
        self._step("register", [lambda: self.consumer.register(info, TTL_SECONDS)])

    def plan(self) -> None:
        """A plan runs from now on, so that ends may carry slices."""
        row = PlanRow(
            id="p",
            app="app",
            digest="d",
            run_id="r",
            root="root",
            document="{}",
            levels=1,
            jobs=1,
        )
        store = self.consumer
        self._step("lock", [lambda: store.take_locks(["l"], "r", "mark", TTL_SECONDS, [])])
        self._step("draft", [lambda: store.add_plan(row)])
        self._step("begin", [lambda: store.begin_plan("p", "r")])

    def enqueue_one(self) -> None:
        job = self._new_job()
        self._step("enqueue", [lambda: self.producer.enqueue([job])])
        self._keys.append(job.key)

    def enqueue_batch(self) -> None:
        jobs = [self._new_job() for _ in range(self._random.randint(2, 25))]
        self._step("batch", [lambda: self.producer.enqueue(jobs)])
        self._keys += [job.key for job in jobs]

    def lease(self) -> None:
        request = LeaseRequest(
            worker=self.worker, tasks=TASKS, limit=self._random.randint(1, 12), caps=CAPS
        )
        (batch,) = self._step("lease", [lambda: self.consumer.lease(request)])
        self.held += batch.jobs

    def acknowledge(self) -> None:
        ends = [self._end(job) for job in self._take(self._random.randint(1, 6))]
        if ends:
            self._acknowledged("ack", ends, [])

    def acknowledge_with_effects(self) -> None:
        for job in self._take(1):
            children = tuple(
                self._new_job(after=(Edge(job.key),) if n % 2 else ())
                for n in range(self._random.randint(1, 5))
            )
            effects = (
                EnqueueJobs(children),
                SetCursor(f"c{self._random.randint(0, 3)}", str(self._names)),
                StageManifest(
                    dataset="d",
                    at=job.id,
                    version="1",
                    basis=0,
                    document="{}",
                    plan_id="p",
                    level=0,
                    commit=True,
                ),
            )
            self._acknowledged("ack with effects", [self._end(job, effects)], [])
            self._keys += [child.key for child in children]

    def enqueue_and_acknowledge(self) -> None:
        """Two callers at once: they may share a transaction or not."""
        job = self._new_job()
        ends = [self._end(leased) for leased in self._take(2)]
        if ends:
            self._acknowledged("enqueue and ack", ends, [job])
            self._keys.append(job.key)

    def fail(self) -> None:
        failures = [
            JobFailure(
                ref=JobRef(job.id, job.token),
                key=job.key,
                task=job.task,
                error=TROUBLE,
                started_at=self._now(),
                ended_at=self._now(),
                delay_seconds=0.0,
                charge=True,
                ends=is_last(job.attempts, 2),
            )
            for job in self._take(2)
        ]
        if failures:
            call = lambda: self.consumer.fail_and_retry(self.worker, failures)  # noqa: E731
            (verdicts,) = self._step("fail", [call])
            _all_accepted(verdicts)

    def release(self) -> None:
        """Give back what was not begun, and let go of what was stopped from outside."""
        refs = [JobRef(job.id, job.token) for job in self._take(2)]
        refs += self.consumer.inbox(self.worker).result().detached
        if refs:
            self._step("release", [lambda: self.consumer.release(self.worker, refs)])

    def cancel(self) -> None:
        """Cancel jobs, running ones too, whose leases then are detached."""
        keys = self._random.sample(self._keys, min(2, len(self._keys)))
        if keys:
            self._step("cancel", [lambda: self.producer.cancel(keys)])
            self.held = [job for job in self.held if job.key not in keys]

    def revoke(self) -> None:
        refs = [JobRef(job.id, job.token) for job in self._take(1)]
        if refs:
            self._step("revoke", [lambda: self.producer.revoke(refs[0], "an operator")])

    def retry_failed(self) -> None:
        call = lambda: self.producer.retry_failed(None, None)  # noqa: E731
        self._step("retry failed", [call])

    def purge(self) -> None:
        before = self._now() + MICROSECONDS
        self._step("purge", [lambda: self.producer.purge(before, FIRST_END)])
        left = snapshot(self._reader)
        self._keys = [key for key in self._keys if f"job {key}" in left]

    def checkpoint(self) -> None:
        """Somebody else's tool moves the log into the database."""
        mode = self._random.choice(("passive", "full", "restart", "truncate"))
        connection = apsw.Connection(str(self._path), flags=apsw.SQLITE_OPEN_READWRITE)
        connection.execute(f"pragma wal_checkpoint({mode})").fetchall()
        connection.close()

    def reap(self) -> None:
        started = [JobRef(job.id, job.token) for job in self.held[:1]]
        call = lambda: self.consumer.reap(self.worker, started, "killed", 3)  # noqa: E731
        self._step("reap", [call])
        self.held.clear()
        self.register()

    def reopen(self) -> None:
        """Everybody goes: the last one moves the log and deletes it."""
        self.close()
        self._open()

    # Parts of steps

    def _step(self, what: str, calls: Sequence[Callable[[], Reply[Any]]]) -> list[Any]:
        number = len(self._recorder.log.steps)
        self._recorder.note(Began(number))
        replies = [call() for call in calls]
        answers = [reply.result() for reply in replies]
        self._recorder.note(Acked(number))
        after = snapshot(self._reader)
        self._recorder.log.steps.append(Step(what, len(calls) == 1, after))
        return answers

    def _acknowledged(self, what: str, ends: list[JobEnd], jobs: list[NewJob]) -> None:
        calls: list[Callable[[], Reply[Any]]] = [lambda: self.consumer.ack(self.worker, ends)]
        if jobs:
            calls.append(lambda: self.consumer.enqueue(jobs))
        _all_accepted(self._step(what, calls)[0])

    def _new_job(self, after: tuple[Edge, ...] = ()) -> NewJob:
        random = self._random
        self._names += 1
        if not after and self._keys and random.random() < 0.2:
            key = random.choice(self._keys)
            after = (random.choice((Edge, finished))(key),)
        return NewJob(
            key=f"k{self._names}",
            task=random.choice(TASKS),
            payload='{"text":"' + "x" * random.choice(self._sizes) + '"}',
            group=f"g{random.randint(0, 4)}",
            limit_keys=random.choice(((), (), (f"host:{random.randint(0, 2)}",))),
            priority=random.randint(0, 2),
            delay_seconds=random.choice((0.0, 0.0, 0.0, 0.001, 3600.0)),
            after=after,
        )

    def _end(self, job: LeasedJob, effects: tuple[Effect, ...] = ()) -> JobEnd:
        result = '"' + "r" * self._random.choice(self._sizes) + '"'
        now = self._now()
        return JobEnd(job, JobState.DONE, now, now, result=result, effects=effects)

    def _take(self, count: int) -> list[LeasedJob]:
        self._random.shuffle(self.held)
        taken, self.held = self.held[:count], self.held[count:]
        return taken

    def _now(self) -> int:
        return round(self._clock.now() * MICROSECONDS)


def _all_accepted(verdicts: list[Verdict]) -> None:
    if set(verdicts) != {Verdict.ACCEPTED}:
        raise RuntimeError(f"the run is not what it was meant to be: {verdicts}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("log", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--durability", default="full")
    arguments = parser.parse_args()
    root = arguments.root.resolve()
    recorder = Recorder(root, DATABASE)
    recording = RecordingVFS(recorder)
    record_own_calls(recorder)
    run = Run(root / DATABASE, recorder, arguments.seed, arguments.durability)
    run.go(arguments.steps)
    run.close()
    recording.unregister()
    recorder.log.save(arguments.log)


if __name__ == "__main__":
    main()
