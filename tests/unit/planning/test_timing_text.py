# SPDX-License-Identifier: Apache-2.0
"""Is a timing the same after it was written down?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.planning.timing import cron, interval, parse_timing


@given(st.floats(0.001, 1e8))  # three years: 15 digits have their microseconds
def test_an_interval_is_read_from_its_text(seconds: float) -> None:
    written = interval(seconds)

    read = parse_timing(written.text)

    assert read.text == written.text
    assert read.after(7, 10**15) == written.after(7, 10**15)


def test_a_cron_expression_is_read_with_its_place() -> None:
    written = cron("30 2 * * 1-5", "Europe/Berlin")

    assert parse_timing(written.text).text == written.text


@pytest.mark.parametrize("text", ["", "every", "every ten s", "cron 1 2", "weekly", "every nan s"])
def test_whatever_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_timing(text)
