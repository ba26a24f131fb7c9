# SPDX-License-Identifier: Apache-2.0
"""How well and how fast are requests admitted? One scenario per file."""

from benchmarks.admission import curves, nginx, quality, random_worlds, speed, transport
from benchmarks.runner import Scenario, Section

SECTION = Section(
    "admission",
    (
        Scenario("quality", quality.measure),
        Scenario("worlds", random_worlds.measure),
        Scenario("curves", curves.measure),
        Scenario("nginx", nginx.measure, in_smoke=False),
        Scenario("speed", speed.measure),
        Scenario("transport", transport.measure),
    ),
)

__all__ = ["SECTION"]
