# SPDX-License-Identifier: Apache-2.0
"""How soon does an idle worker begin a job of another process, on PostgreSQL?"""

from __future__ import annotations

from benchmarks.postgres.server import new_database, rounds_of
from benchmarks.queue.latency import SEED, idle_round, to_outcome
from benchmarks.runner import Outcome, Setup


def measure(setup: Setup) -> Outcome:
    """Several times: start a worker, let it be idle, then give it single jobs."""
    count, idle_seconds = setup.size(60, smoke=10), setup.size(5, smoke=1)
    answers = []
    for number in range(rounds_of(setup)):
        with new_database(setup.url) as url:
            answers.append(idle_round(setup.folder, url, SEED + number, count, idle_seconds))
    return to_outcome(answers, count, idle_seconds)
