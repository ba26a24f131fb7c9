# SPDX-License-Identifier: Apache-2.0
"""Which jobs are measured on PostgreSQL, and who produces them?"""

from __future__ import annotations

import time

from benchmarks.measuring import Answer
from benchmarks.peers.marks import Marks
from penstock import Context, JobRequest, Penstock
from penstock.definitions.task import Task
from penstock.model.job import JobState

GROUPS = 8
LOOK_SECONDS = 0.005  # between two looks at the backlog

MarkingTask = Task[[int], None]


def marking_app(url: str, marks: str) -> tuple[Penstock, MarkingTask]:
    """An application whose task only marks when it began."""
    app = Penstock("bench", store=url)
    board = Marks(marks)

    @app.task()
    async def mark(ctx: Context, number: int) -> None:
        board.mark(number)

    return app, mark


def enqueue(url: str, marks: str, total: int) -> Answer:
    """Probe: enqueue jobs 0 to `total` - 1."""
    return produce(url, marks, 0, total, total, total)


def produce(url: str, marks: str, first: int, total: int, chunk: int, backlog: int) -> Answer:
    """Probe: enqueue jobs in chunks, while fewer than `backlog` are queued."""
    app, mark = marking_app(url, marks)
    for begin in range(first, first + total, chunk):
        while queued(app) > backlog - chunk:
            time.sleep(LOOK_SECONDS)
        app.enqueue_many(
            _in_a_group(mark, number) for number in range(begin, min(begin + chunk, first + total))
        )
    app.close()
    return {}


def queued(app: Penstock) -> int:
    """How many jobs wait?"""
    return app.store.stats().result().states.get(JobState.QUEUED, 0)


def unfinished(app: Penstock) -> int:
    """How many jobs wait or run?"""
    states = app.store.stats().result().states
    return sum(states.get(state, 0) for state in (JobState.QUEUED, JobState.IN_PROGRESS))


def _in_a_group(mark: MarkingTask, number: int) -> JobRequest[None]:
    return mark.job(number).with_options(group=f"g{number % GROUPS:06}")
