# SPDX-License-Identifier: Apache-2.0
"""Which upstream slices a moment needs: by the words of each rule, or a refusal that names both."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.model.dataset import Need, Rule
from penstock.planning import needs
from penstock.planning.freshness import RangeMaxima
from penstock.planning.needs import CalendarReader, index_ranges, needed_moments
from tests.datasets import DAY, HOUR, Moments, Steps, dataset

few = st.lists(st.integers(0, 60), unique=True, max_size=25).map(sorted)
rules = st.one_of(
    st.just(Need(dataset="up")),
    st.just(Need(dataset="up", rule=Rule.EXACT)),
    st.integers(1, 6).map(lambda n: Need(dataset="up", rule=Rule.LOOKBACK, count=n)),
    st.integers(1, 20).map(lambda n: Need(dataset="up", rule=Rule.WINDOW, micros=n)),
)


def by_words(at: int, need: Need, ups: list[int]) -> list[int] | None:
    """What a moment needs; None: it cannot be had."""
    past = [up for up in ups if up <= at]
    match need.rule:
        case Rule.LATEST:
            return past[-1:] or None
        case Rule.EXACT:
            return [at] if at in past else None
        case Rule.LOOKBACK:
            return past[-need.count :] if len(past) >= need.count else None
        case Rule.WINDOW:
            return [up for up in past if up > at - need.micros]


@given(few, few, few, rules, st.booleans())
def test_what_is_needed_is_what_the_rules_say(
    downs: list[int], ups: list[int], more: list[int], need: Need, sparse: bool
) -> None:
    down, up = dataset("down"), dataset("up", calendar=Moments(tuple(ups)))
    expected = [by_words(at, need, ups) for at in downs]
    was = needs.SPARSE_MIN
    needs.SPARSE_MIN = -(10**9) if sparse else was
    try:
        if None in expected:
            with pytest.raises(UsageError):
                needed_moments(down, downs, need, up, CalendarReader())
            return
        found = needed_moments(down, downs, need, up, CalendarReader())
    finally:
        needs.SPARSE_MIN = was

    assert found == sorted({at for needed in expected for at in needed or ()})
    others = sorted({*found, *(at for at in more if at in ups)})
    firsts, ends = index_ranges(downs, need, others)
    assert [others[a:b] for a, b in zip(firsts, ends, strict=True)] == expected


@pytest.mark.parametrize(
    ("need", "moments", "refusal"),
    [
        (
            Need(dataset="volatility", rule=Rule.EXACT),
            (DAY,),
            "report@1970-01-03 needs volatility at exactly 1970-01-03T00:00:00Z, but the calendar "
            "of volatility (custom (86400000000,)) has no slice there (the newest before it is "
            "volatility@1970-01-02T00:00:00Z); give both one calendar, or use volatility.latest().",
        ),
        (
            Need(dataset="volatility"),
            (3 * DAY,),
            "report@1970-01-03 needs volatility at or before 1970-01-03T00:00:00Z, but the "
            "calendar of volatility (custom (259200000000,)) has no slice there; begin later, or "
            "give volatility a calendar that begins earlier.",
        ),
        (
            Need(dataset="volatility", rule=Rule.LOOKBACK, count=20),
            (DAY, 2 * DAY),
            "report@1970-01-03 needs 20 slices of volatility up to 1970-01-03T00:00:00Z, but the "
            "calendar of volatility (custom (86400000000, 172800000000)) has only 2 of them, the "
            "first at volatility@1970-01-02T00:00:00Z; begin later, or look back less far.",
        ),
    ],
)
def test_a_slice_that_cannot_be_is_refused_by_both_names(
    need: Need, moments: tuple[int, ...], refusal: str
) -> None:
    up = dataset("volatility", calendar=Moments(moments))

    with pytest.raises(UsageError, match=f"^{re.escape(refusal)}$"):
        needed_moments(dataset("report"), [2 * DAY, 4 * DAY], need, up, CalendarReader())


def test_an_empty_window_is_no_error() -> None:
    need = Need(dataset="up", rule=Rule.WINDOW, micros=HOUR)
    up = dataset("up", calendar=Steps(DAY, 12 * HOUR))

    assert needed_moments(dataset("down"), [DAY, 2 * DAY], need, up, CalendarReader()) == []
    assert index_ranges([DAY, 2 * DAY], need, []) == ([0, 0], [0, 0])


def test_a_dense_calendar_is_not_read_between_sparse_moments() -> None:
    seconds = dataset("seconds", calendar=Steps(1_000_000))
    years = [n * 365 * DAY for n in range(100)]
    need = Need(dataset="seconds", rule=Rule.LOOKBACK, count=3)

    found = needed_moments(dataset("down"), years, need, seconds, CalendarReader())

    assert len(found) == 300


def test_a_range_of_far_too_many_slices_is_refused_before_it_is_read() -> None:
    seconds = dataset("seconds", calendar=Steps(1))

    with pytest.raises(UsageError, match=r"about 86,400,000,000 slices of 'seconds'.*--yes"):
        CalendarReader(1_000_000).between(seconds, 0, DAY)


@given(st.lists(st.integers(), min_size=1, max_size=40), st.data())
def test_the_highest_of_a_range(values: list[int], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(values) - 1))
    end = data.draw(st.integers(first + 1, len(values)))

    assert RangeMaxima(values).highest(first, end) == max(values[first:end])
