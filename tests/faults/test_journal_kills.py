# SPDX-License-Identifier: Apache-2.0
"""kill -9 at random moments costs no more than the calls that were in flight."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.stores.open import open_store
from tests.faults.journal_campaign import Campaign
from tests.forked import Forked

CALLS = 60
KILLS = 5


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_five_kills_of_sixty_calls_buy_nothing_twice_but_what_was_in_flight(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    """`make soak-journal` does the same for longer."""
    url = f"sqlite:///{tmp_path / 'journal.db'}"
    if kind == "postgres":
        url = request.getfixturevalue("postgres_url")
    campaign = Campaign(
        tmp_path,
        url,
        lambda: open_store(url, folder=tmp_path),
        seed=7,
        calls=CALLS,
        kills=KILLS,
        popen=Forked,
    )

    outcome = campaign.run()

    assert outcome.sound(), "\n".join(outcome.lines())
    assert outcome.kills.total() >= KILLS - 1
    assert outcome.figures.reused > 0
