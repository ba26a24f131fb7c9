# SPDX-License-Identifier: Apache-2.0
"""kill -9 at random moments and at failpoints loses nothing and finalises nothing twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.kill_campaign import Campaign
from tests.forked import Forked

CYCLES = 15  # twice: the 30-cycle version of `make soak-kill`


@pytest.mark.parametrize("seed", [1, 2])
def test_kill_campaign_loses_nothing_and_finalises_nothing_twice(tmp_path: Path, seed: int) -> None:
    campaign = Campaign(tmp_path, seed, popen=Forked)

    for _ in range(CYCLES):
        campaign.cycle()
    outcome = campaign.finish()

    assert outcome.sound(), "\n".join(outcome.lines())
    assert outcome.kill_count >= CYCLES // 2
    assert outcome.jobs >= CYCLES * campaign.jobs_per_cycle
