# SPDX-License-Identifier: Apache-2.0
"""Do schedules keep their times, their shares and their cursors, whatever fails?

`make soak-daemon` runs the same for an hour of a thousand partitions, and longer.
"""

from __future__ import annotations

import logging

import pytest

from tests.depth import depth
from tests.simulation.daemon_world import HANGING, INTERVAL_SECONDS, DaemonWorld

TROUBLE_SECONDS, PEACE_SECONDS = 300.0, 320.0  # peace: longer than the longest back-off


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "penstock")


def test_ten_minutes_of_many_partitions_with_failures() -> None:
    world = DaemonWorld(partitions=depth(quick=30, soak=60), seed=3, events_every=6)
    audit = world.run(TROUBLE_SECONDS, PEACE_SECONDS)
    audit.safety()
    audit.events()
    assert audit.fairness() >= 0.99
    assert audit.lateness() < 0.01  # a host that hangs delays no other
    occurrences = (TROUBLE_SECONDS + PEACE_SECONDS) / INTERVAL_SECONDS
    well = [unit.ticks for host, unit in audit.units.items() if host not in {HANGING, *world.ill}]
    assert min(well) >= 0.8 * occurrences
    for host in (HANGING, *world.ill):  # the degraded ones have come back
        unit = audit.units[host]
        assert unit.failed > 0
        assert unit.attempts == 0
        assert unit.deferred_since is None
        assert world.records[host].tries[-1][2]
