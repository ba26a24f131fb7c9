# SPDX-License-Identifier: Apache-2.0
"""How are slices of a dataset asked for that is not defined yet?"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from penstock.calendars import exact, latest, lookback, window
from penstock.errors import UsageError
from penstock.model.dataset import Need, Rule


def test_needs_by_name() -> None:
    assert latest("prices") == Need(dataset="prices")
    assert exact("prices").rule is Rule.EXACT
    assert lookback("prices", 20).text == "prices.lookback(20)"
    assert window("prices", timedelta(days=1)).micros == 86_400_000_000


@pytest.mark.parametrize(
    ("refused", "sentence"),
    [
        (lambda: latest("7up"), "cannot be called '7up'"),
        (lambda: exact("a" * 129), "at most 128"),
        (lambda: lookback("prices", 0), "from 1 to 1,000,000, got 0"),
        (lambda: window("prices", timedelta(0)), "a timedelta above 0"),
    ],
)
def test_what_cannot_be_needed_is_refused(refused: Callable[[], Need], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        refused()
