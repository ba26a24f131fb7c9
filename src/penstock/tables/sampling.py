# SPDX-License-Identifier: Apache-2.0
"""Sampling: the value of a sampled column is a function of the seed, the column and the row.

Each row has random bits of its own, so it makes no difference which rows were drawn before, in
which row groups, in which process, or how many there will be. The bits are a hash and not those of
a generator of Python, which may differ between versions.
"""

from __future__ import annotations

import hashlib
import uuid
from bisect import bisect_right
from collections.abc import Callable
from datetime import timedelta
from itertools import accumulate
from statistics import NormalDist
from typing import Any

from penstock.definitions.column import SampleColumn
from penstock.model.table import (
    Choices,
    ChoicesBy,
    Constant,
    Dates,
    Ids,
    Integers,
    Normal,
    Row,
    Sampler,
    Uniform,
)

BITS = 128  # that a value is drawn from
_FRACTION_BITS = 52

#: Draws from random bits, for the row of this number, with the values that it has so far.
_Draw = Callable[[int, int, Row], Any]


class NoChoice(Exception):
    """Nothing can be drawn for the values of a row; the text quotes none of them."""


def sample(column: SampleColumn, seed: int, row: int, values: Row) -> Any:  # noqa: ANN401
    """The value of one row.

    Args:
        column: what it is drawn from.
        seed: of the table.
        row: its number, from 0.
        values: of the columns that this one needs.
    """
    return sampler_of(column, seed)(row, values)


def sampler_of(column: SampleColumn, seed: int) -> Callable[[int, Row], Any]:
    """The same for many rows of a column."""
    bits_of, draw = _bits(seed, column.name), _draw(column.sampler)
    when, otherwise = column.when, column.otherwise
    if when is None or otherwise is None:
        return lambda row, values: draw(bits_of(row), row, values)
    instead = _draw(otherwise)

    def drawn(row: int, values: Row) -> Any:  # noqa: ANN401
        return (draw if when.holds(values) else instead)(bits_of(row), row, values)

    return drawn


def permutation(seed: int, name: str, cycle: int, count: int) -> Callable[[int], int]:
    """Where each index below `count` goes in one cycle of a shuffled seed.

    A Feistel network over a power of four, walked until it is inside: no list is kept.
    """
    half = max(1, (max(count - 1, 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    keys = [_bits(seed, f"{name}\0shuffled\0{cycle}\0{turn}") for turn in range(4)]

    def place(index: int) -> int:
        while True:
            left, right = index >> half, index & mask
            for key in keys:
                left, right = right, left ^ (key(right) & mask)
            index = left << half | right
            if index < count:
                return index

    return place


def _bits(seed: int, name: str) -> Callable[[int], int]:
    """The random bits of a row. A copy of a hash that knows seed and name costs the least."""
    start = hashlib.blake2b(f"{seed}\0{name}\0".encode(), digest_size=BITS // 8)

    def bits(row: int) -> int:
        one = start.copy()
        one.update(b"%d" % row)
        return int.from_bytes(one.digest(), "big")

    return bits


def _draw(sampler: Sampler) -> _Draw:
    make: Callable[[Any], _Draw] = _DRAWS[type(sampler)]
    return make(sampler)


def _below(bits: int, count: int) -> int:
    return bits * count >> BITS


def _fraction(bits: int) -> float:
    """Strictly between 0 and 1."""
    return ((bits >> BITS - _FRACTION_BITS) + 0.5) / (1 << _FRACTION_BITS)


def _of_choices(sampler: Choices) -> _Draw:
    values = sampler.values
    if sampler.weights is None:
        return lambda bits, row, others: values[_below(bits, len(values))]
    sums = list(accumulate(sampler.weights))
    last = max(index for index, weight in enumerate(sampler.weights) if weight)

    def draw(bits: int, row: int, others: Row) -> Any:  # noqa: ANN401
        return values[min(bisect_right(sums, _fraction(bits) * sums[-1]), last)]

    return draw


def _of_choices_by(sampler: ChoicesBy) -> _Draw:
    column, groups = sampler.column, dict(sampler.values)

    def draw(bits: int, row: int, others: Row) -> Any:  # noqa: ANN401
        try:
            values = groups[others[column]]
        except (KeyError, TypeError):  # a value that is no scalar
            raise NoChoice(f"there are no choices for the value of {column!r}") from None
        return values[_below(bits, len(values))]

    return draw


def _of_uniform(sampler: Uniform) -> _Draw:
    low, span, decimals = sampler.low, sampler.high - sampler.low, sampler.decimals
    return lambda bits, row, others: _rounded(low + span * _fraction(bits), decimals)


def _of_integers(sampler: Integers) -> _Draw:
    low, count = sampler.low, sampler.high - sampler.low + 1
    return lambda bits, row, others: low + _below(bits, count)


def _of_normal(sampler: Normal) -> _Draw:
    curve, decimals = NormalDist(sampler.mean, sampler.deviation), sampler.decimals
    low, high = sampler.low, sampler.high
    if low is None or high is None:
        return lambda bits, row, others: _rounded(curve.inv_cdf(_fraction(bits)), decimals)
    first, last = curve.cdf(low), curve.cdf(high)

    def draw(bits: int, row: int, others: Row) -> float:
        part = first + (last - first) * _fraction(bits)
        part = min(max(part, 1e-16), 1 - 1e-16)
        return _rounded(min(max(curve.inv_cdf(part), low), high), decimals)

    return draw


def _rounded(number: float, decimals: int | None) -> float:
    return number if decimals is None else round(number, decimals)


def _of_dates(sampler: Dates) -> _Draw:
    start, span = sampler.start, sampler.end - sampler.start
    if sampler.has_time:
        seconds = int(span.total_seconds())
        return lambda bits, row, others: start + timedelta(seconds=_below(bits, seconds))
    return lambda bits, row, others: start + timedelta(days=_below(bits, span.days + 1))


def _of_ids(sampler: Ids) -> _Draw:
    form = sampler.form
    return lambda bits, row, others: form.format(
        row=row, uuid=uuid.UUID(int=bits, version=4), hex=f"{bits >> 64:016x}"
    )


def _of_constant(sampler: Constant) -> _Draw:
    return lambda bits, row, others: sampler.value


_DRAWS: dict[type, Callable[..., _Draw]] = {
    Choices: _of_choices,
    ChoicesBy: _of_choices_by,
    Uniform: _of_uniform,
    Integers: _of_integers,
    Normal: _of_normal,
    Dates: _of_dates,
    Ids: _of_ids,
    Constant: _of_constant,
}
