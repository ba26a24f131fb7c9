# SPDX-License-Identifier: Apache-2.0
"""F60: whatever people do to their clocks, each occurrence runs once and nothing loops.

`make soak-calendar` asks the same of every place and thirty years.
"""

from __future__ import annotations

import random
from zoneinfo import ZoneInfo, available_timezones

import pytest

from penstock.errors import UsageError
from penstock.planning.timing import cron, interval
from tests.faults.calendar_world import EXPRESSIONS, changing_days, differences, window

PLACES = [
    ("Europe/Berlin", 2025),
    ("Africa/Cairo", 2024),  # midnight does not exist
    ("America/Havana", 2024),  # midnight occurs twice
    ("Australia/Lord_Howe", 2025),  # half an hour
    ("America/St_Johns", 2008),  # one minute past midnight, an offset of half an hour
    ("Pacific/Apia", 2011),  # a day does not exist
    ("Antarctica/Troll", 2025),  # two hours
    ("Asia/Pyongyang", 2018),  # half an hour, for good
]


@pytest.mark.parametrize(("zone", "year"), PLACES)
def test_f60_every_change_of_clocks_is_as_a_clock_on_the_wall_shows(zone: str, year: int) -> None:
    place = ZoneInfo(zone)
    days = list(changing_days(place, year, year))

    assert days
    assert [line for day in days for line in differences(zone, window(place, day))] == []


def test_f60_places_and_years_by_lot() -> None:
    lot = random.Random(60)
    zones = sorted(available_timezones())
    asked = 0
    while asked < 10:
        name, year = lot.choice(zones), lot.randrange(2008, 2038)
        place = ZoneInfo(name)
        for day in list(changing_days(place, year, year))[:1]:
            some = tuple(lot.sample(EXPRESSIONS, 4))
            assert differences(name, window(place, day), some) == []
            asked += 1


@pytest.mark.parametrize("expression", ["0 0 30 2 *", "0 0 31 4 *"])
def test_f60_an_expression_without_a_date_is_refused(expression: str) -> None:
    with pytest.raises(UsageError, match="matches no date"):
        cron(expression)


@pytest.mark.parametrize("seconds", [0, -5])
def test_f60_an_interval_of_nothing_is_refused(seconds: float) -> None:
    with pytest.raises(UsageError, match="above 0"):
        interval(seconds)
