# SPDX-License-Identifier: Apache-2.0
"""How is a large graph built, run on a real worker, and audited?"""

from __future__ import annotations

import itertools
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock import Context, Penstock
from penstock.definitions.request import to_new_job
from penstock.model.job import AttemptError, ErrorCategory, JobId, JobState, NewJob, WorkerId
from penstock.model.lease import ConfiguredCaps, JobFailure, JobRef, LeaseRequest, WorkerInfo
from penstock.model.views import FIRST_END
from penstock.stores.protocol import JobFilter
from penstock.stores.sqlite.store import SqliteStore
from tests.forked import run_forked
from tests.processes import REPOSITORY, environment_of_tests
from tests.size.holds import measure

BATCH = 1_000  # jobs of one enqueue
PAGE = 1_000


@dataclass(frozen=True)
class Phase:
    """What one step of a scenario cost."""

    name: str
    jobs: int
    seconds: float
    cpu_seconds: float
    holds_ms: tuple[float, float, float]  # CPU of a transaction: p50, p99, most
    text: str

    @property
    def cpu_micros(self) -> float:
        """Of one job."""
        return self.cpu_seconds / max(self.jobs, 1) * 1e6


class Yard:
    """Owns a folder with a store, an app on it, and what its bodies noted."""

    def __init__(self, folder: Path, say: Callable[[str], None] = lambda _: None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "size.db"
        self.store = SqliteStore.open(self.path, durability="normal")
        self.holds = measure(self.store)
        self.app = Penstock("size")
        self.app.use_store(self.store)
        self.starts: list[tuple[str, int]] = []  # key and wall clock (microseconds) of each body
        self.broken_keys: set[str] = set()
        self.phases: dict[str, Phase] = {}
        self._say = say

        @self.app.task(max_attempts=1)
        async def work(ctx: Context) -> None:
            self.starts.append((ctx.job.key, time.time_ns() // 1_000))
            if ctx.job.key in self.broken_keys:
                raise ValueError("broken")

        @self.app.task()
        async def spread(ctx: Context, first: int, count: int) -> None:
            self.starts.append((ctx.job.key, time.time_ns() // 1_000))
            for n in range(first, first + count):
                ctx.enqueue(work.job(), key=f"leaf-{n}")

        self.work, self.spread = work, spread

    def close(self) -> None:
        self.store.close()

    def job(
        self,
        key: str,
        after: Iterable[str] = (),
        *,
        priority: int = 0,
        delay: float = 0.0,
        group: str | None = None,
    ) -> NewJob:
        return to_new_job(
            self.work.job().with_options(
                key=key, after=list(after), priority=priority, delay=delay, group=group
            )
        )

    def enqueue(self, jobs: Iterable[NewJob]) -> int:
        source, count = iter(jobs), 0
        while batch := list(itertools.islice(source, BATCH)):
            count += len(self.store.enqueue(batch).result().created)
        return count

    @contextmanager
    def phase(self, name: str, jobs: int) -> Iterator[None]:
        """Measure what happens inside."""
        self.holds.clear()
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        holds = (self.holds.at(0.5), self.holds.at(0.99), self.holds.at(1.0))
        phase = Phase(name, jobs, wall, cpu, holds, self.holds.text())
        self.phases[name] = phase
        self._say(
            f"  {name}: {jobs:,} jobs in {wall:.1f} s, {jobs / max(wall, 1e-9):,.0f} a second, "
            f"{phase.cpu_micros:.0f} µs of CPU each; {phase.text}"
        )

    def drain(self, slots: int = 64) -> None:
        self.app.run(drain=True, slots=slots)

    def settle(self) -> None:
        while self.store.settle().result().more:
            continue

    def fail_first(self) -> None:
        """Fail the only job that is ready; its dependants are told as far as one slice goes."""
        worker = WorkerId("first")
        self.store.register(WorkerInfo(id=worker, run_id="first", tasks=("work",)), 60).result()
        request = LeaseRequest(worker=worker, tasks=("work",), limit=1, caps=ConfiguredCaps())
        (job,) = self.store.lease(request).result().jobs
        failure = JobFailure(
            ref=JobRef(job.id, job.token),
            key=job.key,
            task=job.task,
            error=AttemptError(ErrorCategory.OWN, "ValueError", "broken"),
            started_at=job.due_at,
            ended_at=job.due_at + 1,
            delay_seconds=0.0,
            charge=True,
            ends=True,
        )
        self.store.fail_and_retry(worker, [failure]).result()
        self.store.retire(worker).result()

    def retry(self) -> int:
        before = self.store.settle().result().failed_total
        settled = self.store.retry_failed(None, None).result()
        while settled.more:
            settled = self.store.settle().result()
        return settled.failed_total - before

    def purge(self) -> int:
        count, mark, more = 0, FIRST_END, True
        while more:
            progress, mark = self.store.purge(2**60, mark).result()
            count, more = count + progress.count, progress.more
        return count

    def due_at(self, key: str) -> int:
        job = self.store.job(key).result()
        assert job is not None
        return job.available_at

    def clock_past(self, seconds: float) -> None:
        """Let so much of real time pass."""
        time.sleep(seconds)

    def states(self) -> dict[JobState, int]:
        """Those that some job is in."""
        return {s: n for s, n in self.store.stats().result().states.items() if n}

    def killed(self, deed: str, point: str, at: int) -> None:
        """Let another process do something and be killed at the n-th passing of a failpoint."""
        process = run_forked(
            [sys.executable, "-m", "tests.size.victim", str(self.path), deed, point, str(at)],
            cwd=REPOSITORY,
            env=environment_of_tests(),
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert process.returncode == -signal.SIGKILL, (process.returncode, process.stderr)

    def audit_done(self, keys: Iterable[str]) -> None:
        """Every job is done, by one body and one attempt."""
        bodies = Counter(key for key, _ in self.starts)
        expected = set(keys)
        assert bodies.keys() == expected
        twice = [key for key, count in bodies.items() if count != 1 + (key in self.broken_keys)]
        assert not twice, twice[:5]
        self.audit_history()
        assert self.states() == {JobState.DONE: len(expected)}
        assert self.store.check().result() == []

    def audit_history(self) -> None:
        last = JobId(0)
        while page := self.store.jobs(JobFilter(), last, PAGE).result():
            for job in page:
                ends = [attempt.outcome for attempt in self.store.attempts(job.key).result()]
                failed = ["error"] if job.key in self.broken_keys else []
                assert ends == [*failed, "done"], (job.key, ends)
            last = page[-1].id
