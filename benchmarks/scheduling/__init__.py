# SPDX-License-Identifier: Apache-2.0
"""What does it cost to choose the next task? One scenario per file."""

from benchmarks.runner import Scenario, Section
from benchmarks.scheduling import (
    blocked,
    cooldown,
    cycle,
    designer,
    downstream,
    graph,
    hosts,
    lanes,
    small_group,
)

SECTION = Section(
    "scheduling",
    (
        Scenario("cycle", cycle.measure),
        Scenario("blocked", blocked.measure),
        Scenario("downstream", downstream.measure),
        Scenario("cooldown", cooldown.measure),
        Scenario("small_group", small_group.measure),
        Scenario("lanes", lanes.measure),
        Scenario("hosts", hosts.measure),
        Scenario("graph", graph.measure),
        Scenario("designer", designer.measure, in_smoke=False),
    ),
)

__all__ = ["SECTION"]
