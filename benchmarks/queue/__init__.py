# SPDX-License-Identifier: Apache-2.0
"""What does the queue itself cost? One scenario per file."""

from benchmarks.queue import (
    backlog,
    contention,
    drain,
    enqueueing,
    fairness,
    finished,
    latency,
    peers,
    pressure,
    processes,
)
from benchmarks.runner import Scenario, Section

SECTION = Section(
    "queue",
    (
        Scenario("drain", drain.measure),
        Scenario("enqueueing", enqueueing.measure),
        Scenario("latency", latency.measure),
        Scenario("finished", finished.measure),
        Scenario("fairness", fairness.measure),
        Scenario("backlog", backlog.measure),
        Scenario("contention", contention.measure),
        Scenario("pressure", pressure.measure),
        Scenario("processes", processes.measure),
        Scenario("peers", peers.measure),
    ),
)

__all__ = ["SECTION"]
