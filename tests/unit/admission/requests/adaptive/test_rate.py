# SPDX-License-Identifier: Apache-2.0
"""Is a rate found, kept and probed?"""

from __future__ import annotations

import pytest

from penstock.admission.requests.adaptive.rate import RateLimit


def measured(per_second: float) -> RateLimit:
    rate = RateLimit()
    rate.refused(per_second, 3.0)
    return rate


def test_search_begins_at_one_and_doubles() -> None:
    rate = RateLimit()
    rate.search()
    for _ in range(4):
        rate.advance(0.5, 10.0, may_probe=True)

    assert rate.per_second == pytest.approx(4.0)


def test_time_without_events_counts_half_a_second_to_a_search() -> None:
    rate = RateLimit()
    rate.search()
    rate.advance(60.0, 10.0, may_probe=True)

    assert rate.per_second == pytest.approx(2**0.5)


def test_refusal_falls_a_little_below_what_was_accepted() -> None:
    assert measured(10.0).per_second == pytest.approx(9.6)


def test_it_comes_back_to_just_below_what_was_accepted() -> None:
    rate = measured(10.0)
    rate.advance(2.0, 10.0, may_probe=True)

    assert rate.per_second == pytest.approx(9.9)


def test_it_probes_after_the_hold_if_it_may() -> None:
    rate, other = measured(10.0), measured(10.0)
    for one, may_probe in ((rate, True), (other, False)):
        one.advance(10.0, 10.0, may_probe=may_probe)
        one.advance(5.0, 10.0, may_probe=may_probe)

    assert rate.per_second > 10.0
    assert other.per_second < 10.0


def test_rates_that_agree_make_it_sure() -> None:
    rate = measured(10.0)
    rate.refused(10.2, 3.0)
    assert rate.confidence == 1

    rate.refused(20.0, 3.0)
    assert rate.confidence == 0


def test_long_mean_is_corrected_by_the_pace_that_was_refused() -> None:
    rate = measured(10.0)
    rate.per_second = 16.0
    rate.refused(4.0, 30.0)

    assert rate.ceiling == pytest.approx((4.0 * 12.0) ** 0.5)  # 16 counts as three times 4


def test_refusal_that_measured_nothing_falls_by_a_fifth() -> None:
    rate = measured(10.0)
    rate.refused_early()

    assert rate.per_second == pytest.approx(0.8 * 9.6)


def test_search_that_is_refused_early_ends() -> None:
    rate = RateLimit()
    rate.search()
    rate.refused_early()

    assert not rate.is_searching
    assert rate.per_second == pytest.approx(0.7)


def test_learned_rate_is_resumed_a_little_below() -> None:
    rate = RateLimit()
    rate.resume(50.0)

    assert rate.per_second == pytest.approx(48.0)
    assert rate.ceiling == 50.0
