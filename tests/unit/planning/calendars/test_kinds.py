# SPDX-License-Identifier: Apache-2.0
"""What is each kind of calendar called, what does it refuse, and which moments has it?"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.calendars import (
    Calendar,
    Cron,
    Custom,
    Daily,
    Every,
    Exchange,
    Hourly,
    Monthly,
    Weekly,
    generate_timestamps,
)
from penstock.errors import UsageError

KINDS: list[tuple[Calendar, str]] = [
    (Every(timedelta(minutes=90)), "every 90 min"),
    (Every(timedelta(days=7), since=date(2024, 1, 5)), "every 7 days from 1970-01-02T00:00:00Z"),
    (Every(timedelta(milliseconds=1500)), "every 1.5 s"),
    (Hourly(5, tz="Asia/Kathmandu"), "hourly :05 Asia/Kathmandu"),
    (Daily("9:30", tz="America/New_York"), "daily 09:30 America/New_York"),
    (Daily("09:30:15"), "daily 09:30:15 UTC"),
    (Weekly("Friday", "17:00"), "weekly friday 17:00 UTC"),
    (Weekly(4, "17:00"), "weekly friday 17:00 UTC"),
    (Monthly(-1), "monthly -1 00:00 UTC"),
    (Cron(" 0  3 * * 1-5", "Europe/Berlin"), "cron 0 3 * * 1-5 Europe/Berlin"),
    (Exchange("XNYS"), "exchange XNYS close"),
]
REFUSED: list[tuple[Callable[..., Any], tuple[object, ...], str]] = [
    (Every, (60,), "takes a timedelta, got 60"),
    (Every, (timedelta(0),), "from 1 millisecond"),
    (Every, (timedelta(days=1), "monday"), "datetime or a date"),
    (Hourly, (60,), "from 0 to 59, got 60"),
    (Hourly, (True,), "from 0 to 59"),
    (Daily, ("24:00",), '"16:00" or "16:00:30", got \'24:00\''),
    (Daily, (16,), "got 16"),
    (Daily, ("16:00", "Europe/Berln"), "nearest known one is 'Europe/Berlin'"),
    (Weekly, ("fryday",), "nearest name is 'friday'"),
    (Weekly, (7,), "0 to 6, got 7"),
    (Monthly, (0,), "-1 .the last. to -31, got 0"),
    (Monthly, (32,), "got 32"),
    (Cron, ("0 3 * *",), "five fields"),
    (Cron, (5,), "five fields"),
    (Exchange, ("",), 'such as "XNYS"'),
    (Exchange, ("XNYS", "noon"), 'at="close" or at="open"'),
    (Custom, ("2024-01-05",), "list of datetimes or dates"),
    (Custom, ([datetime(2024, 1, 5)],), "Timestamp 1 of Custom.*has no time zone"),
    (Custom, ([date(2024, 1, 5), 7],), "Timestamp 2 of Custom is neither"),
    (Custom, ([],), "got none"),
    (Custom, ([date(1, 1, 1)],), "0001-01-03"),
]


@pytest.mark.parametrize(("calendar", "text"), KINDS, ids=lambda value: str(value))
def test_a_calendar_is_its_text(calendar: Calendar, text: str) -> None:
    copied = pickle.loads(pickle.dumps(calendar))

    assert calendar.text == text
    assert repr(calendar) == f"<{text}>"
    assert copied == calendar
    assert len({copied, calendar}) == 1
    with pytest.raises(AttributeError):
        calendar.text = "another"  # type: ignore[misc]


@pytest.mark.parametrize(("kind", "arguments", "sentence"), REFUSED)
def test_what_cannot_be_is_refused_at_once(
    kind: Callable[..., Any], arguments: tuple[object, ...], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        kind(*arguments)


def days(calendar: Calendar, start: date, end: date) -> list[str]:
    return [f"{one:%m-%d %H:%M}" for one in generate_timestamps(calendar, start, end)]


def test_a_month_without_that_day_has_none() -> None:
    year = date(2023, 1, 1), date(2024, 1, 1)

    assert [one[:5] for one in days(Monthly(31), *year)] == [
        *("01-31", "03-31", "05-31", "07-31", "08-31", "10-31", "12-31")
    ]
    assert days(Monthly(-1, "12:00"), *year)[1] == "02-28 12:00"
    assert len(days(Monthly(-29), *year)) == 11
    assert len(days(Monthly(-1), *year)) == 12


def test_weeks_have_one_day() -> None:
    found = days(Weekly("sunday", "08:00"), date(2024, 2, 20), date(2024, 3, 12))

    assert found == ["02-25 08:00", "03-03 08:00", "03-10 08:00"]


def test_an_hour_that_occurs_twice_has_two_and_a_daily_time_in_it_one() -> None:
    night = date(2025, 10, 26), datetime(2025, 10, 26, 4)

    assert len(generate_timestamps(Hourly(tz="Europe/Berlin"), *night)) == 5
    assert len(generate_timestamps(Daily("02:30", tz="Europe/Berlin"), *night)) == 1


def test_a_day_that_does_not_exist_has_its_slice_when_clocks_pass_it() -> None:
    around = date(2011, 12, 29), date(2012, 1, 1)

    assert days(Daily("16:00", tz="Pacific/Apia"), *around) == [
        *("12-29 16:00", "12-31 00:00", "12-31 16:00")
    ]
    assert days(Daily(tz="Pacific/Apia"), *around) == ["12-29 00:00", "12-31 00:00"]
    assert not Daily("16:00", tz="Pacific/Apia").daily
    assert Daily(tz="Pacific/Apia").daily


def test_before_1970_no_date_has_two() -> None:
    manila = Daily("16:00", tz="Asia/Manila")

    found = generate_timestamps(manila, date(1844, 12, 29), date(1845, 1, 3))

    assert manila.daily
    assert [one.date().isoformat() for one in found] == [
        *("1844-12-29", "1844-12-30", "1845-01-01", "1845-01-02")
    ]


@pytest.mark.parametrize(
    ("calendar", "is_daily"),
    [
        (Every(timedelta(hours=24)), True),
        (Every(timedelta(hours=23)), False),
        (Hourly(), False),
        (Daily("23:30", tz="America/Scoresbysund"), False),  # moves to the next day in spring
        (Daily("22:30", tz="America/Scoresbysund"), True),
        (Weekly("saturday", "23:30", tz="America/Scoresbysund"), True),
        (Cron("0 9 * * *"), True),
        (Cron("0 9,10 * * *"), False),
        (Custom([date(2024, 1, 5), datetime(2024, 1, 5, 9, tzinfo=UTC)]), False),
    ],
)
def test_slices_are_called_by_dates_only_if_no_day_has_two(
    calendar: Calendar, is_daily: bool
) -> None:
    assert calendar.daily is is_daily


def test_intervals_are_counted_both_ways() -> None:
    every = Every(timedelta(hours=6), since=datetime(2024, 1, 5, 1, tzinfo=UTC))

    assert days(every, date(2023, 12, 31), date(2024, 1, 1)) == [
        *("12-31 01:00", "12-31 07:00", "12-31 13:00", "12-31 19:00")
    ]
    assert len(every.between(0, 10**15)) == len(list(every.between(0, 10**15)))


def test_listed_moments_are_sorted_and_there_once() -> None:
    berlin = timezone(timedelta(hours=1))
    listed = [date(2024, 4, 2), datetime(2024, 1, 5, 1, tzinfo=berlin), date(2024, 1, 5)]

    custom = Custom(listed)

    assert days(custom, date(2024, 1, 1), date(2025, 1, 1)) == ["01-05 00:00", "04-02 00:00"]
    assert custom == Custom(reversed(listed))
    assert custom != Custom(listed[:2], tz="Europe/Berlin")


@given(
    st.sampled_from([calendar for calendar, _ in KINDS[:-1]]),
    st.integers(-2 * 10**15, 4 * 10**15),
    st.integers(0, 40),
)
def test_looking_back_is_the_end_of_looking_ahead(calendar: Calendar, at: int, count: int) -> None:
    back = list(calendar.before(at, count))

    assert len(back) == count
    if back:
        assert list(calendar.between(back[0], at + 1)) == back
