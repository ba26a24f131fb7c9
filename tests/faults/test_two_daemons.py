# SPDX-License-Identifier: Apache-2.0
"""F09: two daemons on one store: each occurrence happens once, whoever starts or is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.daemon_campaign import DaemonCampaign, race

pytestmark = pytest.mark.faults

RACES = 2  # `make soak-daemons` takes 100
KILLS = 5  # as well


def test_f09_two_daemons_that_start_at_once_tick_each_occurrence_once(tmp_path: Path) -> None:
    for number in range(RACES):
        assert race(tmp_path / f"race-{number}") == []


def test_f09_a_daemon_that_is_killed_is_taken_over_and_nothing_happens_twice(
    tmp_path: Path,
) -> None:
    campaign = DaemonCampaign(tmp_path / "campaign", seed=8)
    try:
        for _ in range(KILLS):
            campaign.cycle()
    finally:
        broken = campaign.finish()
    assert broken == []
    assert sum(campaign.kills.values()) == KILLS
