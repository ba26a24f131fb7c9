# SPDX-License-Identifier: Apache-2.0
"""What does the queue cost on PostgreSQL? One scenario per file."""

from benchmarks.postgres import churn, drain, latency, peers, pinned, processes
from benchmarks.postgres.server import surroundings
from benchmarks.runner import Scenario, Section

SECTION = Section(
    "postgres",
    (
        Scenario("drain", drain.measure),
        Scenario("processes", processes.measure),
        Scenario("latency", latency.measure),
        Scenario("churn", churn.measure),
        Scenario("pinned", pinned.measure),
        Scenario("peers", peers.measure, in_smoke=False),
    ),
    surroundings,
)

__all__ = ["SECTION"]
