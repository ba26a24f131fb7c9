# SPDX-License-Identifier: Apache-2.0
"""Which datasets and calendars do tests of planning use?"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

import msgspec

from penstock.model.dataset import DatasetSpec, Need, SliceMarks

HOUR = 3_600_000_000
DAY = 24 * HOUR
EMPTY = array("q")


class Steps(msgspec.Struct, frozen=True):
    """A calendar without beginning and end: one slice every `step`, `offset` after it."""

    step: int = DAY
    offset: int = 0
    tz: str = "UTC"

    @property
    def text(self) -> str:
        return f"every {self.step} µs at {self.offset}"

    @property
    def daily(self) -> bool:
        return self.step % DAY == 0

    def between(self, start: int, end: int) -> Sequence[int]:
        first = -(-(start - self.offset) // self.step) * self.step + self.offset
        return list(range(first, end, self.step))

    def before(self, at: int, count: int) -> Sequence[int]:
        last = (at - self.offset) // self.step * self.step + self.offset
        return list(range(last - (count - 1) * self.step, last + 1, self.step))


class Moments(msgspec.Struct, frozen=True):
    """A calendar of exactly these moments."""

    moments: tuple[int, ...]
    daily: bool = False
    tz: str = "UTC"

    @property
    def text(self) -> str:
        return f"custom {self.moments}"

    def between(self, start: int, end: int) -> Sequence[int]:
        return self.moments[bisect_left(self.moments, start) : bisect_left(self.moments, end)]

    def before(self, at: int, count: int) -> Sequence[int]:
        end = bisect_right(self.moments, at)
        return self.moments[max(0, end - count) : end]


def dataset(
    name: str,
    *needs: Need | str,
    calendar: Steps | Moments | None = None,
    version: str = "1",
    batch: int = 1,
) -> DatasetSpec:
    """One dataset; daily, if nothing else is said."""
    return DatasetSpec(
        name=name,
        calendar=calendar or Steps(),
        needs=tuple(Need(dataset=need) if isinstance(need, str) else need for need in needs),
        version=version,
        batch=batch,
    )


def by_name(specs: Iterable[DatasetSpec]) -> dict[str, DatasetSpec]:
    return {spec.name: spec for spec in specs}


def nothing_built(_name: str, _start: int, _end: int, _version: str) -> SliceMarks:
    """The marks of an empty store."""
    return SliceMarks(ats=EMPTY, seqs=EMPTY, bases=EMPTY, outdated=EMPTY, seq=0)
