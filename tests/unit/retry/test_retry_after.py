# SPDX-License-Identifier: Apache-2.0
"""Is a Retry-After header read by its grammar alone? (fault F45)"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.retry.classify import WAIT_SECONDS_MAX, parse_retry_after

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0", 0.0),
        ("1", 1.0),
        ("007", 7.0),
        ("120", 120.0),
        (" \t30 ", 30.0),
        ("900", 900.0),
        ("901", WAIT_SECONDS_MAX),
        ("99999999999", WAIT_SECONDS_MAX),
        ("9" * 65_536, WAIT_SECONDS_MAX),
        ("0" * 65_536 + "5", 5.0),
        ("Sun, 01 Mar 2026 12:00:30 GMT", 30.0),
        ("Sunday, 01-Mar-26 12:00:30 GMT", 30.0),
        ("Sun Mar  1 12:00:30 2026", 30.0),
        ("Sun, 01 Mar 2026 11:59:59 GMT", 0.0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("Sun, 01 Mar 2026 13:00:00 GMT", WAIT_SECONDS_MAX),
        ("Fri, 31 Dec 9999 23:59:59 GMT", WAIT_SECONDS_MAX),
        ("Sunday, 06-Nov-94 08:49:37 GMT", 0.0),  # 2094 would be over 50 years ahead
        ("Sun, 01 Mar 2026 12:05:60 GMT", 5 * 60 + 59.0),  # a leap second
    ],
)
def test_valid_value_is_read_and_clamped(value: str, expected: float) -> None:
    assert parse_retry_after([value], NOW) == expected


@pytest.mark.parametrize(
    "value",
    [
        "",
        " ",
        "-5",
        "+5",
        "NaN",
        "nan",
        "inf",
        "-inf",
        "Infinity",
        "1e9",
        "1.5",
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
def test_malformed_value_is_ignored(value: str) -> None:
    assert parse_retry_after([value], NOW) is None


@pytest.mark.parametrize("values", [[], ["1", "2"], ["5", "5"], ["5", "x"]])
def test_anything_but_one_header_is_ignored(values: list[str]) -> None:
    assert parse_retry_after(values, NOW) is None


@given(st.text() | st.from_regex("[-+0-9eE._ ]{0,12}", fullmatch=True))
@example("1" * 5000)  # int() refuses this many digits
def test_any_text_gives_none_or_a_wait_in_bounds(value: str) -> None:
    wait = parse_retry_after([value], NOW)

    assert wait is None or 0.0 <= wait <= WAIT_SECONDS_MAX
    if wait is not None and not value.strip(" \t").isascii():
        pytest.fail("a value outside ASCII was accepted")


@given(st.integers(0, 10**30))
def test_every_whole_number_is_read(seconds: int) -> None:
    assert parse_retry_after([str(seconds)], NOW) == min(float(seconds), WAIT_SECONDS_MAX)


@given(st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31)), st.integers(-100, 1000))
def test_every_http_date_is_read(moment: datetime, ahead: int) -> None:
    moment = moment.replace(microsecond=0, tzinfo=UTC)
    text = format_datetime(moment, usegmt=True)

    wait = parse_retry_after([text], (moment - timedelta(seconds=0)).timestamp() - ahead)

    assert wait == min(max(0.0, float(ahead)), WAIT_SECONDS_MAX)
