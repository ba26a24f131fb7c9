# SPDX-License-Identifier: Apache-2.0
"""Which sessions has an exchange, and what if nobody knows?"""

from __future__ import annotations

import subprocess
import sys
from datetime import date

import pytest

from penstock.calendars import Exchange, generate_timestamps
from penstock.errors import UsageError
from penstock.model.dataset import moment_name
from penstock.planning.calendars import fixed
from penstock.planning.calendars.timestamps import find_slice


def test_new_york_has_1759_sessions_in_seven_years() -> None:
    closes = generate_timestamps(Exchange("XNYS"), date(2020, 1, 1), date(2027, 1, 1))
    opens = generate_timestamps(Exchange("XNYS", at="open"), date(2020, 1, 1), date(2027, 1, 1))

    assert len(closes) == len(opens) == 1759
    assert [one.date() for one in opens] == [one.date() for one in closes]
    assert closes[0].isoformat() == "2020-01-02T16:00:00-05:00"
    assert len([one for one in closes if one.hour == 13]) == 14  # early closes
    assert date(2025, 1, 9) not in {one.date() for one in closes}


def test_a_slice_is_called_by_its_session() -> None:
    calendar = Exchange("XNYS")
    (at,) = find_slice(calendar, "2024-01-05")

    assert moment_name(at, calendar) == "2024-01-05"
    assert find_slice(calendar, "2024-01-06") == ()
    assert list(calendar.before(at, 2))[1:] == [at]


def test_an_unknown_code_is_named_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"no exchange 'XNYZ'; the nearest known ones are .*XNYS"):
        _ = Exchange("XNYZ").tz


def test_sessions_that_nobody_knows_are_no_empty_range() -> None:
    shanghai = Exchange("XSHG")

    with pytest.raises(UsageError, match="sessions of XSHG are known from 1990-12-03 to"):
        generate_timestamps(shanghai, date(1980, 1, 1), date(2000, 1, 1))
    with pytest.raises(UsageError, match="known from"):
        shanghai.before(4 * 10**15, 1)
    assert list(shanghai.before(0, 1)) == []


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed._sessions.cache_clear()
    monkeypatch.setitem(sys.modules, "exchange_calendars", None)

    with pytest.raises(UsageError, match="install penstock with the extra `calendars`"):
        Exchange("XNYS").between(0, 1)


def test_the_package_is_not_imported_before_it_is_asked() -> None:
    program = (
        "import sys; from penstock.calendars import Exchange; Exchange('XNYS').text; "
        "sys.exit('exchange_calendars' in sys.modules or 'pandas' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
