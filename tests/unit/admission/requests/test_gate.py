# SPDX-License-Identifier: Apache-2.0
"""Is a rate kept, over any stretch of time?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.admission.requests.gate import TokenBucket
from penstock.errors import UsageError


def test_full_bucket_holds_a_second_of_the_rate() -> None:
    assert TokenBucket(10.0, 0.0).available(0.0) == 10.0
    assert TokenBucket(0.1, 0.0).available(0.0) == 1.0


def test_it_refills_with_time_and_never_above_its_size() -> None:
    bucket = TokenBucket(10.0, 0.0, size=20.0)
    bucket.take(0.0, 20.0)

    assert bucket.available(1.0) == pytest.approx(10.0)
    assert bucket.available(60.0) == 20.0


def test_it_says_when_so_much_is_there() -> None:
    bucket = TokenBucket(10.0, 0.0, size=20.0)
    bucket.take(0.0, 20.0)

    assert bucket.ready_at(0.0, 5.0) == pytest.approx(0.5)
    assert bucket.ready_at(0.5, 5.0) == pytest.approx(0.5)


def test_request_larger_than_the_bucket_waits_for_a_full_one_and_owes_the_rest() -> None:
    bucket = TokenBucket(10.0, 0.0, size=20.0)
    assert bucket.ready_at(0.0, 50.0) == 0.0

    bucket.take(0.0, 50.0)
    assert bucket.available(0.0) == 0.0
    assert bucket.ready_at(0.0, 1.0) == pytest.approx(3.1)


def test_what_was_reserved_and_not_used_comes_back() -> None:
    bucket = TokenBucket(10.0, 0.0, size=20.0)
    bucket.take(0.0, 20.0)
    bucket.settle(0.0, 20.0, 5.0)

    assert bucket.available(0.0) == 15.0


def test_what_was_used_beyond_the_reserve_is_owed() -> None:
    bucket = TokenBucket(10.0, 0.0, size=20.0)
    bucket.take(0.0, 20.0)
    bucket.settle(0.0, 20.0, 30.0)

    assert bucket.ready_at(0.0, 1.0) == pytest.approx(1.1)


def test_clock_that_goes_back_gives_nothing() -> None:
    bucket = TokenBucket(10.0, 100.0, size=20.0)
    bucket.take(100.0, 20.0)

    assert bucket.available(50.0) == 0.0
    assert bucket.available(100.5) == pytest.approx(5.0)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(UsageError, match="more than 0 per second"):
        TokenBucket(rate, 0.0)


def test_size_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="size of a bucket"):
        TokenBucket(1.0, 0.0, size=0.0)


@given(
    st.floats(0.1, 100.0),
    st.floats(1.0, 100.0),
    st.lists(st.tuples(st.floats(0.0, 10.0), st.floats(0.0, 150.0)), max_size=60),
)
def test_no_stretch_of_time_grants_more_than_its_refill_and_one_bucket(
    rate: float, size: float, asks: list[tuple[float, float]]
) -> None:
    bucket = TokenBucket(rate, 0.0, size)
    now = 0.0
    granted: list[tuple[float, float]] = []
    for pause, amount in asks:
        now += pause
        if bucket.ready_at(now, amount) <= now:
            bucket.take(now, amount)
            granted.append((now, amount))
        assert 0 <= bucket.available(now) <= size

    for first in range(len(granted)):
        for last in range(first, len(granted)):
            within = granted[first : last + 1]
            taken = sum(amount for _, amount in within[:-1]) + min(within[-1][1], size)
            most = size + rate * (within[-1][0] - within[0][0])
            assert taken <= most * (1 + 1e-9) + 1e-6
