# SPDX-License-Identifier: Apache-2.0
"""Samples depend on the seed, the column and the row, and on nothing that ran before."""

from __future__ import annotations

import random
import re
import statistics
import uuid
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Penstock
from penstock.definitions.column import SampleColumn
from penstock.errors import UsageError
from penstock.tables.local_columns import compute
from penstock.tables.sampling import NoChoice, permutation, sample, sampler_of

SAMPLERS: dict[str, dict[str, Any]] = {
    "choices": {"choices": ["dry", "warm", "angry"]},
    "weights": {"choices": [1, 2, 3], "weights": [1, 0, 2.5]},
    "by": {"choices": {"x": ["a", "b"], "y": ["c"]}, "by": "other"},
    "uniform": {"uniform": (-1, 3)},
    "rounded": {"uniform": (0, 1), "decimals": 2},
    "integers": {"integers": (1, 6)},
    "normal": {"normal": (50, 10)},
    "within": {"normal": (50, 10), "within": (45, 80)},
    "days": {"dates": ("2024-02-27", "2024-03-01")},
    "times": {"dates": ("2024-02-27T08:00:00", "2024-02-27T09:00:00")},
    "ids": {"ids": "order-{row:05}-{uuid}-{hex}"},
    "condition": {"choices": ["a"], "when": "{{ other == 'x' }}", "otherwise": ["b", "c"]},
}
OTHERS = [{"other": "x"}, {"other": "y"}]


def column(name: str = "drawn", **options: Any) -> SampleColumn:
    return Penstock("sampled").table("t").sample(name, **options)


def draw(count: int, seed: int = 7, **options: Any) -> list[Any]:
    of_row = sampler_of(column(**options), seed)
    return [of_row(row, {}) for row in range(count)]


@pytest.mark.parametrize("options", SAMPLERS.values(), ids=SAMPLERS)
@given(seed=st.integers(-(2**63), 2**63 - 1), order=st.randoms(), size=st.integers(1, 40))
def test_a_row_is_the_same_whatever_is_drawn_before_it(
    options: dict[str, Any], seed: int, order: random.Random, size: int
) -> None:
    made = column(**options)
    rows = list(range(40))
    values = {row: OTHERS[row % 2] for row in rows}
    expected = [sample(made, seed, row, values[row]) for row in rows]

    order.shuffle(rows)
    one_by_one = {row: sample(made, seed, row, values[row]) for row in rows}
    groups: list[Any] = []
    for first in range(0, 40, size):  # row groups of any size, the last one shorter
        members = range(first, min(first + size, 40))
        groups += compute(made, seed, first, [values[row] for row in members])

    assert [one_by_one[row] for row in range(40)] == expected
    assert groups == expected


@pytest.mark.parametrize("name", sorted(SAMPLERS.keys() - {"by", "condition"}))
def test_another_seed_column_or_row_gives_another_value(name: str) -> None:
    options = SAMPLERS[name]
    first = [sample(column(**options), 1, row, {}) for row in range(40)]
    other_seed = [sample(column(**options), 2, row, {}) for row in range(40)]
    other_column = [sample(column("second", **options), 1, row, {}) for row in range(40)]

    assert len({tuple(first), tuple(other_seed), tuple(other_column)}) == 3
    assert len(set(first)) > 1


def test_values_are_pinned_for_ever() -> None:
    """A change of them would make every table that is there anew."""
    assert draw(3, choices=["dry", "warm", "angry"]) == ["angry", "angry", "dry"]
    assert draw(3, integers=(1, 6)) == [5, 5, 1]
    assert [day.day for day in draw(3, **SAMPLERS["days"])] == [1, 29, 27]
    assert draw(2, uniform=(0, 1), decimals=9) == [0.830860866, 0.731740929]
    assert draw(1, ids="{uuid}") == ["d4b34c34-fb5a-46f8-b5ff-edd147c7c3c6"]


def frequencies(values: list[Any]) -> dict[Any, float]:
    return {value: count / len(values) for value, count in Counter(values).items()}


def test_choices_come_as_often_as_their_weights_say() -> None:
    found = frequencies(draw(20_000, choices=["a", "b", "c", "never"], weights=[1, 2, 5, 0]))

    assert found == pytest.approx({"a": 1 / 8, "b": 2 / 8, "c": 5 / 8}, abs=0.015)
    assert frequencies(draw(20_000, choices=[1, 2, 3, 4])) == pytest.approx(
        {1: 0.25, 2: 0.25, 3: 0.25, 4: 0.25}, abs=0.015
    )


def test_whole_numbers_and_days_come_equally_often_with_both_ends() -> None:
    sixths = dict.fromkeys(range(1, 7), 1 / 6)
    days = {date(2024, 2, 27) + timedelta(days=n): 1 / 4 for n in range(4)}

    assert frequencies(draw(20_000, integers=(1, 6))) == pytest.approx(sixths, abs=0.015)
    assert frequencies(draw(20_000, **SAMPLERS["days"])) == pytest.approx(days, abs=0.015)


def test_uniform_numbers_fill_their_range_evenly() -> None:
    found = draw(20_000, uniform=(10, 30))

    assert min(found) >= 10
    assert max(found) <= 30
    assert statistics.mean(found) == pytest.approx(20, abs=0.2)
    assert statistics.pstdev(found) == pytest.approx(20 / 12**0.5, abs=0.1)


def test_normal_numbers_have_their_mean_deviation_and_tails() -> None:
    found = draw(20_000, normal=(50, 10))
    beyond = sum(abs(value - 50) > 19.6 for value in found) / len(found)

    assert statistics.mean(found) == pytest.approx(50, abs=0.3)
    assert statistics.pstdev(found) == pytest.approx(10, abs=0.2)
    assert beyond == pytest.approx(0.05, abs=0.006)


def test_normal_numbers_within_a_range_pile_up_at_no_end() -> None:
    found = draw(20_000, normal=(0, 1), within=(0, 3))

    assert all(0 <= value <= 3 for value in found)
    assert statistics.median(found) == pytest.approx(0.672, abs=0.02)  # of the half above 0
    assert len(set(found)) == len(found)


def test_two_columns_and_neighbouring_rows_are_independent() -> None:
    one, other = (draw(20_000, name=name, uniform=(0, 1)) for name in ("a", "b"))

    assert statistics.correlation(one, other) == pytest.approx(0, abs=0.02)
    assert statistics.correlation(one[:-1], one[1:]) == pytest.approx(0, abs=0.02)


def test_decimals_round() -> None:
    assert all(value == round(value, 2) for value in draw(100, uniform=(0, 1), decimals=2))
    assert all(value == int(value) for value in draw(100, normal=(0, 9), decimals=0))


def test_ids_are_unlike_each_other() -> None:
    assert draw(2, ids="order-{row:05}") == ["order-00000", "order-00001"]
    assert len(set(draw(5_000, ids="{hex}"))) == 5_000
    assert {uuid.UUID(one).version for one in draw(50, ids="{uuid}")} == {4}
    assert all(re.fullmatch("[0-9a-f]{16}", one) for one in draw(50, ids="{hex}"))


def test_times_are_whole_seconds_before_the_end() -> None:
    start, end = datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, 0, 0, 3, tzinfo=UTC)
    found = set(draw(200, dates=(start, end)))

    assert found == {start + timedelta(seconds=n) for n in range(3)}


def test_a_condition_says_what_is_drawn() -> None:
    made = column(choices=["dry", "warm"], when="{{ stars > 3 }}", otherwise=["angry"])
    constant = column(integers=(5, 9), when="stars > 3", otherwise=0)
    nothing = column(uniform=(5, 9), when="stars > 3")

    drawn = {sample(made, 0, row, {"stars": 1 + row % 5}) for row in range(0, 50, 5)}
    assert drawn == {"angry"}
    assert {sample(made, 0, row, {"stars": 4}) for row in range(50)} == {"dry", "warm"}
    assert [sample(constant, 0, row, {"stars": 1}) for row in range(3)] == [0, 0, 0]
    assert sample(nothing, 0, 0, {"stars": 1}) is None


def test_choices_by_another_column_are_its_own() -> None:
    made = column(choices={"books": ["novel", "essay"], "music": ["jazz"]}, by="kind")

    assert {sample(made, 0, row, {"kind": "books"}) for row in range(50)} == {"novel", "essay"}
    assert sample(made, 0, 0, {"kind": "music"}) == "jazz"
    with pytest.raises(NoChoice, match="there are no choices for the value of 'kind'"):
        sample(made, 0, 0, {"kind": "secret"})
    with pytest.raises(NoChoice):
        sample(made, 0, 0, {"kind": ["books"]})


@given(
    count=st.integers(1, 300),
    seed=st.integers(0, 99),
    cycle=st.integers(0, 3),
)
def test_a_shuffled_cycle_has_each_record_once(count: int, seed: int, cycle: int) -> None:
    place = permutation(seed, "product", cycle, count)

    assert sorted(map(place, range(count))) == list(range(count))


def test_shuffled_cycles_differ_and_keep_no_order() -> None:
    cycles = [list(map(permutation(1, "p", n, 500), range(500))) for n in range(3)]
    neighbours = sum(b == a + 1 for a, b in zip(cycles[0], cycles[0][1:], strict=False))

    assert len({tuple(cycle) for cycle in cycles}) == 3
    assert neighbours < 10
    assert abs(statistics.correlation(range(500), cycles[0])) < 0.15


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "is drawn from one of choices, uniform, .*; got none of them"),
        ({"choices": [1], "uniform": (0, 1)}, "got choices= and uniform="),
        ({"choices": [1], "wieghts": [1]}, "'wieghts' is not an option of a sample"),
        ({"choices": []}, "choices is empty"),
        ({"choices": "dry"}, "choices= is a list such as"),
        ({"choices": {"a": 1}}, "choices= is a list such as"),
        ({"choices": [[1]]}, r"choices has \[1\]; values are texts, numbers"),
        ({"choices": [1, "a"]}, r"values of several kinds \(number, str\), and a column has one"),
        ({"choices": [float("nan")]}, "choices has nan"),
        ({"choices": [2**63]}, "which 64 bits do not hold"),
        ({"choices": [1, 2], "weights": [1]}, "2 choices need 2 weights, got 1"),
        ({"choices": [1, 2], "weights": [0, 0]}, "a sum above 0"),
        ({"choices": [1, 2], "weights": [1, -1]}, "a weight is a number from 0 on, got -1"),
        ({"choices": [1], "weights": "1"}, "weights= is a list of numbers"),
        ({"choices": [1], "by": "x"}, "with by='x' choices= is a mapping"),
        ({"choices": {"a": [1]}, "by": 3}, "by= is the name of a column"),
        ({"choices": {"a": 1}, "by": "x"}, "the choices of 'a' are a list"),
        ({"choices": {"a": []}, "by": "x"}, "choices of 'a' is empty"),
        ({"choices": {"a": [1], "b": ["c"]}, "by": "x"}, "values of several kinds"),
        ({"choices": {"a": [1]}, "by": "x", "weights": [1]}, "weights= does not go with by="),
        ({"uniform": 3}, r"uniform= is a pair such as \(0, 1\)"),
        ({"uniform": ("a", 1)}, "uniform= is a pair of numbers"),
        ({"uniform": (1, 1)}, "uniform= goes from low to high"),
        ({"uniform": (-1.7e308, 1.7e308)}, "uniform= goes from low to high"),
        ({"uniform": (0, 1), "weights": [1]}, "weights= does not go with uniform="),
        ({"uniform": (0, 1), "decimals": -1}, "decimals= is a whole number from 0 to 15"),
        ({"integers": (1, 2.5)}, "integers= is a pair of whole numbers"),
        ({"integers": (6, 1)}, "integers= goes from low to high"),
        ({"normal": (0, 0)}, "the deviation of normal= is above 0"),
        ({"normal": (0, 1), "within": (2, 1)}, "within= goes from low to high"),
        ({"normal": (0, 1), "within": (50, 60)}, "more than 6 deviations from the mean"),
        ({"dates": ("2024-01-01", "2023-01-01")}, "dates= goes from the first to the last"),
        ({"dates": ("2024-01-01", "2024-01-01T08:00:00")}, "two days or two times"),
        ({"dates": ("soon", "later")}, "dates= takes days such as '2024-01-31'"),
        ({"dates": ("2024-01-01T08:00:00", "2024-01-01T09:00:00Z")}, "one end .* has a time zone"),
        ({"ids": "order"}, "ids= holds {row}, {uuid} or {hex}"),
        ({"ids": "{name}"}, "ids= is a text such as"),
        ({"ids": "{row.__class__}"}, "ids= holds {row}"),
        ({"ids": 3}, "ids= is a text such as"),
        ({"choices": [1], "otherwise": [2]}, "otherwise= needs when="),
        ({"uniform": (0, 1), "when": "x", "otherwise": [1]}, "otherwise: uniform= is a pair"),
        ({"choices": [1], "when": "{{ x"}, "when= is one expression|cannot be read"),
    ],
)
def test_a_sampler_that_cannot_be_meant_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        column(**options)
