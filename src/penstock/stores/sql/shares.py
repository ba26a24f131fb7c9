# SPDX-License-Identifier: Apache-2.0
"""How much of a lease call does a group get, if groups weigh differently?

What a group got too little in one call it gets in a later one, so that weights hold for a worker
with few slots as well, whose calls are small. Kept in memory by each process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

CREDITS_MAX = 4_096  # groups whose balance is remembered


def weight_of(tasks: Iterable[str], weights: Mapping[str, int]) -> int:
    """The weight of a group: that of the heaviest of its tasks that are ready."""
    return max((weights.get(task, 1) for task in tasks), default=1)


class WeightedShares:
    """Owns what each group is still owed, less than a job. Knows neither jobs nor lanes."""

    def __init__(self) -> None:
        self._owed: dict[str, float] = {}

    def divide(self, limit: int, groups: Sequence[str], weights: Sequence[int]) -> list[int]:
        """The part of each group; together they are the limit."""
        total = sum(weights)
        due = [
            self._owed.get(group, 0.0) + limit * weight / total
            for group, weight in zip(groups, weights, strict=True)
        ]
        parts = [max(0, int(part)) for part in due]
        while (left := limit - sum(parts)) != 0:
            step = 1 if left > 0 else -1
            places = [n for n in range(len(parts)) if parts[n] + step >= 0]
            parts[max(places, key=lambda n: step * (due[n] - parts[n]))] += step
        if len(self._owed) > CREDITS_MAX:
            self._owed.clear()
        for group, part, got in zip(groups, due, parts, strict=True):
            self._owed[group] = min(1.0, max(-1.0, part - got))
        return parts
