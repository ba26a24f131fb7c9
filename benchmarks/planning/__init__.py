# SPDX-License-Identifier: Apache-2.0
"""What do plans and builds of datasets cost?"""

from benchmarks.planning import building, depth, plans, stored, workflows, writing
from benchmarks.runner import Scenario, Section

SECTION = Section(
    "planning",
    (
        Scenario("plan", plans.measure_plan),
        Scenario("fresh", plans.measure_fresh),
        Scenario("stored", stored.measure),
        Scenario("depth", depth.measure),
        Scenario("writing", writing.measure),
        Scenario("build", building.measure),
        Scenario("workflows", workflows.measure),
    ),
)

__all__ = ["SECTION"]
