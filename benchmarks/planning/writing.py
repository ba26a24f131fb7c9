# SPDX-License-Identifier: Apache-2.0
"""What does a durable slice cost beside the least that could be durable?

The other side is a loop that makes the same Parquet bytes of the same rows and does the same
syncs, by paths, without a checksum, a staging area to sweep or an answer to refusals. A job that
builds many slices syncs them side by side, which the loop cannot.
"""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.measuring import Answer, fresh, interleaved, paired_ratio, pick, stopwatch
from benchmarks.runner import Check, Kind, Outcome, Sense, Setup, Table
from penstock.ids import SystemIds
from penstock.model.dataset import utc_datetime
from penstock.outputs.paths import SliceNames
from penstock.outputs.root import OutputRoot, open_root
from penstock.outputs.write import encode_slices, write_slices

ROWS = 10  # of a slice
BATCH = 100  # slices of a job that builds many
DAY = 86_400_000_000
THREADS = (1, 8)
ROUNDS_MAX = 3  # each takes half a minute
SPEED_MIN = 0.5  # × the loop, as for a whole build
DEARER_MAX = 1.5  # × the loop's CPU
NAMED = SliceNames(dataset="prices", tz="America/New_York", daily=True)


def rows_of(number: int) -> list[dict[str, Any]]:
    """The rows of one slice."""
    return [
        {"symbol": f"S{row}", "close": number + row / 7, "volume": row, "at": utc_datetime(number)}
        for row in range(ROWS)
    ]


def _timed(slices: int, threads: int, step: int, write: Callable[[int], object]) -> Answer:
    """Write all slices, `step` with each call, in so many threads."""
    write(slices)  # imports, and the folders
    with stopwatch() as spent, ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(write, first) for first in range(0, slices, step)]:
            done.result()
    return {"per_second": slices / spent.wall, "cpu_us": spent.cpu / slices * 1e6}


def _write_ours(root: OutputRoot, first: int, count: int) -> None:
    ats = [number * DAY for number in range(first, first + count)]
    if count == 1:
        coming = encode_slices(rows_of(first), ats, NAMED, batch=False)
    else:
        value = {utc_datetime(at): rows_of(at // DAY) for at in ats}
        coming = encode_slices(value, ats, NAMED, batch=True)
    write_slices(root, NAMED, coming, f"{first}:1")


def ours(slices: int, threads: int, batch: int) -> Answer:
    """Probe: our writer."""
    root = open_root(Path.cwd() / "datasets", SystemIds())
    return _timed(slices, threads, batch, lambda first: _write_ours(root, first, batch))


def bare(slices: int, threads: int, batch: int) -> Answer:
    """Probe: the loop; it knows no batches."""
    import pyarrow
    import pyarrow.parquet

    top = Path.cwd() / "bare"
    (top / "staging").mkdir(parents=True)
    (top / "prices").mkdir()

    def sync(path: Path) -> None:
        folder = os.open(path, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)

    def write(number: int) -> None:
        stream = pyarrow.BufferOutputStream()
        table = pyarrow.Table.from_pylist(rows_of(number))
        pyarrow.parquet.write_table(table, stream, compression="zstd", use_dictionary=False)
        staged = top / "staging" / str(number)
        file = os.open(staged, os.O_WRONLY | os.O_CREAT, 0o666)
        os.write(file, stream.getvalue())
        os.fsync(file)
        os.close(file)
        place = top / "prices" / str(number)
        place.mkdir()
        staged.rename(place / "part.parquet")
        sync(place)
        sync(top / "prices")

    return _timed(slices, threads, batch, write)


def measure(setup: Setup) -> Outcome:
    """One slice a job and many slices a job, in one thread and in several, beside the loop."""
    threads = THREADS[-1:] if setup.smoke else THREADS
    return Outcome.joined(_compare(setup, count) for count in threads)


def _compare(setup: Setup, threads: int) -> Outcome:
    slices = setup.size(2_000, smoke=200) // (1 if threads > 1 else 4)
    found = interleaved(
        min(setup.rounds, ROUNDS_MAX),
        {
            "ours": lambda: _fresh(setup, ours, slices, threads, 1),
            "the loop": lambda: _fresh(setup, bare, slices, threads, 1),
            f"ours, {BATCH} a job": lambda: _fresh(setup, ours, slices, threads, BATCH),
        },
    )
    speed = {name: pick(answers, "per_second") for name, answers in found.items()}
    cpu = {name: pick(answers, "cpu_us") for name, answers in found.items()}
    faster = paired_ratio(speed["ours"], speed["the loop"])
    dearer = paired_ratio(cpu["ours"], cpu["the loop"])
    what = f"writing, {threads} thread(s)"
    rows = tuple(
        (name, threads, slices, statistics.median(speed[name]), statistics.median(cpu[name]))
        for name in found
    )
    columns = ("what", "threads", "slices", "a second", "CPU µs a slice")
    return Outcome(
        (
            Check(f"{what}: speed ÷ the loop's", faster, Sense.AT_LEAST, SPEED_MIN),
            Check(f"{what}: CPU ÷ the loop's", dearer, Sense.AT_MOST, DEARER_MAX, Kind.GOAL),
        ),
        (Table(f"Slices written durably in {threads} thread(s)", columns, rows),),
    )


def _fresh(
    setup: Setup, probe: Callable[..., Answer], slices: int, threads: int, batch: int
) -> Answer:
    """Measure in a folder of its own, which is removed."""
    folder = setup.folder / "slices"
    folder.mkdir()
    try:
        return fresh(probe, folder, slices=slices, threads=threads, batch=batch)
    finally:
        shutil.rmtree(folder)
