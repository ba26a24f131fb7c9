# SPDX-License-Identifier: Apache-2.0
"""kill -9 while a table is made costs no more than the calls in flight, and changes no byte."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.table_campaign import TableCampaign

pytestmark = pytest.mark.faults


def judge(campaign: TableCampaign, kills: int, deaths: int) -> None:
    outcome = campaign.run(kills, deaths)
    assert not outcome.broken, "\n".join(outcome.lines())
    assert outcome.kills.total() + outcome.missed >= kills + deaths - 1
    assert outcome.made
    assert outcome.made + outcome.dropped == campaign.outcome.rows


def test_five_kills_of_a_table_buy_nothing_again_but_what_was_in_flight(tmp_path: Path) -> None:
    """`make soak-tables` does the same for longer."""
    judge(TableCampaign(tmp_path, seed=11, rows=40), kills=3, deaths=2)


@pytest.mark.integration
def test_kills_of_a_table_on_a_server_buy_nothing_again_but_what_was_in_flight(
    fresh_postgres: Callable[[], str], tmp_path: Path
) -> None:
    judge(TableCampaign(tmp_path, fresh_postgres(), seed=12, rows=20), kills=1, deaths=1)
