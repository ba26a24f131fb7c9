# SPDX-License-Identifier: Apache-2.0
"""What does the journal add to a call that costs money?"""

from benchmarks.journal import calls, reading
from benchmarks.postgres.server import surroundings
from benchmarks.runner import Scenario, Section

SECTION = Section(
    "journal",
    (
        Scenario("sqlite", calls.on_sqlite),
        Scenario("postgres", calls.on_postgres),
        Scenario("figures", reading.measure),
    ),
    surroundings,
)

__all__ = ["SECTION"]
