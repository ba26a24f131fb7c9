# SPDX-License-Identifier: Apache-2.0
"""How did the ticks of units go, in one transaction?"""

from __future__ import annotations

from dataclasses import dataclass, field

Tally = tuple[int, int, int, int, int | None, int | None]
#: [job, ticks, missed, failed, last_tick_at, last_due_at]


@dataclass(slots=True)
class UnitTallies:
    """Owns what is to be written of units at the end of a transaction, all of it together.

    Nobody reads any of it inside a transaction.
    """

    tallies: dict[int, Tally] = field(default_factory=dict)
    grown: set[int] = field(default_factory=set)  # jobs, some of which may be units
    cursors: dict[str, str] = field(default_factory=dict)  # the last word counts

    def ticked(self, job_id: int, missed: int, ended_at: int, due_at: int) -> None:
        """An occurrence ended well."""
        _, ticks, before, failed, _, _ = self.tallies.get(job_id, (job_id, 0, 0, 0, None, None))
        self.tallies[job_id] = (job_id, ticks + 1, before + missed, failed, ended_at, due_at)

    def failed(self, job_id: int) -> None:
        """A try failed."""
        _, ticks, missed, failed, *last = self.tallies.get(job_id, (job_id, 0, 0, 0, None, None))
        self.tallies[job_id] = (job_id, ticks, missed, failed + 1, last[0], last[1])
        self.grown.add(job_id)

    def copy(self) -> UnitTallies:
        tallies, grown, cursors = dict(self.tallies), set(self.grown), dict(self.cursors)
        return UnitTallies(tallies, grown, cursors)
