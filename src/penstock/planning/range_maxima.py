# SPDX-License-Identifier: Apache-2.0
"""What is the highest of any range of numbers, asked very often?"""

from __future__ import annotations

from collections.abc import Sequence


class RangeMaxima:
    """Owns the highest of all ranges of 1, 2, 4 … numbers; each row is made when it is needed."""

    __slots__ = ("_rows",)

    def __init__(self, values: Sequence[int]) -> None:
        self._rows: list[Sequence[int]] = [values]

    def highest(self, first: int, end: int) -> int:
        """Of [first, end), which must not be empty."""
        power = (end - first).bit_length() - 1
        if not power:
            return self._rows[0][first]
        rows = self._rows
        while len(rows) <= power:
            row = rows[-1]
            rows.append(list(map(max, row, row[1 << len(rows) - 1 :])))
        row = rows[power]
        return max(row[first], row[end - (1 << power)])
