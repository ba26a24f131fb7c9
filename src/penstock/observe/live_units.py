# SPDX-License-Identifier: Apache-2.0
"""How do the units of schedules stand at one moment?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from penstock.clock import MICROSECONDS
from penstock.model.job import JobState
from penstock.model.schedule import UnitView
from penstock.model.views import Stats
from penstock.observe.phrases import counted

LATE_SECONDS = 2.0  # a tick that is due for longer and has not begun is late


class UnitTroubles(msgspec.Struct, frozen=True):
    """Of some units, how many are not as they should be."""

    degraded: int = 0  # their last try failed, and it was their own fault
    deferred: int = 0  # their last try failed, and others were at fault
    late: int = 0

    @classmethod
    def of(cls, units: Iterable[UnitView], now_at: int) -> UnitTroubles:
        degraded = deferred = late = 0
        for unit in units:
            if unit.is_failing:
                deferred += unit.by_others
                degraded += not unit.by_others
            elif unit.state is JobState.QUEUED:
                late += now_at - unit.due_at > LATE_SECONDS * MICROSECONDS
        return cls(degraded, deferred, late)

    def __add__(self, other: UnitTroubles) -> UnitTroubles:
        return UnitTroubles(
            self.degraded + other.degraded, self.deferred + other.deferred, self.late + other.late
        )


class Units(msgspec.Struct, frozen=True, kw_only=True):
    """All units of a store."""

    live: int
    ticking: int
    ended: int = 0  # in error
    troubles: UnitTroubles = UnitTroubles()  # by the last round, which may be some seconds old

    @classmethod
    def of(cls, stats: Stats, troubles: UnitTroubles) -> Units | None:
        """None: there are none."""

        def count(state: JobState) -> int:
            return sum(counts.get(state, 0) for counts in stats.schedules.values())

        ended = count(JobState.ERROR)
        if not stats.units and not ended:
            return None
        ticking = count(JobState.IN_PROGRESS)
        return cls(live=stats.units, ticking=ticking, ended=ended, troubles=troubles)

    def words(self) -> Iterator[str]:
        """In a few words each; what is always there comes first."""
        yield f"{counted(self.live, 'unit')} of schedules"
        yield f"{self.ticking:,} ticking"
        if self.troubles.degraded:
            yield f"{self.troubles.degraded:,} degraded"
        if self.troubles.deferred:
            yield f"{self.troubles.deferred:,} waiting for others"
        if self.troubles.late:
            yield f"{self.troubles.late:,} late"
        if self.ended:
            yield f"{self.ended:,} ended in error"
