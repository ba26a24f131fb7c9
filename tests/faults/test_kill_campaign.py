# SPDX-License-Identifier: Apache-2.0
"""kill -9 at random moments and at failpoints loses nothing and finalises nothing twice."""

from __future__ import annotations

from pathlib import Path

from tests.faults.kill_campaign import Campaign
from tests.forked import Forked

CYCLES = 15  # `make soak-kill` goes through a thousand


def test_kill_campaign_loses_nothing_and_finalises_nothing_twice(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path, seed=1, popen=Forked)

    for _ in range(CYCLES):
        campaign.cycle()
    outcome = campaign.finish()

    assert outcome.sound(), "\n".join(outcome.lines())
    assert outcome.kill_count >= CYCLES // 2
    assert outcome.jobs >= CYCLES * campaign.jobs_per_cycle
