# SPDX-License-Identifier: Apache-2.0
"""What does the memory store remember of datasets, and in which orders can it find it again?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from penstock.model.plan import LockView, PlanRow, PlanState
from penstock.stores.protocol import SliceRow
from tests.model.memory_index import Ordered

OPEN = frozenset({PlanState.DRAFT, PlanState.RUNNING, PlanState.LEFT})


@dataclass(eq=False, slots=True)
class SliceRows:
    """Rows of one dataset, several of a slice where one supersedes another."""

    by_id: dict[int, SliceRow] = field(default_factory=dict)  # grows in order of ids
    at: dict[int, dict[int, SliceRow]] = field(default_factory=dict)  # by time, then id
    ats: Ordered[int] = field(default_factory=Ordered)


@dataclass(eq=False, slots=True)
class LockRow:
    """One lock that was taken at some time; nobody's if there is no run."""

    name: str
    token: int = 0
    run_id: str | None = None
    mark: str = ""
    expires_at: int = 0  # microseconds of the lease clock
    taken_at: int = 0

    def as_view(self, now: int) -> LockView:
        return LockView(
            name=self.name,
            run_id=self.run_id or "",
            mark=self.mark,
            token=self.token,
            taken_at=self.taken_at,
            alive=self.expires_at > now,
        )


class DatasetTables:
    """Owns slices, commits, plans and locks. Does not know what any of them means."""

    def __init__(self) -> None:
        self.slices: dict[str, SliceRows] = {}  # by dataset
        self.staged: dict[tuple[str, int], dict[int, SliceRow]] = {}  # by plan and level
        self.commits: dict[tuple[str, int], int] = {}  # by plan and level: the number
        self.plans: dict[str, PlanRow] = {}
        self.locks: dict[str, LockRow] = {}
        self.seq = 0  # of the newest commit
        self.own_name = ""  # what roots know the store by
        self._last_id = 0

    def next_seq(self) -> int:
        self.seq += 1
        return self.seq

    def add(self, row: SliceRow) -> None:
        self._last_id += 1
        self._put(self._last_id, row)

    def _put(self, row_id: int, row: SliceRow) -> None:
        of = self.slices.setdefault(row.dataset, SliceRows())
        if row.at not in of.at:
            of.ats.add(row.at)
        of.at.setdefault(row.at, {})[row_id] = row
        of.by_id[row_id] = row
        if row.seq is None:
            self.staged.setdefault((row.plan_id, row.level), {})[row_id] = row

    def drop(self, row_id: int, row: SliceRow) -> None:
        of = self.slices[row.dataset]
        del of.by_id[row_id], of.at[row.at][row_id]
        if not of.at[row.at]:
            del of.at[row.at]
            of.ats.remove(row.at)
        if not of.by_id:
            del self.slices[row.dataset]
        if row.seq is None:
            level = self.staged[row.plan_id, row.level]
            del level[row_id]
            if not level:
                del self.staged[row.plan_id, row.level]

    def stamp(self, row_id: int, row: SliceRow, seq: int) -> None:
        """Write the number of its level's commit into a row."""
        self.drop(row_id, row)
        self._put(row_id, msgspec.structs.replace(row, seq=seq))

    def number(self, row: SliceRow) -> int | None:
        """The commit by which a row is visible; None if it is not."""
        if row.seq is not None:
            return row.seq
        return self.commits.get((row.plan_id, row.level))

    def of_slice(self, dataset: str, at: int) -> list[tuple[int, SliceRow]]:
        """All rows of a slice, with their ids."""
        of = self.slices.get(dataset)
        return [] if of is None else list(of.at.get(at, {}).items())

    def visible(self, dataset: str, start: int, end: int) -> Iterator[SliceRow]:
        """The row that counts of each committed slice in [start, end), by time."""
        of = self.slices.get(dataset)
        if of is None:
            return
        for at in of.ats.above(start - 1):
            if at >= end:
                return
            newest = self.newest(of.at[at])
            if newest is not None:
                yield newest

    def newest(self, rows: dict[int, SliceRow]) -> SliceRow | None:
        """Of several rows of one slice that one with the highest number, which it then has."""
        numbered = [(seq, row) for row in rows.values() if (seq := self.number(row)) is not None]
        if not numbered:
            return None
        seq, row = max(numbered, key=lambda pair: pair[0])
        return msgspec.structs.replace(row, seq=seq)

    def open_plans(self, run_id: str | None = None) -> list[PlanRow]:
        """Plans that are not over, the newest first."""
        found = [plan for plan in self.plans.values() if plan.state in OPEN]
        return [plan for plan in reversed(found) if run_id in (None, plan.run_id)]

    def change(self, plan: PlanRow, **changes: object) -> None:
        self.plans[plan.id] = msgspec.structs.replace(plan, **changes)
