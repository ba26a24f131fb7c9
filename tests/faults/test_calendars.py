# SPDX-License-Identifier: Apache-2.0
"""F60, of datasets: whatever people do to their clocks, each slice is there once.

`make soak-calendar` asks the same of every place and thirty years.
"""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.calendars import Cron, Custom, Daily, Every, Monthly, generate_timestamps
from penstock.errors import UsageError
from tests.faults.calendar_kinds import (
    Kind,
    Steady,
    calendar_differences,
    cron,
    daily,
    hourly,
    kinds_around,
    monthly,
    weekly,
)
from tests.faults.calendar_world import EXPRESSIONS, Window, changing_days, window

PLACES = [
    ("Europe/Berlin", 2025),
    ("Africa/Cairo", 2024),  # midnight does not exist
    ("America/Sao_Paulo", 2018),  # nor here; and 23:00 occurs twice
    ("America/Scoresbysund", 2025),  # the last hour of a day does not exist
    ("Australia/Lord_Howe", 2025),  # half an hour
    ("America/St_Johns", 2008),  # one minute past midnight, an offset of half an hour
    ("Pacific/Apia", 2011),  # a day does not exist
    ("Antarctica/Troll", 2025),  # two hours
]


@cache
def days_of(zone: str, year: int) -> tuple[datetime, ...]:
    return tuple(changing_days(ZoneInfo(zone), year, year))


@cache
def seen_from(zone: str, day: datetime) -> Window:
    return window(ZoneInfo(zone), day)


@pytest.mark.parametrize(("zone", "year"), PLACES)
def test_f60_every_kind_of_calendar_is_as_a_clock_on_the_wall_shows(zone: str, year: int) -> None:
    days = days_of(zone, year)

    assert days
    for day in days:
        assert calendar_differences(zone, seen_from(zone, day), kinds_around(day)) == []


@st.composite
def places_and_kinds(draw: st.DrawFn) -> tuple[str, Window, Kind | Steady]:
    zone, year = draw(
        st.one_of(
            st.sampled_from(PLACES),
            st.tuples(
                st.sampled_from(sorted(available_timezones())), st.integers(2008, 2037)
            ).filter(lambda place: bool(days_of(*place))),
        )
    )
    day = draw(st.sampled_from(days_of(zone, year)))
    near = day + timedelta(days=draw(st.integers(-1, 1)))
    at = time(draw(st.sampled_from([0, 1, 2, 3, 12, 22, 23])), draw(st.integers(0, 59)))
    kinds: st.SearchStrategy[Kind | Steady] = st.sampled_from(
        [
            daily(at),
            hourly(at.minute),
            weekly(near.weekday(), at),
            monthly(near.day, at),
            monthly(-at.minute % 31 - 31, at),
            cron(f"{at.minute} {at.hour} {near.day} * *"),
            cron(f"{at.minute}-59/7 {at.hour},5,23 * {near.month} {near.isoweekday() % 7}"),
            cron(draw(st.sampled_from(EXPRESSIONS))),
            Steady(timedelta(minutes=1 + at.minute), near),
        ]
    )
    return zone, seen_from(zone, day), draw(kinds)


@settings(max_examples=60)
@given(places_and_kinds())
def test_f60_calendars_by_lot(drawn: tuple[str, Window, Kind | Steady]) -> None:
    zone, seen, kind = drawn

    assert calendar_differences(zone, seen, [kind]) == []


def test_f60_a_29th_of_february_is_found_from_far_away() -> None:
    only = Cron("0 12 29 2 *", "Europe/Berlin")
    now = datetime(2103, 3, 1)

    found = generate_timestamps(only, datetime(1896, 1, 1), now)

    assert [one.year for one in found[:3]] == [1896, 1904, 1908]  # 1900 is no leap year
    assert len(found) == 50
    assert len(only.before(int(now.timestamp()) * 1_000_000, 50)) == 50


@pytest.mark.parametrize(
    "calendar", [Daily("23:30", tz="Asia/Tokyo"), Every(timedelta(days=1)), Monthly(31)]
)
@pytest.mark.parametrize(
    ("start", "end"), [(date(1, 1, 1), date(1, 1, 31)), (date(9999, 12, 1), date(9999, 12, 31))]
)
def test_f60_at_the_ends_of_the_calendar_nothing_loops(
    calendar: Daily | Every | Monthly, start: date, end: date
) -> None:
    found = generate_timestamps(calendar, start, end)

    assert len(found) <= 30
    assert found == sorted({*found})
    assert len(calendar.before(10**20, 3)) == 3
    assert len(calendar.before(-(10**20), 3)) == 0


def test_f60_an_empty_range_is_empty_and_a_reversed_one_an_error() -> None:
    day = date(2024, 1, 5)

    assert generate_timestamps(Daily(), day, day) == []
    with pytest.raises(UsageError, match="starts at 2024-01-05, after its end 2024-01-04"):
        generate_timestamps(Daily(), day, date(2024, 1, 4))


def test_f60_calendars_without_a_date_or_a_zone_or_a_length_are_refused() -> None:
    for refused, sentence in (
        (lambda: Cron("0 0 30 2 *"), "matches no date"),
        (lambda: Daily(tz="Europe/Atlantis"), "There is no time zone 'Europe/Atlantis'"),
        (lambda: Every(timedelta()), "from 1 millisecond to 36500 days"),
        (lambda: Custom([]), "got none"),
    ):
        with pytest.raises(UsageError, match=sentence):
            refused()
