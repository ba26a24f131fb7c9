# SPDX-License-Identifier: Apache-2.0
"""How does the memory store keep slices, and make them visible?"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import islice

from penstock.model.dataset import SliceMarks
from penstock.model.job import JobId
from penstock.model.lease import CommitLevel, Effect, StageManifest
from penstock.model.plan import PlanState
from penstock.model.views import Progress
from penstock.stores.protocol import DatasetView, SlicePage, SliceRange, SliceRow
from tests.model.memory_dataset_rows import OPEN, DatasetTables


class Manifests:
    """Owns what staging and committing do. Does not know what an end is."""

    def __init__(self, tables: DatasetTables) -> None:
        self._tables = tables

    def own_name(self, proposed: str) -> str:
        self._tables.own_name = self._tables.own_name or proposed
        return self._tables.own_name

    def may_write(self, effects: Sequence[Effect]) -> bool:
        """Are the plans of all slices and levels among these effects running?"""
        plans = {e.plan_id for e in effects if isinstance(e, StageManifest | CommitLevel)}
        found = [self._tables.plans.get(plan_id) for plan_id in plans]
        return all(plan is not None and plan.state is PlanState.RUNNING for plan in found)

    def apply(self, job_id: JobId, effects: Sequence[Effect]) -> None:
        """Write the slices of one end, those that are visible with one number; then levels."""
        seq: int | None = None
        for effect in effects:
            if isinstance(effect, StageManifest):
                visible = self._is_visible(effect)
                if visible and seq is None:
                    seq = self._tables.next_seq()
                self._stage(effect, job_id, seq if visible else None)
        for effect in effects:
            if isinstance(effect, CommitLevel):
                self._commit(effect)

    def _is_visible(self, effect: StageManifest) -> bool:
        return effect.commit or (effect.plan_id, effect.level) in self._tables.commits

    def _stage(self, effect: StageManifest, job_id: JobId, seq: int | None) -> None:
        for row_id, row in self._tables.of_slice(effect.dataset, effect.at):
            again = row.seq is None and (row.plan_id, row.level) == (effect.plan_id, effect.level)
            if (again and self._tables.number(row) is None) or (seq is not None and row.seq):
                self._tables.drop(row_id, row)
        self._tables.add(
            SliceRow(
                dataset=effect.dataset,
                at=effect.at,
                built=effect.version,
                basis=effect.basis,
                seq=seq,
                plan_id=effect.plan_id,
                level=effect.level,
                job_id=job_id,
                document=effect.document,
            )
        )

    def _commit(self, effect: CommitLevel) -> None:
        place = (effect.plan_id, effect.level)
        if place not in self._tables.commits:
            self._tables.commits[place] = self._tables.next_seq()

    # Reading

    def marks(self, dataset: str, start: int, end: int, version: str) -> SliceMarks:
        found = list(self._tables.visible(dataset, start, end))
        current = [row for row in found if row.built == version]
        return SliceMarks(
            ats=array("q", [row.at for row in current]),
            seqs=array("q", [row.seq or 0 for row in current]),
            bases=array("q", [row.basis for row in current]),
            outdated=array("q", [row.at for row in found if row.built != version]),
            seq=self._tables.seq,
        )

    def page(self, dataset: str, start: int, end: int, limit: int) -> SlicePage:
        rows = list(islice(self._tables.visible(dataset, start, end), limit))
        return SlicePage(seq=self._tables.seq, rows=rows)

    def ranges(self, ranges: Sequence[SliceRange]) -> SlicePage:
        found = {
            (row.dataset, row.at): row
            for one in ranges
            for row in self._tables.visible(one.dataset, one.first, one.last + 1)
        }
        return SlicePage(seq=self._tables.seq, rows=[found[place] for place in sorted(found)])

    def staged(self, plan_id: str) -> list[SliceRow]:
        found = [
            row
            for (plan, level), rows in self._tables.staged.items()
            if plan == plan_id and (plan, level) not in self._tables.commits
            for row in rows.values()
        ]
        return sorted(found, key=lambda row: (row.level, row.dataset, row.at))

    def documents(self, dataset: str, after: int, limit: int) -> list[tuple[int, str]]:
        of = self._tables.slices.get(dataset)
        rows = sorted(of.by_id.items()) if of is not None else []
        return [(row_id, row.document) for row_id, row in rows if row_id > after][:limit]

    def datasets(self) -> Iterator[DatasetView]:
        for name in sorted(self._tables.slices):
            of = self._tables.slices[name]
            found = [row for rows in of.at.values() if (row := self._tables.newest(rows))]
            if found:
                yield DatasetView(
                    name=name,
                    slices=len(found),
                    first_at=min(row.at for row in found),
                    last_at=max(row.at for row in found),
                    seq=max(row.seq or 0 for row in found),
                )

    # Tidying

    def tidy(self, limit: int) -> Progress:
        """Visit rows without a number of levels that are committed, or of plans that are over."""
        done = [place for place in self._tables.staged if self._is_over(*place)]
        rows = [item for place in done for item in self._tables.staged[place].items()]
        for row_id, row in rows[:limit]:
            self._tidy_one(row_id, row)
        return Progress(min(limit, len(rows)), more=len(rows) > limit)

    def _is_over(self, plan_id: str, level: int) -> bool:
        plan = self._tables.plans.get(plan_id)
        return (plan_id, level) in self._tables.commits or plan is None or plan.state not in OPEN

    def _tidy_one(self, row_id: int, row: SliceRow) -> None:
        seq = self._tables.number(row)
        others = [x for x in self._tables.of_slice(row.dataset, row.at) if x[0] != row_id]
        if seq is None or any((other.seq or 0) > seq for _, other in others):
            self._tables.drop(row_id, row)
            return
        for other_id, other in others:
            if other.seq is not None:
                self._tables.drop(other_id, other)
        self._tables.stamp(row_id, row, seq)

    def broken(self) -> Iterator[str]:
        for plan_id, level in self._tables.commits:
            if plan_id not in self._tables.plans:
                yield f"level {level} of plan {plan_id!r} is committed, but there is no such plan"
        for name, of in self._tables.slices.items():
            for at, rows in of.at.items():
                numbers = [n for row in rows.values() if (n := self._tables.number(row))]
                if len(numbers) != len(set(numbers)):
                    yield f"slice {name}@{at} has two rows of one commit"
                for row in rows.values():
                    number = self._tables.number(row)
                    if number is not None and not row.basis < number <= self._tables.seq:
                        yield f"slice {name}@{at} has basis {row.basis} and number {number}"
