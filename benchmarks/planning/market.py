# SPDX-License-Identifier: Apache-2.0
"""Which datasets are planned? A thousand of them, each needs three others, one slice a day."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from random import Random

import msgspec

from penstock.model.dataset import DatasetSpec, Need, SliceMarks
from penstock.model.plan import BuildRequest

DAY = 86_400_000_000  # microseconds
SOURCES = 10  # datasets that need nothing
NEAR = 60  # a dataset needs some of so many before it
NEEDS = 3
NOTHING = array("q")


class Daily(msgspec.Struct, frozen=True):
    """One slice a day, without beginning and end: so cheap that the planner is what is measured."""

    text: str = "daily 00:00 UTC"
    tz: str = "UTC"
    daily: bool = True

    def between(self, start: int, end: int) -> list[int]:
        return list(range(-(-start // DAY) * DAY, end, DAY))

    def before(self, at: int, count: int) -> list[int]:
        last = at // DAY * DAY
        return list(range(last - (count - 1) * DAY, last + 1, DAY))


def market(datasets: int) -> dict[str, DatasetSpec]:
    """The same graph in every run."""
    random, calendar = Random(9), Daily()
    specs = {}
    for number in range(datasets):
        before = range(max(0, number - NEAR), number)
        few = min(NEEDS, len(before)) if number >= min(SOURCES, datasets // 2) else 0
        ups = sorted(random.sample(before, few))
        needs = tuple(Need(dataset=f"d{up}") for up in ups)
        specs[f"d{number}"] = DatasetSpec(name=f"d{number}", calendar=calendar, needs=needs)
    return specs


def everything(specs: Mapping[str, DatasetSpec], days: int) -> BuildRequest:
    targets = tuple(sorted(specs))
    return BuildRequest(targets=targets, ranges=((0, days * DAY),) * len(targets), yes=True)


def nothing_built(_name: str, _start: int, _end: int, _version: str) -> SliceMarks:
    return SliceMarks(ats=NOTHING, seqs=NOTHING, bases=NOTHING, outdated=NOTHING, seq=0)
