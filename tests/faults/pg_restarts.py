# SPDX-License-Identifier: Apache-2.0
"""Crash the server again and again under runs and producers; then ask the oracle.

The oracle: every accepted job is done, each end left one child and no other, the store is sound,
no run and no producer has ended because of it.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import psycopg

from penstock.errors import StoreUnavailable
from penstock.model.job import JobState, NewJob
from penstock.stores.open import open_store
from penstock.stores.store_future import Reply
from tests.postgres.cluster import Cluster
from tests.processes import REPOSITORY, environment_of_tests, kill_run
from tests.waiting import wait_until

BATCH = 10
BACKLOG = 1_000  # no more jobs are made while so many wait
PAUSE_SECONDS = 0.05
STOP_SECONDS = 60.0
DRAIN_SECONDS = 240.0
CONFIG = """
app = "pg_restart_app.py"
[runtime]
lease_ttl_seconds = 15.0
beat_seconds = 1.0
grace_seconds = 5.0
async_slots = 16
[limits.host]
"*" = 4
"""

T = TypeVar("T")


@dataclass
class Outcome:
    """What a campaign found."""

    restarts: int = 0
    accepted: int = 0
    repeated: int = 0  # calls that raised, and were repeated
    lost: int = 0
    finalised_twice: int = 0
    lost_leases: int = 0  # attempts whose worker was lost
    resume_seconds: list[float] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def sound(self) -> bool:
        return not (self.lost or self.finalised_twice or self.broken)

    def resume(self, share: float) -> float:
        times = sorted(self.resume_seconds) or [0.0]
        return times[min(len(times) - 1, int(share * len(times)))]

    def lines(self) -> list[str]:
        return [
            f"{self.restarts} immediate restarts, {self.accepted} jobs accepted: lost {self.lost}, "
            f"finalised twice {self.finalised_twice}; {self.repeated} calls repeated, "
            f"{self.lost_leases} attempts lost with their worker",
            f"from the server's start to the next end of a job: p50 {self.resume(0.5):.2f} s, "
            f"p99 {self.resume(0.99):.2f} s, worst {self.resume(1.0):.2f} s",
            *(f"BROKEN: {sentence}" for sentence in self.broken),
        ]


class Campaign:
    """Owns runs and producers on a server that is not ours."""

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        *,
        runs: int = 2,
        producers: int = 1,
        popen: type[subprocess.Popen[Any]] = subprocess.Popen,
    ) -> None:
        self.cluster = cluster
        self.folder = folder
        self.url = cluster.create_database("restarts")
        self.outcome = Outcome()
        self._accepted: list[str] = []
        self._stopped = threading.Event()
        self._popen = popen
        self._producers = [
            threading.Thread(target=self._produce, args=(number,)) for number in range(producers)
        ]
        shutil.copy(REPOSITORY / "tests/faults/pg_restart_app.py", folder)
        (folder / "penstock.toml").write_text(CONFIG)
        open_store(self.url).close()
        self._runs = [self._run(number) for number in range(runs)]

    def _run(self, number: int) -> subprocess.Popen[bytes]:
        with (self.folder / f"run-{number}.log").open("wb") as log:
            return self._popen(
                [sys.executable, "-m", "penstock.cli.main", "queue", "run"],
                cwd=self.folder,
                env=environment_of_tests(PENSTOCK_STORE=self.url),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        for producer in self._producers:
            producer.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        for producer in self._producers:
            producer.join()
        for run in self._runs:
            kill_run(run)

    def _produce(self, number: int) -> None:
        """Enqueue a few jobs now and then; a call that raises is repeated, with the same keys."""
        try:
            with contextlib.closing(open_store(self.url)) as store:
                count = 0
                while not self._stopped.wait(PAUSE_SECONDS):
                    if self._insisting(store.stats).states[JobState.QUEUED] > BACKLOG:
                        continue
                    jobs = [_job(f"p{number}-{count + n}", count + n) for n in range(BATCH)]
                    count += BATCH
                    report = self._insisting(partial(store.enqueue, jobs))
                    self._accepted += [*report.created, *report.existing]
        except BaseException as error:
            self.outcome.broken.append(f"A producer ended: {error!r}")
            raise

    def _insisting(self, call: Callable[[], Reply[T]]) -> T:
        while True:
            try:
                return call().result()
            except StoreUnavailable:
                self.outcome.repeated += 1

    def await_work(self) -> None:
        """Return when the runs work."""
        with self.cluster.connect("restarts") as connection:
            wait_until(lambda: _ended(connection) > 0)

    def restart(self) -> None:
        """Crash the server, start it, and see how long it takes until a job ends again."""
        self.cluster.restart_immediate()
        up = time.monotonic()
        self.outcome.restarts += 1
        with self.cluster.connect("restarts") as connection:
            before = _ended(connection)
            wait_until(lambda: _ended(connection) > before)
        self.outcome.resume_seconds.append(time.monotonic() - up)

    def restart_for(self, seconds: float, every_seconds: float, at_least: int = 1) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until or self.outcome.restarts < at_least:
            began = time.monotonic()
            self.restart()
            time.sleep(max(began + every_seconds - time.monotonic(), 0.0))

    def restart_often(self, count: int, seed: int) -> None:
        """Without a rhythm, so that every moment is met."""
        chance = random.Random(seed)
        for _ in range(count):
            self.restart()
            time.sleep(chance.uniform(0.0, 0.8))
            if self.outcome.broken:
                return

    def finish(self) -> Outcome:
        """Let the runs do what is left, stop them, and audit."""
        self._stopped.set()
        for producer in self._producers:
            producer.join(STOP_SECONDS)
        with contextlib.suppress(AssertionError):  # what is missing is told below
            hot = "select count(*) from penstock.hot"
            wait_until(lambda: self.cluster.ask(hot, database="restarts") == 0, DRAIN_SECONDS)
        for number, run in enumerate(self._runs):
            if run.poll() is None:
                run.send_signal(signal.SIGTERM)
            if (code := run.wait(STOP_SECONDS)) != 0:
                self.outcome.broken.append(f"Run {number} ended with code {code}.")
        self._audit()
        return self.outcome

    def _audit(self) -> None:
        outcome = self.outcome
        outcome.accepted = len(self._accepted)
        with contextlib.closing(open_store(self.url)) as store:
            outcome.broken += store.check().result()
        with self.cluster.connect("restarts") as connection:
            ended = connection.execute(
                "select key, row_state from penstock.ended join penstock.jobs on id = job_id"
            ).fetchall()
            (outcome.lost_leases,) = connection.execute(
                "select count(*) from penstock.attempts"
            ).fetchone() or (0,)
        done = {key for key, state in ended if state == 5}
        children = [key.partition("/")[0] for key in done if "/" in key]
        outcome.lost = len(set(self._accepted) - done)
        outcome.finalised_twice = len(children) - len(set(children))
        childless = set(self._accepted) & done - set(children)
        if childless:
            outcome.broken.append(f"{len(childless)} jobs are done without what they did.")
        if len(done) < len(ended):
            outcome.broken.append(f"{len(ended) - len(done)} jobs ended otherwise than done.")
        unknown = {key for key in done if "/" not in key} - set(self._accepted)
        if unknown:
            outcome.broken.append(f"{len(unknown)} jobs are done that nobody has enqueued.")


def _ended(connection: psycopg.Connection[Any]) -> int:
    (count,) = connection.execute("select count(*) from penstock.ended").fetchone() or (0,)
    return int(count)


def _job(key: str, n: int) -> NewJob:
    return NewJob(
        key=key,
        task="work",
        payload=f'{{"n":{n}}}',
        group=f"g{n % 3}",
        limit_keys=(f"host:h{n % 5}",),
    )
