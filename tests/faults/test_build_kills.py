# SPDX-License-Identifier: Apache-2.0
"""F03, F06: builds that die: readers see old or new, and the same command goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.build_campaign import BuildCampaign, Death

pytestmark = pytest.mark.faults

#: Some of each kind, each where the one before has come; `make soak-builds` takes all, by chance.
BY_LEVEL = (
    Death("worker", "enqueue.committed", 1, whole=True),  # all jobs are there, the plan is a draft
    Death("worker", "dataset.renamed", 9, whole=True),  # in the middle of the second level
    Death("worker", "dataset.level_committed", 1, whole=True),  # after it
    Death("supervisor", "plan.in_tx", 1, whole=False),  # everything is committed, nobody says so
)
EAGER = (
    Death("worker", "plan.in_tx", 1, whole=True),
    Death("worker", "dataset.staged", 6, whole=True),
    Death("worker", "dataset.part_synced", 2, whole=False),
)
ON_A_SERVER = (
    Death("worker", "dataset.dir_synced", 3, whole=True),
    Death("worker", "ack.in_tx", 2, whole=False),
)


def test_f03_a_build_that_dies_shows_levels_old_or_new_and_is_finished_by_the_same_command(
    tmp_path: Path,
) -> None:
    campaign = BuildCampaign(tmp_path / "campaign", seed=9)
    try:
        campaign.cycle(*BY_LEVEL, eager=False)
        campaign.cycle(*EAGER, eager=True)
    finally:
        broken = campaign.finish()
    assert broken == []
    assert sum(campaign.kills.values()) == len(BY_LEVEL) + len(EAGER)


@pytest.mark.integration
def test_f03_a_build_on_a_server_that_dies_is_finished_by_the_same_command(
    fresh_postgres: Callable[[], str], tmp_path: Path
) -> None:
    campaign = BuildCampaign(tmp_path / "campaign", seed=9, url=fresh_postgres())
    try:
        campaign.cycle(*ON_A_SERVER, eager=False)
    finally:
        broken = campaign.finish()
    assert broken == []
    assert sum(campaign.kills.values()) == len(ON_A_SERVER)
