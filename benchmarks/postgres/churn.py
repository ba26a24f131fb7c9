# SPDX-License-Identifier: Apache-2.0
"""Does the queue stay small and fast while a million jobs pass through it, and afterwards?

A producer keeps a bounded backlog before one worker. A quarter of the jobs passes first; after a
vacuum the hot tables have the size that they need. Then all the others pass: rate and size must
stay. At last new jobs are drained in this database and in an empty one, in turn.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measuring import (
    MEMORY,
    Answer,
    Running,
    fresh,
    interleaved,
    paired_ratio,
    pick,
    running,
)
from benchmarks.peers.marks import Marks
from benchmarks.postgres.server import new_database, on_new_database, rounds_of
from benchmarks.postgres.sizes import TableSize, hot_mib, table_sizes, vacuum
from benchmarks.postgres.workload import marking_app, produce, unfinished
from benchmarks.queue.drain import drain
from benchmarks.report import SPREAD_COLUMNS, spread
from benchmarks.runner import Cell, Check, Outcome, Sense, Setup, Table

CHUNKS_WAITING = 4  # at most; the producer puts jobs in chunks
SLICES = 12  # of the rate; a third of them begins, a third ends
SAMPLE_SECONDS = 0.5
PASS_SECONDS = 1_200.0  # a pass that takes longer has failed
SMALL_MIB = 8.0  # hot tables that are smaller than this may grow to it
SHOWN_MIB = 1.0  # smaller tables are shown only if they are hot
GROWTH = 1.5  # × the size before, or SMALL_MIB


@dataclass(frozen=True, slots=True)
class Passed:
    """What was seen while jobs passed through."""

    slice_rates: tuple[float, ...]  # jobs/s
    hot_mib: tuple[float, ...]  # samples
    after: list[TableSize]  # when vacuumed

    @property
    def flatness(self) -> float:
        """The rate of the last third, × that of the first."""
        third = len(self.slice_rates) // 3
        return _mean_rate(self.slice_rates[-third:]) / _mean_rate(self.slice_rates[:third])


def _mean_rate(rates: Sequence[float]) -> float:
    """The rate over slices with the same number of jobs each."""
    return len(rates) / sum(1 / rate for rate in rates)


def slice_rates(begun: Sequence[float], slices: int = SLICES) -> tuple[float, ...]:
    """How fast did jobs begin, in each slice of as many jobs?"""
    ordered = sorted(begun)
    size = (len(ordered) - 1) // slices
    return tuple(
        size / (ordered[(number + 1) * size] - ordered[number * size]) for number in range(slices)
    )


def work(url: str, marks: str) -> Answer:
    """Probe: a worker that runs until it is asked to end."""
    app, _ = marking_app(url, marks)
    done = app.run().done
    app.close()
    return {"done": done}


class _Queue:
    """One database with a worker, through which jobs pass."""

    def __init__(self, folder: Path, url: str, marks: str, worker: Running) -> None:
        self._folder = folder
        self._url = url
        self._marks = marks
        self._worker = worker
        self._app, _ = marking_app(url, marks)

    def let_pass(self, first: int, total: int, chunk: int) -> Passed:
        """Have jobs `first` to `first` + `total` - 1 produced and done; then vacuum."""
        samples: list[float] = []
        with running(
            produce,
            self._folder,
            url=self._url,
            marks=self._marks,
            first=first,
            total=total,
            chunk=chunk,
            backlog=CHUNKS_WAITING * chunk,
        ) as producer:
            for _ in self._moments():
                samples.append(hot_mib(table_sizes(self._url)))
                if not producer.alive and not unfinished(self._app):
                    break
            producer.finish()
        begun = Marks(self._marks).times()[first : first + total]
        vacuum(self._url)
        return Passed(slice_rates(begun), tuple(samples), table_sizes(self._url))

    def _moments(self) -> Iterator[None]:
        until = time.monotonic() + PASS_SECONDS
        while time.monotonic() < until:
            self._worker.check_alive()
            yield
            time.sleep(SAMPLE_SECONDS)
        raise TimeoutError(f"The jobs did not pass within {PASS_SECONDS:g} s.")

    def close(self) -> None:
        self._app.close()


@contextlib.contextmanager
def _open_queue(folder: Path, url: str, total: int) -> Iterator[_Queue]:
    with tempfile.TemporaryDirectory(dir=MEMORY) as memory:
        marks = str(Path(memory, "marks"))
        Marks.create(marks, total).close()
        with running(work, folder, url=url, marks=marks) as worker:
            queue = _Queue(folder, url, marks, worker)
            try:
                yield queue
            finally:
                queue.close()
            worker.stop()


def measure(setup: Setup) -> Outcome:
    """Let the jobs pass, then drain some more."""
    total, chunk = setup.size(1_000_000, smoke=6_000), setup.size(5_000, smoke=500)
    warm_up = total // 4
    with new_database(setup.url) as url:
        with _open_queue(setup.folder, url, warm_up + total) as queue:
            before = queue.let_pass(0, warm_up, chunk)
            passed = queue.let_pass(warm_up, total, chunk)
        afterwards = _drain_afterwards(setup, url, warm_up + total)
    return Outcome.joined(
        (to_outcome(before, passed, warm_up, total, CHUNKS_WAITING * chunk), afterwards)
    )


def to_outcome(before: Passed, passed: Passed, warm_up: int, total: int, backlog: int) -> Outcome:
    """The checks and tables of both passes."""
    size_before, size_after = hot_mib(before.after), hot_mib(passed.after)
    return Outcome(
        (
            Check(
                "churn: rate of the last third, × the first",
                passed.flatness,
                Sense.AT_LEAST,
                0.9,
            ),
            Check(
                f"churn: hot tables and indexes afterwards, × before (or {SMALL_MIB:g} MiB)",
                size_after / max(size_before, SMALL_MIB),
                Sense.AT_MOST,
                GROWTH,
                timing=False,
            ),
        ),
        (
            Table(
                f"{total:,} jobs through the queue after {warm_up:,}, at most {backlog:,} waiting",
                SPREAD_COLUMNS,
                (
                    spread("rate, in slices", "jobs/s", passed.slice_rates),
                    spread("hot tables and indexes, samples", "MiB", passed.hot_mib),
                ),
            ),
            Table(
                "Sizes with indexes, each time after a vacuum",
                ("table", "kind", f"after {warm_up:,} jobs, MiB", f"after {total:,} more, MiB"),
                tuple(_sizes(before.after, passed.after)),
            ),
        ),
    )


def _sizes(before: list[TableSize], after: list[TableSize]) -> Iterator[tuple[Cell, ...]]:
    earlier = {table.name: table.mib for table in before}
    for table in sorted(after, key=lambda table: -table.mib):
        if table.hot or table.mib >= SHOWN_MIB:
            kind = "hot" if table.hot else "history"
            yield (table.name, kind, earlier.get(table.name, 0.0), table.mib)


def _drain_afterwards(setup: Setup, full: str, finished: int) -> Outcome:
    """Drain new jobs in an empty database and in the one that has seen many end."""
    total = setup.size(20_000, smoke=1_000)
    rounds = iter(range(rounds_of(setup)))

    def on_full() -> Answer:
        # The database is used in every round, so each has keys of its own.
        first = next(rounds) * total
        return fresh(drain, setup.folder, url=full, total=total, first=first)

    answers = interleaved(
        rounds_of(setup),
        {
            "empty": on_new_database(
                setup.url, lambda url: fresh(drain, setup.folder, url=url, total=total)
            ),
            "full": on_full,
        },
    )
    figures = (("rate", "rate", "jobs/s"), ("enqueue_rate", "enqueue_many", "jobs/s"))
    table = Table(
        f"Drain of {total:,} jobs in an empty database, and in one with {finished:,} finished jobs",
        SPREAD_COLUMNS,
        tuple(
            spread(f"{name} database: {what}", unit, pick(runs, figure))
            for figure, what, unit in figures
            for name, runs in answers.items()
        ),
    )
    ratio = paired_ratio(pick(answers["full"], "rate"), pick(answers["empty"], "rate"))
    check = Check("churn: rate with all jobs finished, × empty", ratio, Sense.AT_LEAST, 0.9)
    return Outcome((check,), (table,))
