# SPDX-License-Identifier: Apache-2.0
"""`make soak-flat`: memory, descriptors, threads and files of a long run stay flat (F74).

Two workers under a supervisor, a steady producer, a little of everything, purges on the way, and
a kill of the younger worker now and again; the older one and the supervisor are measured.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from penstock.model.views import FIRST_END
from penstock.stores.sqlite.store import SqliteStore
from tests.faults import leaks
from tests.faults.flat_app import MIX, app
from tests.faults.flatness import Sample, Trend, not_flat, sample
from tests.processes import children_of, environment_of_tests, kill_run

JOBS_PER_SECOND = 150
KILL_EVERY_SECONDS = 45.0
PURGE_EVERY_SECONDS = 5.0
KEPT_SECONDS = 20.0  # how long ended jobs stay
WARM_UP_SHARE = 0.25
WARM_UP_SECONDS = 90.0  # at most: caches, event history and statements have filled up by then
SAMPLES_MIN = 4  # of a process that is judged; a busy machine may take longer for them
WAL_MIB_MAX = 64.0
MIB = 1024 * 1024
CONFIG = """
app = "tests.faults.flat_app:app"
store = "sqlite:///flat.db"
durability = "normal"
[runtime]
async_slots = 16
thread_slots = 4
statistics_seconds = 30
[limits.host]
"*" = 2
"""


@dataclass
class LongRun:
    """Owns the folder, the run in it, its producer and what was measured."""

    folder: Path
    seconds: float
    kill_every_seconds: float = KILL_EVERY_SECONDS
    processes: dict[int, list[Sample]] = field(default_factory=dict)
    files: list[tuple[float, float, float]] = field(default_factory=list)  # at, WAL, database
    broken: list[str] = field(default_factory=list)
    sent: int = 0
    kills: int = 0

    def __post_init__(self) -> None:
        (self.folder / "penstock.toml").write_text(CONFIG)
        self.store = SqliteStore.open(self.folder / "flat.db", durability="normal")
        app.use_store(self.store)
        command = [sys.executable, "-m", "penstock_command", "queue", "run", "--processes", "2"]
        with (self.folder / "run.log").open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=environment_of_tests(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def run(self) -> list[str]:
        """Work for the time given, then stop; everything that grew."""
        try:
            for second in self._seconds():
                self._look(second)
            self._stop()
        finally:
            kill_run(self.process)
        self.broken += self.store.check().result()
        self.store.close()
        return self.broken

    def _seconds(self) -> Iterator[float]:
        """Produce steadily; yields about once a second."""
        self._await_workers()
        began = time.monotonic()
        looked = killed = purged = 0.0
        while (now := time.monotonic() - began) < self.seconds or not self._seen_enough():
            if self.process.poll() is not None:
                self.broken.append(f"the run ended by itself with code {self.process.returncode}")
                return
            self._produce(int(JOBS_PER_SECOND * now) - self.sent)
            if now - purged >= PURGE_EVERY_SECONDS:
                purged = now
                self._purge()
            if now - killed >= self.kill_every_seconds:
                killed = now
                self._kill_the_younger()
            if now - looked >= 1.0:
                looked = now
                yield now
            time.sleep(0.05)

    def _seen_enough(self) -> bool:
        """Whether supervisor and a worker can be judged, and a worker was killed, if one should."""
        seen = all(len(self._steady(samples)) >= SAMPLES_MIN for _, samples in self._measured())
        return seen and (self.kills > 0 or self.kill_every_seconds > self.seconds)

    def _await_workers(self) -> None:
        deadline = time.monotonic() + 60
        while self.store.stats().result().workers < 2 and time.monotonic() < deadline:
            time.sleep(0.02)

    def _purge(self) -> None:
        before, mark, more = round((time.time() - KEPT_SECONDS) * 1e6), FIRST_END, True
        while more:
            progress, mark = self.store.purge(before, mark).result()
            more = progress.more

    def _produce(self, count: int) -> None:
        """Jobs of every kind; some for later, some of those are cancelled."""
        first = self.sent
        app.enqueue_many(
            MIX[n % len(MIX)]
            .job(n=n)
            .with_options(key=f"k{n}", group=f"g{n % 5}", delay=1.0 if n % 9 == 8 else 0.0)
            for n in range(first, first + count)
        )
        self.sent += max(count, 0)
        self.store.cancel([f"k{n}" for n in range(first, self.sent) if n % 18 == 17]).result()

    def _kill_the_younger(self) -> None:
        workers = [pid for pid in self.processes if pid in children_of(self.process.pid)]
        for pid in workers[1:][-1:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.kills += 1

    def _look(self, now: float) -> None:
        for pid in [self.process.pid, *children_of(self.process.pid)]:
            found = sample(pid, now)
            if found is not None:
                self.processes.setdefault(pid, []).append(found)
        sizes = [self.folder / "flat.db-wal", self.folder / "flat.db"]
        wal, database = (path.stat().st_size / MIB if path.exists() else 0.0 for path in sizes)
        self.files.append((now, wal, database))

    def _stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.broken.append("the run did not end within a minute")
            return
        if code != 0:
            self.broken.append(f"the run ended with code {code}")

    def judge(self) -> list[str]:
        """What grew, and the lines of a report."""
        lines = []
        for name, samples in self._measured():
            steady = self._steady(samples)
            if len(steady) < SAMPLES_MIN:
                self.broken.append(f"{name} was not there long enough to be measured")
                continue
            self.broken += not_flat(name, steady)
            trend, last = Trend.of([(s.at, s.rss_mib) for s in steady]), steady[-1]
            lines.append(
                f"{name}: {last.rss_mib:.1f} MiB, {trend.per_hour:+.2f} MiB/h (allowed "
                f"{trend.limit_per_hour:.1f}), {last.descriptors} descriptors, "
                f"{last.threads} threads"
            )
        wal = max(size for _, size, _ in self.files)
        if wal > WAL_MIB_MAX:
            self.broken.append(f"the log grew to {wal:.1f} MiB")
        sizes = [(at, size) for at, _, size in self.files if at >= self._warm]
        middle = len(sizes) // 2
        early = max(size for _, size in sizes[:middle])
        late = max(size for _, size in sizes[middle:])
        if late > 1.5 * early + 4:
            self.broken.append(f"the database grew from {early:.1f} to {late:.1f} MiB")
        lines.append(f"log at most {wal:.1f} MiB; database {early:.1f}, then {late:.1f} MiB")
        lines.append(f"{self.sent:,} jobs in {self.seconds:.0f} s, {self.kills} workers killed")
        return lines

    @property
    def _warm(self) -> float:
        return min(self.seconds * WARM_UP_SHARE, WARM_UP_SECONDS)

    def _steady(self, samples: list[Sample]) -> list[Sample]:
        return [sample for sample in samples if sample.at >= self._warm]

    def _measured(self) -> Iterator[tuple[str, list[Sample]]]:
        """The supervisor, and the worker that lived longest."""
        supervisor = self.process.pid
        yield "supervisor", self.processes.get(supervisor, [])
        others = [samples for pid, samples in self.processes.items() if pid != supervisor]
        yield "worker", max(others, key=len, default=[])


def _leaks(folder: Path) -> list[str]:
    """The same inside one process, with every allocation counted: 20,000 jobs."""
    place = folder / "inside"
    place.mkdir()
    (place / "penstock.toml").write_text('durability = "normal"\n')
    with contextlib.chdir(place):
        inside = leaks.leaky_app("inside")
        try:
            return leaks.leaked(inside, rounds=10, count=2_000)
        finally:
            inside.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="penstock-flat-"))
    print(f"folder {folder}", flush=True)
    long_run = LongRun(folder, arguments.seconds)
    long_run.run()
    print("\n".join(long_run.judge()), flush=True)
    long_run.broken += _leaks(folder)
    for sentence in long_run.broken:
        print(f"BROKEN: {sentence}", flush=True)
    if not long_run.broken and not arguments.keep:
        shutil.rmtree(folder)
    return 1 if long_run.broken else 0


if __name__ == "__main__":
    sys.exit(main())
