# SPDX-License-Identifier: Apache-2.0
"""What does it cost to choose the next task? The figures of issue 5, one scenario per file."""

from benchmarks.runner import Scenario, Section
from benchmarks.scheduling import blocked, cycle, designer

SECTION = Section(
    "scheduling",
    (
        Scenario("cycle", cycle.measure),
        Scenario("blocked", blocked.measure),
        Scenario("designer", designer.measure, in_smoke=False),
    ),
)

__all__ = ["SECTION"]
