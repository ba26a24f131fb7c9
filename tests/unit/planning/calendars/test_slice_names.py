# SPDX-License-Identifier: Apache-2.0
"""Which moment does a text mean, and which slice?"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from penstock.calendars import Daily, Hourly
from penstock.errors import UsageError
from penstock.model.dataset import moment_name
from penstock.planning.calendars.timestamps import find_slice, parse_moment

CAIRO = Daily(tz="Africa/Cairo")
NOW = int(datetime(2024, 4, 25, 23, 30, tzinfo=UTC).timestamp()) * 1_000_000 + 5


def utc(at: int) -> str:
    return datetime.fromtimestamp(at / 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024-01-01", "2023-12-31 22:00:00"),
        ("2024-04-26", "2024-04-25 22:00:00"),  # midnight does not exist: 01:00 is
        ("2024-01-01T12:30", "2024-01-01 10:30:00"),
        ("2024-01-01 12:30:15", "2024-01-01 10:30:15"),
        ("2024-01-01T12:30:00Z", "2024-01-01 12:30:00"),
        ("2024-01-01T12:30:00+05:45", "2024-01-01 06:45:00"),
        ("now", "2024-04-25 23:30:00"),
        ("today", "2024-04-25 22:00:00"),
    ],
)
def test_a_text_means_a_moment(text: str, expected: str) -> None:
    assert utc(parse_moment(text, CAIRO, NOW)) == expected


@pytest.mark.parametrize("text", ["", "tomorrow", "2024-02-31", "20240101", "2024-W01-1", "1e9"])
def test_anything_else_is_no_time(text: str) -> None:
    with pytest.raises(UsageError, match="is not a time; write a date such as"):
        parse_moment(text, CAIRO, NOW)


def test_a_date_names_all_slices_of_its_local_day() -> None:
    hourly = Hourly(tz="America/Havana")

    assert len(find_slice(hourly, "2024-11-03")) == 25
    assert len(find_slice(hourly, "2024-03-10")) == 23
    assert find_slice(Hourly(), "2024-01-05T21:00:00Z") == find_slice(Hourly(), "2024-01-05 21:00")
    assert find_slice(Hourly(), "2024-01-05T21:00:01Z") == ()
    assert find_slice(Daily(tz="Pacific/Apia"), "2011-12-30") == ()


@pytest.mark.parametrize("calendar", [Daily(tz="Asia/Tokyo"), Hourly()])
def test_names_of_the_first_years_are_found(calendar: Daily | Hourly) -> None:
    (at,) = calendar.before(-60_000_000_000_000_000, 1)

    assert find_slice(calendar, moment_name(at, calendar)) == (at,)
