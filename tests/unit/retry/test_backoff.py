# SPDX-License-Identifier: Apache-2.0
"""Do delays double, stop at their maximum, and spread evenly?"""

from __future__ import annotations

import math
import random
from collections import Counter
from itertools import pairwise

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


def test_jitter_spreads_from_the_ceiling_before_to_the_ceiling() -> None:
    assert (SERVICE.delay(0, 0.0), SERVICE.delay(0, 0.5)) == (0.0, 2.5)  # the first: up to 5
    assert (SERVICE.delay(3, 0.0), SERVICE.delay(3, 0.5)) == (20.0, 30.0)  # 20 to 40
    assert SERVICE.delay(1000, 0.0) == SERVICE.delay(1000, 0.5) == 300.0


RANDS = st.lists(st.floats(0, 1, exclude_max=True), min_size=2, max_size=30)


@given(st.sampled_from([NODE, SERVICE, DEGRADED, OWN]), RANDS)
def test_waits_of_one_job_never_shrink_however_its_steps_are_told(
    backoff: Backoff, rands: list[float]
) -> None:
    counted = [backoff.delay(n, rand) for n, rand in enumerate(rands)]
    timed, ago = [], 0.0
    for rand in rands:
        timed.append(backoff.delay(backoff.step_after(ago), rand))
        ago += timed[-1]

    for waits in (counted, timed):
        assert all(one <= other + 1e-6 for one, other in pairwise(waits))


def test_jobs_that_failed_together_stay_spread() -> None:
    """No tenth of the longest wait has more than its share of a herd of 1,000 jobs, and a half."""
    rand = random.Random(1)
    moments = []
    for _ in range(1_000):
        ago = 0.0
        for _ in range(12):
            ago += NODE.delay(NODE.step_after(ago), rand.random())
        moments.append(ago % NODE.max_seconds)
    shares = Counter(int(10 * moment / NODE.max_seconds) for moment in moments)
    assert max(shares.values()) <= 250


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
