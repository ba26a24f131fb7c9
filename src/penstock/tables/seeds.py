# SPDX-License-Identifier: Apache-2.0
"""Seeds as rows: which record of its source a row gets, and what type the records have.

That depends on the number of the row alone. So a table that is extended goes on where the cycle
was, and any process can make any row group.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

from penstock.definitions.column import SeedColumn, digest
from penstock.errors import UsageError
from penstock.model.table import SeedOrder
from penstock.tables.sampling import permutation
from penstock.tables.seed_source import SeedSource, open_source
from penstock.tables.value_types import NULL, NoType, ValueType, join, type_of

BATCH = 1_000  # records of a source that are expanded at once


class SeedReader:
    """The records of one seed column, as many rows as are asked for."""

    def __init__(self, column: SeedColumn, seed: int) -> None:
        """Nothing is read yet.

        Args:
            column: what is read.
            seed: of the table: how its records are shuffled.
        """
        self.column = column
        self._seed = seed
        self._lock = threading.RLock()
        self._permutation: tuple[int, Callable[[int], int]] = (-1, int)

    @property
    def count(self) -> int:
        """How many rows there are until the records begin again."""
        with self._lock:
            count = len(self._range) if self._expanded is None else self._expanded[0][-1]
        if not count:
            raise UsageError(f"{self._what}: its source has no records; a seed needs one at least.")
        return count

    @property
    def type(self) -> ValueType:
        """What all of its records are."""
        with self._lock:
            found = self._source.type if self._expanded is None else self._expanded[1]
        return found.settled

    @property
    def fingerprint(self) -> str:
        """A digest of which rows it gives: of the content, and of how it is read."""
        column, expand = self.column, self.column.expand
        drawn = (column.name, self._seed) if column.order is SeedOrder.SHUFFLED else None
        how = column.order, drawn, column.fields, expand and expand.code
        with self._lock:
            return digest(self._source.digest().hex(), self._range.start, self._range.stop, how)

    def rows(self, first: int, count: int) -> list[Any]:
        """The records of these rows; after the last record the first one follows."""
        places = [self._place(row) for row in range(first, first + count)]
        found: dict[int, Any] = {}
        for start, length in _runs(sorted(set(places))):
            for offset, record in enumerate(self._read(start, length)):
                found[start + offset] = record
        return [found[place] for place in places]

    @property
    def _what(self) -> str:
        return f"Seed {self.column.name!r}"

    @cached_property
    def _source(self) -> SeedSource:
        return open_source(self._what, self.column.source, self.column.fields)

    @cached_property
    def _range(self) -> range:
        """Which records of the source are taken."""
        count, asked = self._source.count, self.column.records
        if asked is None:
            return range(count)
        if asked.stop > count:
            raise UsageError(
                f"{self._what}: records={asked!r} goes beyond its source, which has {count:,} "
                "records."
            )
        return asked

    @cached_property
    def _expanded(self) -> tuple[array[int], ValueType] | None:
        """Where the rows of each record begin, and what they are; None: each record is one."""
        if self.column.expand is None:
            return None
        starts, kind, total = array("Q", [0]), NULL, 0
        for number in range(self._range.start, self._range.stop, BATCH):
            for record in self._source.read(number, min(BATCH, self._range.stop - number)):
                rows = self._expand(record)
                try:
                    for row in rows:
                        kind = join(kind, type_of(row))
                except NoType as error:
                    raise UsageError(
                        f"{self._what}: what expand= makes of a record holds {error}; it makes "
                        "plain data."
                    ) from None
                total += len(rows)
                starts.append(total)
        return starts, kind

    def _expand(self, record: Any) -> list[Any]:  # noqa: ANN401
        expand = self.column.expand
        if expand is None:
            return [record]
        try:
            made = expand.function(record)
            if isinstance(made, str | Mapping):
                raise TypeError
            return list(made)
        except Exception as error:  # code of the user
            raise UsageError(
                f"{self._what}: expand= raised {type(error).__name__} for a record; it takes each "
                "record and returns a list."
            ) from error

    def _place(self, row: int) -> int:
        cycle, place = divmod(row, self.count)
        if self.column.order is SeedOrder.ORDERED:
            return place
        with self._lock:
            kept = self._permutation
            if kept[0] != cycle:
                found = permutation(self._seed, self.column.name, cycle, self.count)
                kept = self._permutation = cycle, found
        return kept[1](place)

    def _read(self, first: int, count: int) -> list[Any]:
        with self._lock:
            expanded, begin = self._expanded, self._range.start
        if expanded is None:
            return self._source.read(begin + first, count)
        starts = expanded[0]
        record = bisect_right(starts, first) - 1
        end = bisect_left(starts, first + count)
        skipped = first - starts[record]
        found: list[Any] = []
        for one in self._source.read(begin + record, end - record):
            found += self._expand(one)
        return found[skipped : skipped + count]


def record_digest(records: Mapping[str, Any]) -> str:
    """What identifies the records of one row, by column: other records, other answers."""
    try:
        return digest(dict(records))
    except TypeError:  # a value of Arrow that JSON does not have
        return digest(repr(sorted(records.items())))


def _runs(places: list[int]) -> Iterator[tuple[int, int]]:
    """Sorted places as stretches without a gap: where each begins, and how long it is."""
    start = previous = None
    for place in places:
        if start is None or previous is None:
            start = place
        elif place != previous + 1:
            yield start, previous - start + 1
            start = place
        previous = place
    if start is not None and previous is not None:
        yield start, previous - start + 1
