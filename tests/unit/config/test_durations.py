# SPDX-License-Identifier: Apache-2.0
"""Are durations read as people write them, and is nothing else?"""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config.settings import DURATION_SECONDS_MAX, parse_duration


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (30, 30.0),
        (0.5, 0.5),
        (-5, -5.0),  # the field says whether that is allowed
        ("90", 90.0),
        ("90s", 90.0),
        ("10m", 600.0),
        ("1h", 3600.0),
        ("1.5h", 5400.0),
        ("30d", 2_592_000.0),
        ("2w", 1_209_600.0),
        (" 10 m ", 600.0),
        ("-5s", -5.0),
        (timedelta(hours=2), 7200.0),
    ],
)
def test_duration_is_read_in_seconds(value: object, expected: float) -> None:
    assert parse_duration(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        "",
        "h",
        "1 hour",
        "1H",
        "1h30m",
        "1e3",
        "1_000",
        "３s",
        "nan",
        "inf",
        "--5",
        ".5",
        "5\n\ns",
        float("nan"),
        float("inf"),
        10**400,
        True,
        None,
        [],
        {},
    ],
)
def test_everything_else_is_refused_with_an_example(value: object) -> None:
    with pytest.raises(ValueError, match='such as "90s", "10m", "1h", "30d"'):
        parse_duration(value)


@pytest.mark.parametrize("value", ["36501d", 1e12, "-36501d"])
def test_more_than_a_century_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="at most 36500d"):
        parse_duration(value)


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        seconds = parse_duration(text)
    except ValueError:
        return
    assert abs(seconds) <= DURATION_SECONDS_MAX
