# SPDX-License-Identifier: Apache-2.0
"""Do delays double, stop at their maximum, and spread evenly?"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError, InternalError
from penstock.retry.policy import DEGRADED, NODE, OWN, SERVICE, Backoff


def test_baseline_is_the_specified_one() -> None:
    assert Backoff(2.0, 120.0) == NODE
    assert Backoff(5.0, 300.0) == SERVICE
    assert Backoff(30.0, 300.0) == DEGRADED
    assert Backoff(1.0, 60.0) == OWN


def test_ceilings_double_up_to_the_maximum() -> None:
    ceilings = [NODE.ceiling(n) for n in range(9)]

    assert ceilings == [2, 4, 8, 16, 32, 64, 120, 120, 120]


def test_full_jitter_spreads_from_nothing_to_the_ceiling() -> None:
    assert SERVICE.delay(3, 0.0) == 0.0
    assert SERVICE.delay(3, 0.5) == 20.0  # 5 × 2³ × 0.5
    assert SERVICE.delay(1000, 0.5) == 150.0  # 300 × 0.5


def test_time_tells_the_step_that_a_count_would() -> None:
    # After n delays at their ceilings, first × (2ⁿ − 1) seconds have passed.
    for n in range(7):
        assert NODE.step_after(2.0 * (2**n - 1)) == pytest.approx(n)
    assert NODE.step_after(-3600.0) == 0.0


@given(st.floats(0, 1e308), st.floats(0, 1, exclude_max=True))
def test_delay_never_leaves_its_bounds(n: float, rand: float) -> None:
    assert 0.0 <= SERVICE.delay(n, rand) <= 300.0
    assert math.isfinite(SERVICE.step_after(n))


@given(st.floats(0, 100), st.floats(0, 100))
def test_later_steps_have_no_lower_ceiling(one: float, other: float) -> None:
    assert SERVICE.ceiling(min(one, other)) <= SERVICE.ceiling(max(one, other))


@pytest.mark.parametrize(
    ("first", "last"),
    [(0.0, 1.0), (-1.0, 1.0), (2.0, 1.0), (1.0, math.inf), (math.nan, 1.0), (1.0, math.nan)],
)
def test_backoff_that_makes_no_sense_is_refused(first: float, last: float) -> None:
    with pytest.raises(ConfigError, match="first_seconds"):
        Backoff(first, last)


@pytest.mark.parametrize("n", [-1, math.nan])
def test_step_below_zero_is_our_bug(n: float) -> None:
    with pytest.raises(InternalError, match="step"):
        NODE.ceiling(n)
