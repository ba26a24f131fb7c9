# SPDX-License-Identifier: Apache-2.0
"""Do eight processes get along on one file?"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from benchmarks.measuring import Answer, fresh, quantile, ready_and_wait, running
from benchmarks.queue.workload import audit
from benchmarks.runner import Check, Outcome, Sense, Setup, Table
from penstock.model.job import JobState, LeasedJob, NewJob, WorkerId
from penstock.model.lease import ConfiguredCaps, JobEnd, LeaseRequest, Verdict, WorkerInfo
from penstock.stores.sqlite.store import SqliteStore
from penstock.stores.store_future import Reply

PROCESSES = 8
BATCH = 10  # jobs that one call adds, leases or ends
TTL_SECONDS = 60.0
FILE = "shared.db"

P = ParamSpec("P")
T = TypeVar("T")


class _Caller:
    """Times every call of one process and keeps the errors that reach it."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self.errors: list[str] = []

    def call(self, ask: Callable[P, Reply[T]], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """The answer; None if there was an error."""
        start = time.perf_counter()
        try:
            return ask(*args, **kwargs).result()
        except Exception as error:
            self.errors.append(f"{type(error).__name__}: {error}")
            return None
        finally:
            self.waits.append(time.perf_counter() - start)


def contend(path: str, name: str, seconds: float) -> Answer:
    """Probe: add, lease and end jobs as fast as it goes."""
    store = SqliteStore.open(Path(path))
    worker = WorkerId(name)
    caller = _Caller()
    info = WorkerInfo(id=worker, run_id="bench", tasks=("noop",))
    caller.call(store.register, info, TTL_SECONDS)
    request = LeaseRequest(worker=worker, tasks=("noop",), limit=BATCH, caps=ConfiguredCaps())
    ready_and_wait()
    until = time.monotonic() + seconds
    turns = done = 0
    while time.monotonic() < until:
        caller.call(store.enqueue, _new_jobs(name, turns))
        batch = caller.call(store.lease, request)
        if batch is not None and batch.jobs:
            verdicts = caller.call(store.ack, worker, _ends(batch.jobs))
            done += (verdicts or []).count(Verdict.ACCEPTED)
        turns += 1
    store.close()
    return {"done": done, "waits": caller.waits, "errors": caller.errors}


def _new_jobs(name: str, turn: int) -> list[NewJob]:
    return [
        NewJob(key=f"{name}-{turn}-{n}", task="noop", payload='{"n":0}', group=name)
        for n in range(BATCH)
    ]


def _ends(jobs: list[LeasedJob]) -> list[JobEnd]:
    now = round(time.time() * 1e6)
    return [JobEnd(job, JobState.DONE, now, now, result="0") for job in jobs]


def measure(setup: Setup) -> Outcome:
    """Let all of them loose at the same moment, then see who did how much and who waited."""
    seconds = setup.size(5, smoke=2)
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(
                running(contend, setup.folder, path=FILE, name=f"w{no}", seconds=seconds)
            )
            for no in range(PROCESSES)
        ]
        for process in processes:
            process.wait_until_ready()
        for process in processes:
            process.go()
        answers = [process.finish() for process in processes]
    problems = fresh(audit, setup.folder, path=FILE)["problems"]
    if problems:
        raise RuntimeError(f"The shared file is not sound: {problems}")
    done = [int(answer["done"]) for answer in answers]
    worst = max(max(answer["waits"]) for answer in answers)
    errors = [error for answer in answers for error in answer["errors"]]
    rows = tuple(
        (
            f"process {no}",
            done[no],
            len(answer["waits"]),
            quantile(answer["waits"], 0.5) * 1e3,
            quantile(answer["waits"], 0.99) * 1e3,
            max(answer["waits"]) * 1e3,
            len(answer["errors"]),
        )
        for no, answer in enumerate(answers)
    )
    columns = ("who", "jobs done", "calls", "p50 ms", "p99 ms", "worst ms", "errors")
    tables = [Table(f"{PROCESSES} processes on one file for {seconds} s", columns, rows)]
    if errors:
        tables.append(
            Table("Errors that reached a caller", ("error",), tuple((e,) for e in errors[:20]))
        )
    return Outcome(
        (
            Check(
                "contention: errors that reach a caller",
                len(errors),
                Sense.AT_MOST,
                0,
                timing=False,
            ),
            Check(
                "contention: work done, min / max",
                min(done) / max(done) if max(done) else 0.0,
                Sense.AT_LEAST,
                0.2,
                timing=False,
            ),
            Check("contention: worst wait of a call, s", worst, Sense.BELOW, 0.5),
        ),
        tuple(tables),
    )
