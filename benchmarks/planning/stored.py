# SPDX-License-Identifier: Apache-2.0
"""How long does a plan of nothing take on a real file, where a million slices are committed?"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import apsw

from benchmarks.measuring import Answer, fresh, pick, stopwatch
from benchmarks.planning.market import DAY, everything, market
from benchmarks.runner import Check, Outcome, Sense, Setup, Table
from penstock.model.dataset import SliceMarks
from penstock.planning.build_plan import plan_build
from penstock.planning.graph import levels_of
from penstock.stores.sqlite.store import SqliteStore

SECONDS = 5.0  # the bound
FILE = "slices.db"
DOCUMENT = '{"at":0,"path":"d0/x/part-0.parquet","kind":"parquet","rows":1,"bytes":1,"checksum":""}'


def measure(setup: Setup) -> Outcome:
    """As many datasets as a large plan has, and few with very many slices."""
    shapes = ((setup.size(1_000, 100), setup.size(1_000, 200)), (2, setup.size(500_000, 10_000)))
    rows, answers = [], []
    for number, (datasets, days) in enumerate(shapes):
        folder = setup.folder / f"shape-{number}"
        folder.mkdir()
        fresh(fill_probe, folder, datasets=datasets, days=days)
        answer = fresh(stored_probe, folder, datasets=datasets, days=days)
        answers.append(answer)
        what = f"{datasets:,} × {days:,}"
        figures = (answer[name] for name in ("slices", "wall", "reading", "cpu", "peak_mib"))
        rows.append((what, *figures))
    columns = (
        "datasets × slices",
        "slices",
        "seconds",
        "of them reading",
        "CPU seconds",
        "peak MiB",
    )
    return Outcome(
        (
            Check(
                "stored: CPU seconds of a plan of nothing",
                max(pick(answers, "cpu")),
                Sense.BELOW,
                SECONDS,
            ),
        ),
        (Table("A plan that finds everything fresh, on SQLite", columns, tuple(rows)),),
    )


def fill_probe(datasets: int, days: int) -> Answer:
    """Write slices that were committed day by day, level by level, straight into the table."""
    store = SqliteStore.open(Path(FILE))
    store.close()
    connection = apsw.Connection(FILE)
    connection.execute("pragma synchronous = off").fetchall()
    with connection:
        connection.executemany(
            "insert into manifests (dataset, at, version, basis, seq, plan_id, level, job_id,"
            f" document) values (?, ?, '1', ?, ?, 'p', ?, 1, '{DOCUMENT}')",
            _rows(datasets, days),
        )
    connection.execute("analyze").fetchall()
    connection.execute("pragma wal_checkpoint(truncate)").fetchall()
    connection.close()
    return {}


def _rows(datasets: int, days: int) -> Iterator[tuple[str, int, int, int, int]]:
    specs = market(datasets)
    levels = levels_of({name: [need.dataset for need in specs[name].needs] for name in specs})
    for day in range(days):
        for number, level in enumerate(levels):
            basis = day * len(levels) + number
            for name in level:
                yield name, day * DAY, basis, basis + 1, number


def stored_probe(datasets: int, days: int) -> Answer:
    """Plan everything; the marks are read from the file."""
    store = SqliteStore.open(Path(FILE))
    specs = market(datasets)
    reading = 0.0

    def marks(name: str, start: int, end: int, version: str) -> SliceMarks:
        nonlocal reading
        with stopwatch() as read:
            found = store.slice_marks(name, start, end, version).result()
        reading += read.wall
        return found

    with stopwatch() as spent:
        plan = plan_build(specs, everything(specs, days), marks, days * DAY)
    store.close()
    if plan.jobs:
        raise RuntimeError(f"{plan.jobs:,} jobs were planned where everything is fresh.")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    slices = sum(counts.fresh for counts in plan.counts.values())
    return {
        "wall": spent.wall,
        "cpu": spent.cpu,
        "reading": reading,
        "slices": slices,
        "peak_mib": peak,
    }
