# SPDX-License-Identifier: Apache-2.0
"""How long does it take to know what is to be built? The figures of issue 9 about plans."""

from benchmarks.planning import depth, plans, stored
from benchmarks.runner import Scenario, Section

SECTION = Section(
    "planning",
    (
        Scenario("plan", plans.measure_plan),
        Scenario("fresh", plans.measure_fresh),
        Scenario("stored", stored.measure),
        Scenario("depth", depth.measure),
    ),
)

__all__ = ["SECTION"]
