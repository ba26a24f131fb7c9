# SPDX-License-Identifier: Apache-2.0
"""How does the memory store keep things in order, and count them?"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any, Generic, TypeVar

from penstock.errors import InternalError
from penstock.model.job import TERMINAL, JobState

K = TypeVar("K", bound=Any)


class Ordered(Generic[K]):
    """A set that is kept sorted, in one list: an insertion is a search and a memory move."""

    def __init__(self) -> None:
        self._items: list[K] = []

    def add(self, item: K) -> None:
        insort(self._items, item)

    def remove(self, item: K) -> None:
        at = bisect_left(self._items, item)
        if at == len(self._items) or self._items[at] != item:
            raise InternalError(f"{item!r} is missing in an index of the memory store.")
        del self._items[at]

    def first(self) -> K | None:
        return self._items[0] if self._items else None

    def above(self, item: K) -> Iterator[K]:
        """What is greater than `item`, in order. Do not change the set meanwhile."""
        return islice(self._items, bisect_right(self._items, item), None)

    def __iter__(self) -> Iterator[K]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


class Counts:
    """Jobs by name and state; a name without jobs is forgotten."""

    def __init__(self) -> None:
        self.by_name: dict[str, Counter[JobState]] = {}

    def add(self, name: str, state: JobState, step: int) -> None:
        counter = self.by_name.setdefault(name, Counter())
        counter[state] += step
        if counter[state] < 0:
            raise InternalError(f"The counter of {state} jobs of {name!r} fell below zero.")
        if not counter[state]:
            del counter[state]
        if not counter:
            del self.by_name[name]

    def of(self, name: str) -> dict[JobState, int]:
        """The states of one name in the order of JobState, without zeros."""
        counter = self.by_name[name]
        return {state: counter[state] for state in JobState if state in counter}

    def is_idle(self, name: str) -> bool:
        """Has every job of this name ended?"""
        return all(state in TERMINAL for state in self.by_name[name])
