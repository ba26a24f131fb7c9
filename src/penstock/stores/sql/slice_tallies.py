# SPDX-License-Identifier: Apache-2.0
"""Which slices and levels does one transaction write, and may their plans?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from penstock.model.effects import CommitLevel, StageManifest
from penstock.stores.sql.statements import Row, as_json

Place = tuple[str, int]  # plan and level


@dataclass(slots=True)
class SliceTallies:
    """Owns what is to be written of slices at the end of a transaction, all of it together.

    The commit number is the last thing that a transaction takes, so nobody waits for it for long.
    """

    may_write: dict[Place, bool] = field(default_factory=dict)  # as far as was asked
    committed: set[Place] = field(default_factory=set)
    numbers: int = 0  # how many commits there are in this transaction
    rows: dict[Row, Row] = field(default_factory=dict)
    levels: list[tuple[str, int, int]] = field(default_factory=list)  # with their number

    def staged(self, job_id: int, effects: Sequence[StageManifest]) -> None:
        """One job leaves these; all that are visible at once have one number."""
        number: int | None = None
        for one in effects:
            visible = one.commit or (one.plan_id, one.level) in self.committed
            if visible and number is None:
                self.numbers += 1
                number = self.numbers
            slice_ = (one.dataset, one.at)
            place = slice_ if visible else (*slice_, one.plan_id, one.level)
            self.rows[place] = (
                one.dataset,
                one.at,
                one.version,
                one.basis,
                number if visible else None,
                one.plan_id,
                one.level,
                job_id,
                one.document,
            )

    def commits(self, level: CommitLevel) -> None:
        """A level becomes visible, if it is not."""
        place = (level.plan_id, level.level)
        if place not in self.committed:
            self.committed.add(place)
            self.numbers += 1
            self.levels.append((*place, self.numbers))

    def statements(self) -> Iterator[tuple[str, tuple[object, ...]]]:
        """What writes it; numbers are counted back from the last one that is taken."""
        if self.numbers:
            yield "take_numbers", (self.numbers,)
        if self.rows:
            rows = as_json([(*row[:4], self._back(row[4]), *row[5:]) for row in self.rows.values()])
            yield "drop_replaced", (rows,)
            yield "insert_slices", (rows,)
        if self.levels:
            levels = [(plan_id, level, self._back(n)) for plan_id, level, n in self.levels]
            yield "insert_commits", (as_json(levels),)

    def _back(self, number: int | None) -> int | None:
        return None if number is None else number - self.numbers

    def copy(self) -> SliceTallies:
        return SliceTallies(
            dict(self.may_write),
            set(self.committed),
            self.numbers,
            dict(self.rows),
            list(self.levels),
        )
