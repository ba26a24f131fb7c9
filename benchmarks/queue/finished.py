# SPDX-License-Identifier: Apache-2.0
"""Does a file that has seen a million jobs end make the next ones dearer?"""

from __future__ import annotations

from benchmarks.measuring import Answer, fresh, interleaved, paired_ratio, pick
from benchmarks.queue.drain import drain
from benchmarks.queue.workload import file_url, fill_finished
from benchmarks.report import SPREAD_COLUMNS, spread
from benchmarks.runner import Check, Outcome, Sense, Setup, Table

FULL = "full.db"


def measure(setup: Setup) -> Outcome:
    """Drain new jobs on an empty file and on the filled one, in turn."""
    count, total = setup.size(1_000_000, smoke=50_000), setup.size(20_000, smoke=4_000)
    filled = fresh(fill_finished, setup.folder, path=FULL, count=count)["finished"]
    files = (f"{number}.db" for number in range(setup.rounds))
    # The filled file is used in every round, so each has keys of its own.
    firsts = (1_000 + number * total for number in range(setup.rounds))

    def on(file: str, first: int = 0) -> Answer:
        url = file_url(file)
        return fresh(drain, setup.folder, url=url, total=total, first=first, settled=file)

    answers = interleaved(
        setup.rounds,
        {"empty": lambda: on(next(files)), "full": lambda: on(FULL, next(firsts))},
    )
    figures = (
        ("rate", "rate", "jobs/s"),
        ("cpu_us", "CPU per job", "µs"),
        ("enqueue_rate", "enqueue_many", "jobs/s"),
    )
    table = Table(
        f"Drain of {total:,} jobs on an empty file, and on one with {filled:,} finished jobs",
        SPREAD_COLUMNS,
        tuple(
            spread(f"{name} file: {what}", unit, pick(runs, figure))
            for figure, what, unit in figures
            for name, runs in answers.items()
        ),
    )

    def ratio(figure: str) -> float:
        return paired_ratio(pick(answers["full"], figure), pick(answers["empty"], figure))

    return Outcome(
        (
            Check("finished: rate, × empty file", ratio("rate"), Sense.AT_LEAST, 0.9),
            Check("finished: CPU per job, × empty file", ratio("cpu_us"), Sense.AT_MOST, 1.1),
        ),
        (table,),
    )
