# SPDX-License-Identifier: Apache-2.0
"""Is a Retry-After header read by its grammar alone? (fault F45)"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.retry.classify import (
    DOUBTED_SECONDS,
    UNREADABLE,
    WAIT_SECONDS_MAX,
    parse_retry_after,
)

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0", 0.0),
        ("1", 1.0),
        ("007", 7.0),
        ("120", 120.0),
        (" \t30 ", 30.0),
        ("901", 901.0),
        ("1.5", 1.5),
        ("86400", WAIT_SECONDS_MAX),
        ("86401", DOUBTED_SECONDS),
        ("99999999999", DOUBTED_SECONDS),
        ("9" * 65_536, DOUBTED_SECONDS),
        ("0" * 65_536 + "5", 5.0),
        ("Sun, 01 Mar 2026 12:00:30 GMT", 30.0),
        ("Sunday, 01-Mar-26 12:00:30 GMT", 30.0),
        ("Sun Mar  1 12:00:30 2026", 30.0),
        ("Sun, 01 Mar 2026 11:59:59 GMT", 0.0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("Sun, 01 Mar 2026 13:00:00 GMT", 3_600.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", DOUBTED_SECONDS),
        ("Sunday, 06-Nov-94 08:49:37 GMT", 0.0),  # 2094 would be over 50 years ahead
        ("Sun, 01 Mar 2026 12:05:60 GMT", 5 * 60 + 59.0),  # a leap second
    ],
)
def test_a_valid_value_is_read_and_believed_up_to_a_day(value: str, expected: float) -> None:
    wait = parse_retry_after([value], NOW)

    assert wait is not None
    assert wait.seconds == expected
    assert bool(wait.doubt) == (expected == DOUBTED_SECONDS)


@pytest.mark.parametrize(
    "value",
    [
        "-5",
        "+5",
        "NaN",
        "nan",
        "inf",
        "-inf",
        "Infinity",
        "1e9",
        "1.",
        ".5",
        "1.5.2",
        "1_000",
        "1,000",
        "0x10",
        "３",
        "١٢",
        "²",
        "5 s",
        "5;",
        "5\n",
        "5\x00",
        "1, 2",
        "soon",
        "Sun, 01 Mar 9999999 12:00:30 GMT",
        "Sun, 01 Mar 0000 12:00:30 GMT",
        "Sun, 30 Feb 2026 12:00:30 GMT",
        "Sun, 01 Mar 2026 24:00:30 GMT",
        "Sun, 01 Mar 2026 12:61:30 GMT",
        "Sun, 01 Mar 2026 12:00:30 UTC",
        "Sun, 01 Mar 2026 12:00:30 +0100",
        "sun, 01 mar 2026 12:00:30 gmt",
        "Sun, 1 Mar 2026 12:00:30 GMT",
        "Sun, ０１ Mar 2026 12:00:30 GMT",
        "Sun, 01 Mar 2026 12:00:30 GMT, Sun, 01 Mar 2026 12:00:40 GMT",
        "2026-03-01T12:00:30Z",
        "x" * 65_536,
        "Sun, " * 20_000,
    ],
)
def test_a_malformed_value_is_a_quarter_of_an_hour_and_told(value: str) -> None:
    assert parse_retry_after([value], NOW) == UNREADABLE


@pytest.mark.parametrize(
    ("values", "expected"),
    [([], None), ([""], None), ([" "], None), (["1", "2"], 2.0), (["5", "5"], 5.0)],
)
def test_of_several_headers_the_longest_wait_counts(
    values: list[str], expected: float | None
) -> None:
    wait = parse_retry_after(values, NOW)

    assert (None if wait is None else wait.seconds) == expected
    assert parse_retry_after([*values, "x"], NOW) == UNREADABLE


@given(st.text() | st.from_regex("[-+0-9eE._ ]{0,12}", fullmatch=True))
@example("1" * 5000)  # int() refuses this many digits
def test_any_text_gives_nothing_or_a_wait_in_bounds(value: str) -> None:
    wait = parse_retry_after([value], NOW)

    assert wait is None or 0.0 <= wait.seconds <= WAIT_SECONDS_MAX
    if not value.strip(" \t").isascii():
        assert wait == UNREADABLE


@given(st.integers(0, 10**30))
def test_every_whole_number_is_read(seconds: int) -> None:
    wait = parse_retry_after([str(seconds)], NOW)

    assert wait is not None
    assert wait.seconds == (seconds if seconds <= WAIT_SECONDS_MAX else DOUBTED_SECONDS)


@given(st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31)), st.integers(-100, 1000))
def test_every_http_date_is_read(moment: datetime, ahead: int) -> None:
    moment = moment.replace(microsecond=0, tzinfo=UTC)
    text = format_datetime(moment, usegmt=True)

    wait = parse_retry_after([text], (moment - timedelta(seconds=0)).timestamp() - ahead)

    assert wait is not None
    assert wait.seconds == max(0.0, float(ahead))
