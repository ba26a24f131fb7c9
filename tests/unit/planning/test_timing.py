# SPDX-License-Identifier: Apache-2.0
"""When does a schedule tick next, and what is refused when it is defined?"""

from __future__ import annotations

import math
import zoneinfo
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.model.schedule import MISSED_MAX, NextTick
from penstock.planning.timing import END_AT, cron, interval

SECOND = 1_000_000
T0 = 1_700_000_000 * SECOND


def at(text: str, zone: str = "UTC", fold: int = 0) -> int:
    time = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold)
    return int(time.timestamp()) * SECOND


def utc(micros: int) -> str:
    return datetime.fromtimestamp(micros / SECOND, UTC).strftime("%Y-%m-%d %H:%M")


def ticks(expression: str, zone: str, start: str, days: float) -> list[str]:
    """The occurrences after a moment of UTC, in UTC."""
    timing = cron(expression, zone)
    now = at(start)
    end = now + int(timedelta(days=days).total_seconds()) * SECOND
    found = []
    while (now := timing.after(now, now).at) < end:
        found.append(utc(now)[5:])
    return found


# Intervals


def test_an_interval_does_not_drift_and_counts_what_passed() -> None:
    timing = interval(10)

    assert timing.after(T0, T0) == NextTick(T0 + 10 * SECOND, 0)
    assert timing.after(T0, T0 + 9_999_999) == NextTick(T0 + 10 * SECOND, 0)
    assert timing.after(T0, T0 + 10 * SECOND) == NextTick(T0 + 20 * SECOND, 1)
    assert timing.after(T0, T0 + 3_605 * SECOND) == NextTick(T0 + 3_610 * SECOND, 360)


def test_a_clock_that_went_back_moves_no_tick() -> None:
    assert interval(10).after(T0, T0 - 3_600 * SECOND) == NextTick(T0 + 10 * SECOND, 0)
    assert cron("0 * * * *").after(T0, 0) == cron("0 * * * *").after(T0, T0)


@given(st.integers(1_000, 10**12), st.integers(0, 10**16), st.integers(-(10**9), 10**15))
def test_an_interval_is_strictly_later_and_on_its_grid(step: int, due: int, late: int) -> None:
    timing = interval(step / SECOND)
    found = timing.after(due, due + late)

    assert found.at > due
    assert found.at > due + late
    assert found.at - due == (found.missed + 1) * step
    assert found.missed == 0 or found.at - step <= due + late


def test_first_ticks_are_spread_by_how_many_there_are() -> None:
    assert interval(60).first(T0, 0.999, 1) - T0 < 10_000
    assert interval(60).first(T0, 0.5, 1_000) - T0 == 5 * SECOND
    assert interval(60).first(T0, 0.5, 100_000) - T0 == 15 * SECOND
    assert interval(2).first(T0, 0.5, 100_000) - T0 == 1 * SECOND
    assert cron("0 0 * * *").first(T0, 0.9, 9) == cron("0 0 * * *").first(T0, 0.0, 1)


@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf, -math.inf, 1e-9, 1e12])
def test_an_interval_that_cannot_be_is_refused(seconds: float) -> None:
    with pytest.raises(UsageError, match="interval"):
        interval(seconds)


def test_texts_are_canonical() -> None:
    assert interval(10).text == interval(10.0).text == "every 10 s"
    assert interval(0.001).text == "every 0.001 s"
    assert cron("0  3 * *   1-5", "Europe/Berlin").text == "cron 0 3 * * 1-5 Europe/Berlin"


# Cron


def test_a_local_time_that_does_not_exist_moves_to_the_first_that_does() -> None:
    # Berlin, 2025-03-30: 02:00 is 03:00, at 01:00 UTC.
    assert ticks("30 2 * * *", "Europe/Berlin", "2025-03-28 12:00", 3) == [
        "03-29 01:30",
        "03-30 01:00",
        "03-31 00:30",
    ]


def test_several_that_do_not_exist_run_once() -> None:
    assert ticks("*/15 2 * * *", "Europe/Berlin", "2025-03-29 12:00", 1) == ["03-30 01:00"]
    assert ticks("0 2,3 * * *", "Europe/Berlin", "2025-03-29 12:00", 1) == ["03-30 01:00"]


def test_a_local_time_that_occurs_twice_is_taken_the_first_time() -> None:
    # Berlin, 2025-10-26: 03:00 is 02:00 again, at 01:00 UTC.
    assert ticks("30 2 * * *", "Europe/Berlin", "2025-10-25 12:00", 2) == [
        "10-26 00:30",
        "10-27 01:30",
    ]
    again = at("2025-10-26 02:10", "Europe/Berlin", fold=1)
    assert utc(cron("30 2 * * *", "Europe/Berlin").first(again)) == "2025-10-27 01:30"


def test_a_rhythm_goes_on_through_an_hour_that_occurs_twice() -> None:
    assert ticks("30 * * * *", "Europe/Berlin", "2025-10-25 23:00", 0.2) == [
        "10-25 23:30",
        "10-26 00:30",
        "10-26 01:30",
        "10-26 02:30",
        "10-26 03:30",
    ]


def test_a_rhythm_goes_on_where_an_hour_is_left_out() -> None:
    assert ticks("30 * * * *", "Europe/Berlin", "2025-03-30 00:00", 0.1) == [
        "03-30 00:30",
        "03-30 01:30",
    ]


def test_a_midnight_that_does_not_exist() -> None:
    # Cairo, 2024-04-26: 00:00 is 01:00, at 22:00 UTC the day before.
    assert ticks("0 0 * * *", "Africa/Cairo", "2024-04-24 12:00", 3) == [
        "04-24 22:00",
        "04-25 22:00",
        "04-26 21:00",
    ]


def test_a_day_that_does_not_exist() -> None:
    # Apia left out 2011-12-30: 24:00 of the 29th was 00:00 of the 31st, at 10:00 UTC of the 30th.
    assert ticks("0 12 30 12 *", "Pacific/Apia", "2011-12-01 00:00", 60) == ["12-30 10:00"]


def test_offsets_of_half_hours() -> None:
    assert ticks("0 12 * * *", "Asia/Kolkata", "2025-01-01 00:00", 1) == ["01-01 06:30"]
    # Lord Howe, 2025-10-05: 02:00 is 02:30, at 15:30 UTC the day before.
    assert ticks("15 2 * * *", "Australia/Lord_Howe", "2025-10-04 00:00", 1) == ["10-04 15:30"]
    assert ticks("0 */5 * * *", "Australia/Lord_Howe", "2025-10-04 13:00", 1)[:3] == [
        "10-04 13:30",
        "10-04 18:00",
        "10-04 23:00",
    ]


def test_the_29th_of_february() -> None:
    assert ticks("0 0 29 2 *", "UTC", "2023-01-01 00:00", 3_000) == ["02-29 00:00", "02-29 00:00"]
    assert utc(cron("0 0 29 2 *").first(at("2097-01-01"))) == "2104-02-29 00:00"


def test_days_and_weekdays_as_cron_has_them() -> None:
    assert ticks("0 0 1 * 1", "UTC", "2025-09-01 12:00", 30) == [
        "09-08 00:00",
        "09-15 00:00",
        "09-22 00:00",
        "09-29 00:00",
        "10-01 00:00",
    ]
    assert ticks("0 0 * * fri", "UTC", "2025-09-01 00:00", 7) == ["09-05 00:00"]
    assert ticks("0 0 L * *", "UTC", "2025-02-01 00:00", 40) == ["02-28 00:00"]


def test_what_was_missed_is_counted_up_to_a_bound() -> None:
    timing = cron("* * * * *")
    minute = 60 * SECOND
    due = at("2025-01-01 00:00")

    assert timing.after(due, due + 5 * minute) == NextTick(due + 6 * minute, 5)
    assert timing.after(due, due + 10**6 * minute) == NextTick(due + (10**6 + 1) * minute, 1_000)
    assert MISSED_MAX == 1_000


@given(st.lists(st.integers(0, 600), min_size=1, max_size=6), st.integers(0, 5))
def test_counting_on_gives_what_counting_anew_gives(lates: list[int], first: int) -> None:
    due = at("2025-03-30 00:00") + first * 60 * SECOND
    one = cron("*/7 * * * *", "Europe/Berlin")
    for late in lates:
        now = due + late * 60 * SECOND
        assert one.after(due, now) == cron("*/7 * * * *", "Europe/Berlin").after(due, now)


def test_at_the_end_of_the_calendar_nothing_loops() -> None:
    for expression in ("*/10 * * * *", "30 2 * * *", "0 0 29 2 *"):
        for zone in ("UTC", "Pacific/Kiritimati", "Pacific/Pago_Pago", "Europe/Berlin"):
            timing = cron(expression, zone)
            now = at("9999-12-29 00:00")
            for _ in range(1_000):
                later = timing.after(now, now).at
                assert later > now
                now = later
    assert interval(86_400).after(END_AT, END_AT).at > END_AT


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("", "five fields"),
        ("10m", "five fields"),
        ("* * * *", "five fields"),
        ("0 0 0 * * *", "five fields"),
        ("* " * 200, "five fields"),
        ("60 * * * *", "minute cannot be '60'"),
        ("* 24 * * *", "hour cannot be '24'"),
        ("0 0 0 * *", "day-of-month"),
        ("0 0 * 13 *", "month cannot be '13'"),
        ("0 0 * * 8", "day-of-week cannot be '8'"),
        ("*/0 * * * *", "minute cannot be"),
        ("5-1 * * * *", "minute cannot be"),
        ("0 0 L/2-x * *", "day-of-month"),
        ("0 0 * * 5#6", "day-of-week"),
        ("0 0 * * 1#1/2", "cannot be"),
        ("٣ * * * *", "minute cannot be"),
        ("0 0 30 2 *", "matches no date"),
        ("0 0 31 2,4,6,9,11 *", "matches no date"),
    ],
)
def test_an_expression_that_cannot_be_is_refused_in_a_sentence(expression: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as refused:
        cron(expression)
    assert str(refused.value).endswith(".")
    assert len(str(refused.value)) < 300


@given(st.text(alphabet="0123456789*/,-#LWMONJAN \n", max_size=30))
def test_whatever_is_written_is_taken_or_refused(expression: str) -> None:
    try:
        timing = cron(expression, "Europe/Berlin")
    except UsageError:
        return
    assert timing.first(T0) > T0


@pytest.mark.parametrize("zone", ["Europe/Berlinn", "", "../etc/passwd", "/etc/passwd", "Europe"])
def test_a_zone_that_is_not_there_is_refused(zone: str) -> None:
    with pytest.raises(UsageError, match="time zone"):
        cron("0 0 * * *", zone)


def test_the_nearest_zone_is_told() -> None:
    with pytest.raises(UsageError, match="nearest known one is 'Europe/Berlin'"):
        cron("0 0 * * *", "Europe/Berlinn")


def test_without_zone_data_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoneinfo, "available_timezones", set)
    with pytest.raises(UsageError, match="install the package tzdata"):
        cron("0 0 * * *", "Moon/Tycho")
