# SPDX-License-Identifier: Apache-2.0
"""What do ten thousand schedules cost, and are they on time?"""

from benchmarks.daemon import standing, ticking
from benchmarks.runner import Scenario, Section

SECTION = Section(
    "daemon",
    (
        Scenario("start", standing.measure_start),
        Scenario("idle", standing.measure_idle),
        Scenario("ticks", ticking.measure),
    ),
)

__all__ = ["SECTION"]
