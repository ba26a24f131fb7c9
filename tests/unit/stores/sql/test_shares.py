# SPDX-License-Identifier: Apache-2.0
"""Do the parts of many lease calls add up to the weights?"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.stores.sql import lease
from penstock.stores.sql.lease import WeightedShares, weight_of


def test_a_group_weighs_as_the_heaviest_of_its_tasks() -> None:
    assert weight_of(["a", "b"], {"b": 3}) == 3
    assert weight_of(["a"], {"b": 3}) == 1
    assert weight_of([], {"b": 3}) == 1


def test_small_calls_serve_a_light_group_in_its_time() -> None:
    shares = WeightedShares()

    parts = [shares.divide(1, ["a", "b"], [3, 1]) for _ in range(8)]

    assert sum(heavy for heavy, _ in parts) == 6
    assert sum(light for _, light in parts) == 2


@given(
    weights=st.lists(st.integers(1, 1_000_000), min_size=1, max_size=8),
    limits=st.lists(st.integers(1, 300), min_size=1, max_size=40),
)
def test_parts_are_the_limit_and_follow_the_weights_within_two_jobs(
    weights: list[int], limits: list[int]
) -> None:
    shares = WeightedShares()
    groups = [f"g{n}" for n in range(len(weights))]
    got = [0] * len(weights)

    for limit in limits:
        parts = shares.divide(limit, groups, weights)
        assert sum(parts) == limit
        assert min(parts) >= 0
        got = [had + part for had, part in zip(got, parts, strict=True)]

    for count, weight in zip(got, weights, strict=True):
        assert abs(count - sum(limits) * weight / sum(weights)) < 2


@given(data=st.data())
def test_whoever_takes_part_the_parts_are_the_limit(data: st.DataObject) -> None:
    shares = WeightedShares()

    for _ in range(20):
        groups = data.draw(st.lists(st.sampled_from("abcdefgh"), min_size=1, unique=True))
        weights = [ord(group) for group in groups]
        limit = data.draw(st.integers(1, 20))
        parts = shares.divide(limit, groups, weights)
        assert sum(parts) == limit
        assert min(parts) >= 0


def test_what_is_remembered_is_bounded() -> None:
    shares = WeightedShares()

    for n in range(2 * lease.CREDITS_MAX):
        shares.divide(1, [f"g{n}"], [1])

    assert len(shares._owed) <= lease.CREDITS_MAX + 1
