# SPDX-License-Identifier: Apache-2.0
"""F35: the server restarts again and again. Nothing is lost, nothing is finalised twice."""

from __future__ import annotations

from pathlib import Path

from tests.faults.pg_restarts import Campaign
from tests.forked import Forked
from tests.postgres.cluster import Cluster

SECONDS = 4.5
EVERY_SECONDS = 2.0


def test_f35_nothing_is_lost_or_finalised_twice_when_the_server_crashes_every_two_seconds(
    durable_cluster: Cluster, tmp_path: Path
) -> None:
    """`make soak-pg` does the same for longer, and measures how soon work goes on."""
    with Campaign(durable_cluster, tmp_path, popen=Forked) as campaign:
        campaign.await_work()
        campaign.restart_for(SECONDS, EVERY_SECONDS, at_least=2)
        outcome = campaign.finish()

    assert outcome.sound(), outcome.lines()
    assert outcome.restarts > 1
    assert outcome.accepted > 0
