# SPDX-License-Identifier: Apache-2.0
"""Freshness of slices: which are up to date, and which are missing, outdated or stale.

A committed slice is fresh if its version is the dataset's, none of the slices that it needs was
committed after its inputs were read, and none of them is to be built now.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

import msgspec

from penstock.model.dataset import Need, SliceMarks
from penstock.model.plan import SliceCounts
from penstock.planning.needs import index_ranges

CHUNK = 256  # slices that are looked at together, in the hope that all of them are fresh
NEVER = 1 << 62  # above every number of a commit


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


class DatasetState(msgspec.Struct):
    """What a plan knows of one dataset."""

    moments: list[int]  # of the slices that are needed, in order
    #: For each need, the range [first, end) of each moment in the upstream's moments.
    ranges: tuple[tuple[Need, Sequence[int], Sequence[int]], ...]
    seqs: Sequence[int]  # of each slice, its commit; NEVER: it is to be built
    build: Sequence[int]  # indexes of what is to be built, in order
    counts: SliceCounts

    @property
    def built_before(self) -> Sequence[int]:
        """For each index up to the last and one more, how many before it are to be built."""
        if len(self.build) == len(self.moments):
            return range(len(self.moments) + 1)
        counts = array("q", bytes(8 * (len(self.moments) + 1)))
        position = 0
        for number, index in enumerate([*self.build, len(self.moments)]):
            if index + 1 > position:
                counts[position : index + 1] = array("q", [number]) * (index + 1 - position)
                position = index + 1
        return counts


def assess_freshness(
    moments: list[int],
    needs: Sequence[tuple[Need, DatasetState]],
    marks: SliceMarks | None,
    *,
    force: bool,
    future: int,
) -> DatasetState:
    """Tell fresh slices from others.

    Args:
        moments: what is needed of a dataset.
        needs: its needs, with what was found of the datasets they name.
        marks: what is committed of it; None: it was not asked, since nothing is needed.
    """
    ranges = tuple((need, *index_ranges(moments, need, up.moments)) for need, up in needs)
    if marks is None:
        return DatasetState(moments, ranges, (), (), SliceCounts(needed=0, future=future))
    seqs, bases = _commits_at(moments, marks)
    absent = [index for index, seq in enumerate(seqs) if seq == NEVER] if NEVER in seqs else []
    late: set[int] = set()
    for (_, firsts, ends), (_, up) in zip(ranges, needs, strict=True):
        late.update(_stale_indexes(bases, firsts, ends, up.seqs))
    for index in late:
        seqs[index] = NEVER
    stale = sorted({*absent, *late})
    old = set(marks.outdated)
    outdated = sum(moments[index] in old for index in absent) if old else 0
    fresh = len(moments) - len(stale)
    counts = SliceCounts(
        needed=len(moments),
        fresh=0 if force else fresh,
        new=len(absent) - outdated,
        outdated=outdated,
        rebuilt=len(late),
        forced=fresh if force else 0,
        future=future,
    )
    everything = force or not fresh
    build = range(len(moments)) if everything else array("q", stale)
    return DatasetState(moments, ranges, seqs, build, counts)


def _commits_at(moments: list[int], marks: SliceMarks) -> tuple[array[int], array[int]]:
    """Commits and bases of these moments; NEVER where nothing is committed."""
    if array("q", moments) == marks.ats:
        return marks.seqs[:], marks.bases
    seqs = dict(zip(marks.ats, marks.seqs, strict=True))
    bases = dict(zip(marks.ats, marks.bases, strict=True))
    return (
        array("q", [seqs.get(at, NEVER) for at in moments]),
        array("q", [bases.get(at, NEVER) for at in moments]),
    )


def _stale_indexes(
    bases: Sequence[int], firsts: Sequence[int], ends: Sequence[int], seqs: Sequence[int]
) -> Iterator[int]:
    """Indexes of slices that need something newer than what they were made of."""
    highest: RangeMaxima | None = None
    for begin in range(0, len(bases), CHUNK):
        stop = min(begin + CHUNK, len(bases))
        first, end = firsts[begin], ends[stop - 1]
        if first >= end or max(seqs[first:end]) <= min(bases[begin:stop]):
            continue
        highest = highest or RangeMaxima(seqs)
        for index in range(begin, stop):
            first, end = firsts[index], ends[index]
            if first < end and highest.highest(first, end) > bases[index]:
                yield index
