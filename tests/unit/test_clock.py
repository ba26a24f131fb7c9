# SPDX-License-Identifier: Apache-2.0
"""Durations are read as people write them, in files and in Python."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.clock import DURATION_SECONDS_MAX, Duration, parse_duration, to_seconds
from penstock.errors import UsageError


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
        ("1h30m", 5400.0),
        ("1w2d3h4m5s", 788_645.0),
        ("-1h30m", -5400.0),
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
        "30m1h",
        "1h 30m",
        "1.5h30m",
        "1h30",
        "-",
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


@pytest.mark.parametrize("value", ["90", "5m", "1h30m", 0.5, -5, timedelta(days=400), float("inf")])
def test_python_takes_what_files_take_and_leaves_bounds_to_who_asks(value: Duration) -> None:
    try:
        expected = parse_duration(value)
    except ValueError:
        expected = float("inf")
    assert to_seconds(value) == expected


@pytest.mark.parametrize("value", ["soon", "", True, None, 10**400])
def test_python_is_told_what_a_duration_is(value: Any) -> None:
    with pytest.raises(UsageError, match='a timedelta, or a text such as "90s", "5m" or "1h30m"'):
        to_seconds(value)
